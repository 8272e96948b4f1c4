// What the checks report. Repeats of one fault at one address are counted, not listed again.
#pragma once
#include "types.h"
#include <map>
#include <string>
#include <vector>

namespace moon {

struct Finding {
    std::string kind, severity, detail, mnemonic;
    u64 address = 0;  // of the instruction, from the load base
    u32 group[3] = {0, 0, 0};
    int wave = 0;
    std::string where;  // register or memory location
    u64 count = 1;
};

class Findings {
  public:
    // True if this is the first of its kind at its address.
    bool add(const Finding &f);
    void merge(const Findings &other);
    const std::vector<Finding> &list() const { return list_; }
    u64 errors() const { return errors_; }
    u64 warnings() const { return warnings_; }

  private:
    std::vector<Finding> list_;
    std::map<std::string, size_t> index_;
    u64 errors_ = 0, warnings_ = 0;
};

}  // namespace moon
