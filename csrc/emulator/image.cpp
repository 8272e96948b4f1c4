// Finding out how large a code object at an address is without trusting it, and opening clang offload bundles.
#include "hip_state.h"
#include <algorithm>
#include <elf.h>
#include <sys/uio.h>
#include <unistd.h>

namespace moon {

namespace {

constexpr size_t kLargest = size_t(1) << 30;

bool safe_read(u64 address, size_t size, u8 *out) {
    while (size > 0) {
        size_t n = std::min<size_t>(size, 1 << 20);
        iovec to{out, n}, from{reinterpret_cast<void *>(address), n};
        ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (got <= 0) return false;
        out += got, address += u64(got), size -= size_t(got);
    }
    return true;
}

// The end of an ELF file: its farthest section, segment or table.
bool elf_size(u64 base, size_t *size, std::string *why) {
    Elf64_Ehdr h;
    if (!safe_read(base, sizeof(h), reinterpret_cast<u8 *>(&h)) || std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0) {
        *why = "it is not an ELF file";
        return false;
    }
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != 224 || h.e_shentsize != sizeof(Elf64_Shdr) ||
        h.e_shoff > kLargest) {
        *why = "it is not a 64-bit AMDGPU ELF file";
        return false;
    }
    size_t end = size_t(h.e_shoff) + size_t(h.e_shnum) * sizeof(Elf64_Shdr);
    std::vector<Elf64_Shdr> s(h.e_shnum);
    if (h.e_shnum == 0 ||
        !safe_read(base + h.e_shoff, s.size() * sizeof(Elf64_Shdr), reinterpret_cast<u8 *>(s.data()))) {
        *why = "it is truncated: its section headers cannot be read";
        return false;
    }
    if (s[0].sh_type != SHT_NULL || s[0].sh_offset != 0 || h.e_shstrndx >= h.e_shnum ||
        s[h.e_shstrndx].sh_type != SHT_STRTAB) {
        *why = "it is truncated or damaged: its section headers make no sense";
        return false;
    }
    for (const Elf64_Shdr &x : s)
        if (x.sh_type != SHT_NOBITS) {
            if (x.sh_offset > kLargest || x.sh_size > kLargest) {
                *why = "it is truncated or damaged: its section headers make no sense";
                return false;
            }
            end = std::max<size_t>(end, x.sh_offset + x.sh_size);
        }
    // Before memory is made for it: a damaged header may claim gigabytes.
    u8 last;
    if (end == 0 || !safe_read(base + end - 1, 1, &last)) {
        *why = "it is truncated: part of it cannot be read";
        return false;
    }
    *size = end;
    return true;
}

bool copy_elf(u64 base, std::vector<u8> *out, std::string *why) {
    size_t size = 0;
    if (!elf_size(base, &size, why)) return false;
    out->resize(size);
    if (!safe_read(base, size, out->data())) {
        *why = "it is truncated: part of it cannot be read";
        return false;
    }
    return true;
}

const char kMagic[] = "__CLANG_OFFLOAD_BUNDLE__";

}  // namespace

bool unbundle(const u8 *data, size_t size, const char *arch, const u8 **out, size_t *out_size) {
    if (size < 32 || std::memcmp(data, kMagic, 24) != 0) return false;
    u64 n, at = 32;
    std::memcpy(&n, data + 24, 8);
    for (u64 i = 0; i < n && i < 64; i++) {
        u64 head[3];
        if (at + 24 > size) return false;
        std::memcpy(head, data + at, 24);
        at += 24;
        if (head[2] > 256 || at + head[2] > size) return false;
        std::string triple(reinterpret_cast<const char *>(data + at), size_t(head[2]));
        at += head[2];
        if (triple.find(arch) != std::string::npos && head[0] <= size && head[1] <= size - head[0]) {
            *out = data + head[0];
            *out_size = size_t(head[1]);
            return true;
        }
    }
    return false;
}

bool copy_image(const void *image, const char *arch, std::vector<u8> *out, std::string *why) {
    u64 base = reinterpret_cast<u64>(image);
    u8 magic[32];
    if (safe_read(base, 32, magic) && std::memcmp(magic, kMagic, 24) == 0) {
        // Entries name the offsets; the one wanted is an ELF file of its own.
        std::vector<u8> head(4096);
        size_t have = head.size();
        while (have > 32 && !safe_read(base, have, head.data())) have /= 2;
        u64 n, at = 32;
        std::memcpy(&n, head.data() + 24, 8);
        for (u64 i = 0; i < n && i < 32 && at + 24 <= have; i++) {
            u64 e[3];
            std::memcpy(e, head.data() + at, 24);
            at += 24;
            if (e[2] > 256 || at + e[2] > have) break;
            std::string triple(reinterpret_cast<const char *>(head.data() + at), size_t(e[2]));
            at += e[2];
            if (triple.find(arch) != std::string::npos) return copy_elf(base + e[0], out, why);
        }
        *why = std::string("the offload bundle has no code object for ") + arch;
        return false;
    }
    return copy_elf(base, out, why);
}

}  // namespace moon
