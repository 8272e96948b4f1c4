// The four entry points beyond HIP, and the JSON they give.
#include "hip_state.h"
#include "report.h"
#include <cstdio>

namespace moon {

namespace {
// Bytes of the UTF-8 character at s[i], 0 where there is none: a damaged code object's names may hold anything.
size_t utf8(const std::string &s, size_t i) {
    u8 c = u8(s[i]);
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (n == 0 || i + n > s.size()) return 0;
    for (size_t k = 1; k < n; k++)
        if ((u8(s[i + k]) & 0xc0) != 0x80) return 0;
    u8 next = n > 1 ? u8(s[i + 1]) : 0;
    bool overlong = (c == 0xe0 && next < 0xa0) || (c == 0xf0 && next < 0x90);
    bool outside = (c == 0xed && next >= 0xa0) || (c == 0xf4 && next >= 0x90);
    return overlong || outside ? 0 : n;
}
}  // namespace

std::string json_string(const std::string &s) {
    std::string r = "\"";
    for (size_t i = 0; i < s.size(); i++) {
        char c = s[i], buf[8];
        if (c == '"' || c == '\\') {
            r += '\\';
            r += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            snprintf(buf, sizeof(buf), "\\u%04x", c);
            r += buf;
        } else if (size_t n = utf8(s, i)) {
            r += s.substr(i, n);
            i += n - 1;
        } else {
            r += "\\ufffd";
        }
    }
    return r + "\"";
}

namespace {
std::string triple(const u32 *x) {
    return "[" + std::to_string(x[0]) + ", " + std::to_string(x[1]) + ", " + std::to_string(x[2]) + "]";
}
std::string number(double x) {
    char buf[64];
    snprintf(buf, sizeof(buf), "%.9g", x);
    return buf;
}
}  // namespace

std::string report_json(const Launch &l) {
    std::string r = "{\"schema\": 1";
    r += ", \"kernel\": " + json_string(l.kernel->name) + ", \"arch\": " + json_string(l.device->arch);
    r += ", \"grid\": " + triple(l.grid) + ", \"block\": " + triple(l.block);
    r += ", \"error\": " + std::to_string(l.error) + ", \"message\": " + json_string(l.message);
    r += ", \"instructions\": " + std::to_string(l.executed.load()) + ", \"seconds\": " + number(l.seconds);
    r += ", \"options\": {\"mma\": \"" + std::string(l.options.exact_mma ? "exact" : "fast") + "\", \"checks\": \"" +
         (l.options.checks ? "on" : "off") + "\", \"counts\": \"" + (l.options.counts ? "on" : "off") + "\"}";
    r += ", \"errors\": " + std::to_string(l.findings.errors()) +
         ", \"warnings\": " + std::to_string(l.findings.warnings());
    r += ", \"findings\": [";
    bool first = true;
    for (const Finding &f : l.findings.list()) {
        char addr[32];
        snprintf(addr, sizeof(addr), "%llu", (unsigned long long)f.address);
        r += first ? "" : ", ";
        first = false;
        r += "{\"kind\": " + json_string(f.kind) + ", \"severity\": " + json_string(f.severity) +
             ", \"kernel\": " + json_string(l.kernel->name) + ", \"address\": " + addr +
             ", \"mnemonic\": " + json_string(f.mnemonic) + ", \"workgroup\": " + triple(f.group) +
             ", \"wavefront\": " + std::to_string(f.wave) + ", \"where\": " + json_string(f.where) +
             ", \"detail\": " + json_string(f.detail) + ", \"count\": " + std::to_string(f.count) + "}";
    }
    r += "]" + counts_json(l) + "}";
    return r;
}

std::string disassemble_json(const void *image, size_t size, int *error, std::string *message) {
    const u8 *data = static_cast<const u8 *>(image), *inner = nullptr;
    size_t inner_size = 0;
    std::shared_ptr<Program> p;
    for (const Device &d : {kDevices[0], kDevices[1]}) {
        const u8 *at = data;
        size_t n = size;
        if (unbundle(data, size, d.arch, &inner, &inner_size)) at = inner, n = inner_size;
        p = load_program(at, n, d.arch, error, message);
        if (p || *error != 209) break;
    }
    if (!p) return "";
    *error = 0;  // the first device's refusal of the other's code object is none
    std::string r = "[";
    bool first_kernel = true;
    for (const Kernel &k : p->kernels) {
        u64 end = k.code_size ? k.entry + k.code_size : ~0ull;
        if (k.preload & 127) end = k.code_size ? k.entry - 256 + k.code_size : ~0ull;
        for (const Section &t : p->text)
            if (k.entry >= t.begin && k.entry < t.end) end = end < t.end ? end : t.end;
        for (const Kernel &other : p->kernels)
            if (other.entry > k.entry && other.entry < end) end = other.entry;
        r += first_kernel ? "" : ", ";
        first_kernel = false;
        r += "{\"kernel\": " + json_string(k.name) + ", \"arch\": " + json_string(p->arch) +
             ", \"entry\": " + std::to_string(k.entry) + ", \"vgprs\": " + std::to_string(k.vgprs) +
             ", \"sgprs\": " + std::to_string(k.sgprs) + ", \"agprs\": " + std::to_string(k.agprs) +
             ", \"lds_bytes\": " + std::to_string(k.lds_bytes) +
             ", \"scratch_bytes\": " + std::to_string(k.scratch_bytes) +
             ", \"kernarg_size\": " + std::to_string(k.kernarg_size) + ", \"instructions\": [";
        bool first = true;
        for (size_t i = k.first_op; i < p->ops.size() && p->ops[i].address < end; i++) {
            const Op &op = p->ops[i];
            char name[96], head[384];
            mnemonic(op, name, sizeof(name));
            i64 target = op.target >= 0 ? i64(p->ops[size_t(op.target)].address) : -1;
            snprintf(head, sizeof(head),
                     "%s{\"address\": %u, \"size\": %d, \"mnemonic\": \"%s\", \"class\": \"%s\", \"kind\": \"%s\", "
                     "\"target\": %lld, \"text\": ",
                     first ? "" : ", ", op.address, op.size, name, op.row ? class_name(op.row->cls) : "unknown",
                     kind_name(p->uses[i].kind), (long long)target);
            first = false;
            r += head + json_string(op_text(op)) + "}";
        }
        r += "]}";
    }
    return r + "]";
}

}  // namespace moon

using namespace moon;

namespace {
thread_local std::string t_text, t_disassembly;
}

MOON_EXPORT int moonEmuSetOption(const char *key, const char *value) {
    return set_option(key, value)
               ? 0
               : hip_fail(1, "moonEmuSetOption: unknown option or value: %s = %s; accepted: %s", key ? key : "(null)",
                          value ? value : "(null)", accepted(key ? key : "").c_str());
}
MOON_EXPORT const char *moonEmuLastMessage() { return hip_message(); }
MOON_EXPORT const char *moonEmuReport() {
    const auto &l = hip_last_launch();
    t_text = l ? report_json(*l) : "{\"schema\": 1, \"kernel\": null}";
    return t_text.c_str();
}
MOON_EXPORT const char *moonEmuDisassemble(const void *image, size_t size) {
    int error = 0;
    std::string message;
    if (!image) {
        hip_fail(1, "moonEmuDisassemble: the image is null");
        return nullptr;
    }
    t_disassembly = disassemble_json(image, size, &error, &message);
    if (error) {
        hip_fail(error, "moonEmuDisassemble: %s", message.c_str());
        return nullptr;
    }
    return t_disassembly.c_str();
}
