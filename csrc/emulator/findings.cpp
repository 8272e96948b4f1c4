// Findings.
#include "findings.h"

namespace moon {

bool Findings::add(const Finding &f) {
    (f.severity == "error" ? errors_ : warnings_) += f.count;
    std::string key = f.kind + f.severity + "@" + std::to_string(f.address);
    auto it = index_.find(key);
    if (it != index_.end()) {
        list_[it->second].count += f.count;
        return false;
    }
    if (list_.size() >= 1000)  // enough to know that something is wrong
        return false;
    index_[key] = list_.size();
    list_.push_back(f);
    return true;
}

void Findings::merge(const Findings &other) {
    for (const Finding &f : other.list_) add(f);
}

}  // namespace moon
