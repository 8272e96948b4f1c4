// Code objects: ELF, AMDGPU metadata and kernel descriptors, all bounds checked.
#include "memory.h"
#include "msgpack.h"
#include <algorithm>
#include <elf.h>

namespace moon {

void run_not_modelled(Wave &w, const Op &op);

namespace {

constexpr int kBadImage = 200, kNoBinary = 209;  // hipErrorInvalidImage, hipErrorNoBinaryForGpu
constexpr u32 kLargestKernarg = 1u << 20;

struct Image {
    const u8 *data;
    size_t size;
    template <class T>
    const T *at(u64 off, u64 n = 1) const {
        return off <= size && n <= (size - off) / sizeof(T) ? reinterpret_cast<const T *>(data + off) : nullptr;
    }
    std::string text(u64 off, u64 limit) const {
        std::string s;
        for (u64 i = off; i < limit && i < size && data[i]; i++) s += char(data[i]);
        return s;
    }
};

struct Symbol {
    std::string name;
    u64 value = 0, size = 0;
    u8 type = 0;
};

// "gfx942" from e_flags; the code object's features must suit a device that runs sramecc+ and xnack-.
const char *check_flags(u32 flags, std::string *why) {
    u32 mach = flags & 0xff, xnack = flags & 0x300, ecc = flags & 0xc00;
    const char *arch = mach == 0x4c ? "gfx942" : mach == 0x4f ? "gfx950" : mach == 0x5f ? "gfx9-4-generic" : nullptr;
    if (!arch)
        *why = flags == 0 ? "its ELF header names no architecture" : "it is not for gfx942, gfx950 or gfx9-4-generic";
    else if (xnack == 0x300)
        *why = "it needs xnack+", arch = nullptr;
    else if (ecc == 0x800)
        *why = "it needs sramecc-", arch = nullptr;
    return arch;
}

// False: an argument lies where no kernarg segment reaches.
bool read_args(const Value &kernel, Kernel *k) {
    const Value *args = kernel.find(".args");
    k->has_args = args && args->type == Value::ARRAY;
    if (!k->has_args) return true;
    for (const Value &a : args->items) {
        KernelArg arg;
        if (const Value *kind = a.find(".value_kind")) arg.value_kind = kind->text;
        arg.offset = u32(a.integer(".offset", 0));
        arg.size = u32(a.integer(".size", 0));
        if (u64(arg.offset) + arg.size > kLargestKernarg) return false;
        if (arg.value_kind.compare(0, 7, "hidden_") != 0)
            k->explicit_size = std::max(k->explicit_size, arg.offset + arg.size);
        k->args.push_back(arg);
    }
    return true;
}

bool read_kernel(const Value &meta, const Image &img, const std::vector<Symbol> &symbols, Program *p,
                 std::string *why) {
    (void)img;
    Kernel k;
    const Value *name = meta.find(".name"), *symbol = meta.find(".symbol");
    if (!name || !symbol) {
        *why = "a kernel's metadata has no name";
        return false;
    }
    k.name = name->text;
    const Symbol *kd = nullptr, *code = nullptr;
    for (const Symbol &s : symbols) {
        if (s.name == symbol->text) kd = &s;
        if (s.name == k.name && s.type == STT_FUNC) code = &s;
    }
    if (!kd || p->size < 64 || kd->value > p->size - 64) {
        *why = "kernel " + k.name + " has no descriptor";
        return false;
    }
    const u8 *d = p->base + kd->value;
    i64 entry;
    u16 half;
    k.descriptor = kd->value;
    std::memcpy(&k.lds_bytes, d, 4);
    std::memcpy(&k.scratch_bytes, d + 4, 4);
    std::memcpy(&k.kernarg_size, d + 8, 4);
    std::memcpy(&entry, d + 16, 8);
    std::memcpy(&k.rsrc3, d + 44, 4);
    std::memcpy(&k.rsrc1, d + 48, 4);
    std::memcpy(&k.rsrc2, d + 52, 4);
    std::memcpy(&half, d + 56, 2);
    k.properties = half;
    std::memcpy(&half, d + 58, 2);
    k.preload = half;
    k.entry = k.descriptor + u64(entry);
    if (k.preload & 127) k.entry += 256;  // hardware that preloads skips the prologue that loads by hand
    k.code_size = code ? code->size : 0;
    k.kernarg_size = std::max<u32>(k.kernarg_size, u32(meta.integer(".kernarg_segment_size", 0)));
    k.max_threads = u32(meta.integer(".max_flat_workgroup_size", 1024));
    k.vgprs = u32(meta.integer(".vgpr_count", 0));
    k.sgprs = u32(meta.integer(".sgpr_count", 0));
    k.agprs = u32(meta.integer(".agpr_count", 0));
    k.vgpr_spills = u32(meta.integer(".vgpr_spill_count", 0));
    k.sgpr_spills = u32(meta.integer(".sgpr_spill_count", 0));
    k.lds_bytes = std::max<u32>(k.lds_bytes, u32(meta.integer(".group_segment_fixed_size", 0)));
    if (k.kernarg_size > kLargestKernarg || k.scratch_bytes > (1u << 24) || (k.entry & 3)) {
        *why = "the descriptor of kernel " + k.name + " is not plausible";
        return false;
    }
    if (!read_args(meta, &k)) {
        *why = "the metadata of kernel " + k.name + " places an argument outside any kernarg segment";
        return false;
    }
    p->kernels.push_back(k);
    return true;
}

// ".note": name "AMDGPU", type 32, a MessagePack map.
bool find_metadata(const Image &img, u64 off, u64 size, Value *out) {
    u64 end = off + size;
    while (off + 12 <= end) {
        const u32 *h = img.at<u32>(off, 3);
        if (!h) return false;
        u64 name = off + 12, desc = name + ((u64(h[0]) + 3) & ~3ull), next = desc + ((u64(h[1]) + 3) & ~3ull);
        const u8 *d = img.at<u8>(desc, h[1]);
        if (h[2] == 32 && img.text(name, name + h[0]) == "AMDGPU" && d) return parse_msgpack(d, h[1], out);
        off = next;
    }
    return false;
}

bool relocate(const Image &img, const Elf64_Shdr &s, Program *p, const std::vector<Symbol> &symbols) {
    u64 n = s.sh_size / sizeof(Elf64_Rela);
    const Elf64_Rela *r = img.at<Elf64_Rela>(s.sh_offset, n);
    if (!r) return false;
    for (u64 i = 0; i < n; i++) {
        u64 type = ELF64_R_TYPE(r[i].r_info), sym = ELF64_R_SYM(r[i].r_info), value;
        if (p->size < 8 || r[i].r_offset > p->size - 8) return false;
        if (type == 13)  // R_AMDGPU_RELATIVE64
            value = reinterpret_cast<u64>(p->base) + u64(r[i].r_addend);
        else if (type == 3 && sym < symbols.size())  // R_AMDGPU_ABS64
            value = reinterpret_cast<u64>(p->base) + symbols[sym].value + u64(r[i].r_addend);
        else
            continue;
        std::memcpy(p->base + r[i].r_offset, &value, 8);
    }
    return true;
}

bool read_symbols(const Image &img, const Elf64_Shdr *sh, u32 n, const Elf64_Shdr &table, std::vector<Symbol> *out) {
    u64 count = table.sh_size / sizeof(Elf64_Sym);
    const Elf64_Sym *s = img.at<Elf64_Sym>(table.sh_offset, count);
    if (!s || table.sh_link >= n) return false;
    const Elf64_Shdr &strings = sh[table.sh_link];
    if (!img.at<u8>(strings.sh_offset, strings.sh_size)) return false;
    for (u64 i = 0; i < count; i++) {
        Symbol sym;
        sym.name = img.text(strings.sh_offset + s[i].st_name, strings.sh_offset + strings.sh_size);
        sym.value = s[i].st_value, sym.size = s[i].st_size, sym.type = u8(ELF64_ST_TYPE(s[i].st_info));
        out->push_back(sym);
    }
    return true;
}

// A range of registers that runs past v255 or a255: no assembler makes one.
bool leaves_file(const OpUse &u) {
    auto out = [](const RegRange &r) { return r.first % 256u + r.count > 256u; };
    return std::any_of(u.vread, u.vread + u.vreads, out) || std::any_of(u.vwrite, u.vwrite + u.vwrites, out);
}

// Decodes every executable section from its start; data between functions may leave unknown dwords, which fault if
// reached.
void decode_text(Program *p, const std::vector<Symbol> &symbols) {
    p->op_of_dword.assign(p->size / 4 + 1, -1);
    std::vector<u64> starts;
    for (const Symbol &s : symbols)
        if (s.type == STT_FUNC) starts.push_back(s.value);
    for (const Kernel &k : p->kernels) starts.push_back(k.entry);
    std::sort(starts.begin(), starts.end());
    for (const Section &t : p->text) {
        u64 at = t.begin;
        while (at + 4 <= t.end) {
            auto next = std::upper_bound(starts.begin(), starts.end(), at);
            u64 stop = next == starts.end() ? t.end : std::min(*next, t.end);
            Op op;
            int size = decode(*p, reinterpret_cast<const u32 *>(p->base + at), size_t((t.end - at) / 4), at, &op);
            if (size == 0 || at + u64(size) > std::max(stop, at + 4)) size = size == 0 ? 4 : size;
            p->op_of_dword[size_t(at / 4)] = i32(p->ops.size());
            p->ops.push_back(op);
            at += u64(size);
            if (at > stop && stop != t.end) at = stop;  // resynchronise at the next function
        }
        Op end;
        end.address = u32(t.end);
        decode(*p, nullptr, 0, t.end, &end);  // running off the end faults
        p->ops.push_back(end);
    }
    link_branches(*p);
    p->uses.reserve(p->ops.size());
    for (Op &op : p->ops) {
        p->uses.push_back(describe_use(op, p->arch_bit));
        if (leaves_file(p->uses.back())) op.run = run_not_modelled;
    }
}

}  // namespace

Program::~Program() {
    if (base) memory_free(base, false);
}

std::shared_ptr<Program> load_program(const void *data, size_t size, const char *expect_arch, int *error,
                                      std::string *message) {
    Image img{static_cast<const u8 *>(data), size};
    auto fail = [&](int code, const std::string &why) {
        *error = code;
        *message = "the code object cannot be loaded: " + why;
        return std::shared_ptr<Program>();
    };
    const Elf64_Ehdr *eh = img.at<Elf64_Ehdr>(0);
    if (!eh || std::memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0) return fail(kBadImage, "it is not an ELF file");
    if (eh->e_ident[EI_CLASS] != ELFCLASS64 || eh->e_machine != 224 || eh->e_phentsize != sizeof(Elf64_Phdr) ||
        eh->e_shentsize != sizeof(Elf64_Shdr))
        return fail(kBadImage, "it is not a 64-bit AMDGPU ELF file");
    std::string why;
    const char *arch = check_flags(eh->e_flags, &why);
    if (!arch) return fail(kNoBinary, why);
    const bool generic = std::strcmp(arch, "gfx9-4-generic") == 0;
    if (!generic && std::strcmp(arch, expect_arch) != 0)
        return fail(kNoBinary, std::string("it is for ") + arch + ", the device is " + expect_arch);
    const Elf64_Phdr *ph = img.at<Elf64_Phdr>(eh->e_phoff, eh->e_phnum);
    const Elf64_Shdr *sh = img.at<Elf64_Shdr>(eh->e_shoff, eh->e_shnum);
    if (!ph || !sh || eh->e_phnum == 0 || eh->e_shnum == 0)
        return fail(kBadImage, "it is truncated: a header table lies past its end");
    u64 span = 0;
    for (int i = 0; i < eh->e_phnum; i++)
        if (ph[i].p_type == PT_LOAD) {
            if (!img.at<u8>(ph[i].p_offset, ph[i].p_filesz) || ph[i].p_filesz > ph[i].p_memsz ||
                ph[i].p_vaddr > (1ull << 30) || ph[i].p_memsz > (1ull << 30))
                return fail(kBadImage, "it is truncated: a segment lies past its end");
            span = std::max(span, ph[i].p_vaddr + ph[i].p_memsz);
        }
    if (span == 0) return fail(kBadImage, "it has nothing to load");
    auto p = std::make_shared<Program>();
    p->arch = expect_arch;
    p->arch_bit = std::strcmp(expect_arch, "gfx950") == 0 ? GFX950 : GFX942;
    p->size = span;
    p->base = static_cast<u8 *>(memory_allocate(p->arch_bit == GFX950 ? 1 : 0, span, false, false));
    if (!p->base) return fail(2, "out of memory");
    for (int i = 0; i < eh->e_phnum; i++)
        if (ph[i].p_type == PT_LOAD) {
            std::memcpy(p->base + ph[i].p_vaddr, img.data + ph[i].p_offset, ph[i].p_filesz);
            if (ph[i].p_flags & PF_X) p->text.push_back({ph[i].p_vaddr, ph[i].p_vaddr + (ph[i].p_filesz & ~3ull)});
        }
    std::vector<Symbol> symbols, dynamic;
    Value meta;
    bool have_meta = false;
    for (u32 i = 0; i < eh->e_shnum; i++) {
        if (sh[i].sh_type == SHT_DYNSYM && !read_symbols(img, sh, eh->e_shnum, sh[i], &dynamic))
            return fail(kBadImage, "its symbol table is damaged");
        if (sh[i].sh_type == SHT_SYMTAB && !read_symbols(img, sh, eh->e_shnum, sh[i], &symbols))
            return fail(kBadImage, "its symbol table is damaged");
        if (sh[i].sh_type == SHT_NOTE && !have_meta)
            have_meta = find_metadata(img, sh[i].sh_offset, sh[i].sh_size, &meta);
    }
    for (u32 i = 0; i < eh->e_shnum; i++)
        if (sh[i].sh_type == SHT_RELA && (sh[i].sh_flags & SHF_ALLOC) && !relocate(img, sh[i], p.get(), dynamic))
            return fail(kBadImage, "a relocation is damaged");
    symbols.insert(symbols.end(), dynamic.begin(), dynamic.end());
    const Value *kernels = have_meta ? meta.find("amdhsa.kernels") : nullptr;
    if (!kernels || kernels->type != Value::ARRAY) return fail(kBadImage, "it carries no readable kernel metadata");
    for (const Value &k : kernels->items)
        if (!read_kernel(k, img, symbols, p.get(), &why)) return fail(kBadImage, why);
    decode_text(p.get(), symbols);
    for (Kernel &k : p->kernels) {
        i32 at = k.entry / 4 < p->op_of_dword.size() ? p->op_of_dword[size_t(k.entry / 4)] : -1;
        if (at < 0) return fail(kBadImage, "the entry of kernel " + k.name + " is not in its code");
        k.first_op = u32(at);
    }
    *error = 0;
    return p;
}

}  // namespace moon
