// Options.
#include "options.h"
#include <cstdio>
#include <mutex>
#include <unistd.h>

namespace moon {

namespace {

const char *const kAccepted[][2] = {
    {"mma", "fast, exact"},
    {"checks", "on, off"},
    {"counts", "on, off"},
    {"order", "forward, reverse, random:SEED, interleave:N"},
    {"threads", "0 (all cores) to 1024"},
    {"budget", "wave-instructions, 0 for no limit"},
    {"trace", "a path prefix"},
    {"trace_workgroup", "a workgroup's number"},
    {"cu_count", "0 (the device's own) to 100000"},
};

bool number(const char *s, u64 *out) {
    if (!*s) return false;
    u64 x = 0;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || x > (~0ull - 9) / 10) return false;
        x = x * 10 + u64(*s - '0');
    }
    *out = x;
    return true;
}

bool on_off(const std::string &v, bool *out) {
    if (v == "on" || v == "1")
        *out = true;
    else if (v == "off" || v == "0")
        *out = false;
    else
        return false;
    return true;
}

bool apply(Options *o, const std::string &k, const std::string &v) {
    u64 n = 0;
    if (k == "mma") {
        if (v != "fast" && v != "exact") return false;
        o->exact_mma = v == "exact";
        return true;
    }
    if (k == "checks") return on_off(v, &o->checks);
    if (k == "counts") return on_off(v, &o->counts);
    if (k == "order") {
        if (v == "forward")
            o->order = 0;
        else if (v == "reverse")
            o->order = 1;
        else if (v.compare(0, 7, "random:") == 0 && number(v.c_str() + 7, &n))
            o->order = 2, o->seed = n;
        else if (v.compare(0, 11, "interleave:") == 0 && number(v.c_str() + 11, &n) && n > 0)
            o->order = 3, o->quantum = n;
        else
            return false;
        return true;
    }
    if (k == "threads") {
        if (!number(v.c_str(), &n) || n > 1024) return false;
        o->threads = int(n);
        return true;
    }
    if (k == "budget") {
        if (!number(v.c_str(), &n)) return false;
        o->budget = n;
        return true;
    }
    if (k == "cu_count") {
        if (!number(v.c_str(), &n) || n > 100000) return false;
        o->cu_count = int(n);
        return true;
    }
    if (k == "trace_workgroup") {
        if (!number(v.c_str(), &n)) return false;
        o->trace_workgroup = n;
        return true;
    }
    if (k == "trace") {
        o->trace = v;
        return true;
    }
    return false;
}

// Every MOON_EMULATOR_<KEY> of the environment; one that has no effect is named, since it was meant to have one.
void apply_environment(Options *o) {
    const std::string prefix = "MOON_EMULATOR_";
    for (char **e = environ; e && *e; e++) {
        std::string entry = *e;
        size_t equals = entry.find('=');
        if (entry.compare(0, prefix.size(), prefix) != 0 || equals == std::string::npos) continue;
        std::string key = entry.substr(prefix.size(), equals - prefix.size()), value = entry.substr(equals + 1);
        for (char &c : key) c = char(c >= 'A' && c <= 'Z' ? c + 32 : c);
        // The Python side's own: which library to load.
        if (key == "library" || value.empty() || apply(o, key, value)) continue;
        fprintf(stderr, "moon_emulator: %s has no effect; accepted: %s\n", entry.c_str(), accepted(key).c_str());
    }
}

std::mutex g_lock;
Options &current() {
    static Options o = [] {
        Options fresh;
        fresh.budget = 20000000000ull;  // a kernel that never ends stops some day; 0 removes the limit
        apply_environment(&fresh);
        return fresh;
    }();
    return o;
}

}  // namespace

std::string accepted(const std::string &key) {
    std::string keys;
    for (const auto &row : kAccepted) {
        if (key == row[0]) return row[1];
        keys += (keys.empty() ? "the options " : ", ") + std::string(row[0]);
    }
    return keys;
}

bool set_option(const char *key, const char *value) {
    if (!key || !value) return false;
    std::lock_guard<std::mutex> hold(g_lock);
    return apply(&current(), key, value);
}

Options options() {
    std::lock_guard<std::mutex> hold(g_lock);
    return current();
}

}  // namespace moon
