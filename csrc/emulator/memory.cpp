// Device memory by mmap.
#include "memory.h"
#include <algorithm>
#include <map>
#include <sys/mman.h>

namespace moon {

namespace {
std::mutex g_lock;
std::map<u64, Allocation> &table() {
    static auto *t = new std::map<u64, Allocation>;  // never destroyed: threads may outlive main
    return *t;
}
u64 g_used[2] = {0, 0};
constexpr u64 kPage = 4096, kGuard = 65536;
}  // namespace

extern const Device kDevices[];

void *memory_allocate(int device, u64 size, bool user, bool writable) {
    std::lock_guard<std::mutex> hold(g_lock);
    if (size > kDevices[device].memory || g_used[device] + size > kDevices[device].memory) return nullptr;
    u64 body = (std::max<u64>(size, 1) + kPage - 1) / kPage * kPage, total = body + 2 * kGuard;
    void *p = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    u8 *base = static_cast<u8 *>(p) + kGuard;
    if (mprotect(base, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(p, total);
        return nullptr;
    }
    Allocation a;
    a.base = reinterpret_cast<u64>(base), a.size = size, a.mapped = reinterpret_cast<u64>(p), a.mapped_size = total;
    a.device = device, a.user = user, a.writable = writable;
    table()[a.base] = a;
    g_used[device] += size;
    return base;
}

bool memory_free(void *p, bool user) {
    std::lock_guard<std::mutex> hold(g_lock);
    auto it = table().find(reinterpret_cast<u64>(p));
    if (it == table().end() || it->second.user != user) return false;
    munmap(reinterpret_cast<void *>(it->second.mapped), it->second.mapped_size);
    g_used[it->second.device] -= it->second.size;
    table().erase(it);
    return true;
}

bool memory_find(u64 address, Allocation *out) {
    std::lock_guard<std::mutex> hold(g_lock);
    auto it = table().upper_bound(address);
    if (it == table().begin()) return false;
    --it;
    if (address >= it->second.base + std::max<u64>(it->second.size, 1)) return false;
    *out = it->second;
    return true;
}

u64 memory_used(int device) {
    std::lock_guard<std::mutex> hold(g_lock);
    return g_used[device];
}

std::vector<Range> memory_ranges(int device) {
    std::lock_guard<std::mutex> hold(g_lock);
    std::vector<Range> r;
    for (const auto &e : table())
        if (e.second.device == device) r.push_back({e.second.base, e.second.base + e.second.size, e.second.writable});
    return r;
}

void memory_fill(void *p, int value, u64 size) {
    u8 *b = static_cast<u8 *>(p);
    u64 lo = (reinterpret_cast<u64>(b) + kPage - 1) / kPage * kPage,
        hi = (reinterpret_cast<u64>(b) + size) / kPage * kPage;
    Allocation a;
    if ((value & 255) != 0 || hi <= lo || hi - lo < (1u << 20) || !memory_find(reinterpret_cast<u64>(b), &a)) {
        std::memset(b, value, size);
        return;
    }
    std::memset(b, 0, lo - reinterpret_cast<u64>(b));
    if (madvise(reinterpret_cast<void *>(lo), hi - lo, MADV_DONTNEED) != 0)
        std::memset(reinterpret_cast<void *>(lo), 0, hi - lo);
    std::memset(reinterpret_cast<void *>(hi), 0, reinterpret_cast<u64>(b) + size - hi);
}

}  // namespace moon
