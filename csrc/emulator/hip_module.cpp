// Modules, functions and launches.
#include "hip_state.h"
#include <algorithm>
#include <cstdio>
#include <set>

namespace moon {

namespace {

struct Module;
struct Function {
    std::shared_ptr<Program> program;
    const Kernel *kernel = nullptr;
    int device = 0;
};
struct Module {
    std::shared_ptr<Program> program;
    int device = 0;
    std::vector<Function *> functions;
};

std::mutex g_lock, g_launch;
std::set<Module *> &modules() {
    static auto *s = new std::set<Module *>;
    return *s;
}
std::set<Function *> &functions() {
    static auto *s = new std::set<Function *>;
    return *s;
}

int load(const char *call, void **out, const std::vector<u8> &image) {
    int error = 0;
    std::string message;
    int device = hip_device();
    auto program = load_program(image.data(), image.size(), kDevices[device].arch, &error, &message);
    if (!program) return hip_fail(error, "%s: %s", call, message.c_str());
    std::lock_guard<std::mutex> hold(g_lock);
    Module *m = new Module;
    m->program = program, m->device = device;
    modules().insert(m);
    *out = m;
    return 0;
}

// Both copies of the arguments end here: the buffer that `extra` names, or the pointers of kernelParams.
int gather_arguments(const Kernel &k, void **params, void **extra, std::vector<u8> *out) {
    out->assign(std::max<u32>(k.kernarg_size, k.explicit_size), 0);
    if (params && extra) return hip_fail(1, "hipModuleLaunchKernel: kernelParams and extra are both given");
    if (!params && !extra) {
        if (k.explicit_size == 0) return 0;
        return hip_fail(1, "hipModuleLaunchKernel: kernel %s takes %u bytes of arguments, none are given",
                        k.name.c_str(), k.explicit_size);
    }
    if (params) {
        size_t n = 0;
        for (const KernelArg &a : k.args) {
            if (a.value_kind.compare(0, 7, "hidden_") == 0) continue;
            if (!params[n]) return hip_fail(1, "hipModuleLaunchKernel: kernelParams[%zu] is null", n);
            if (u64(a.offset) + a.size > out->size())
                return hip_fail(
                    1,
                    "hipModuleLaunchKernel: the metadata of kernel %s places an argument outside its kernarg segment",
                    k.name.c_str());
            std::memcpy(out->data() + a.offset, params[n++], a.size);
        }
        return 0;
    }
    if (extra[0] != reinterpret_cast<void *>(1) || extra[2] != reinterpret_cast<void *>(2) ||
        extra[4] != reinterpret_cast<void *>(3) || !extra[1] || !extra[3])
        return hip_fail(1, "hipModuleLaunchKernel: extra must be {BUFFER_POINTER, buffer, BUFFER_SIZE, &size, END}");
    size_t given = *static_cast<size_t *>(extra[3]);
    if (given < k.explicit_size)
        return hip_fail(1, "hipModuleLaunchKernel: kernel %s takes %u bytes of arguments, the kernarg buffer has %zu",
                        k.name.c_str(), k.explicit_size, given);
    if (given > (1u << 20)) return hip_fail(1, "hipModuleLaunchKernel: a kernarg buffer of %zu bytes", given);
    if (given > out->size()) out->resize(given);
    std::memcpy(out->data(), extra[1], given);
    return 0;
}

// The implicit arguments of code object v5 and v6.
void hidden_arguments(const Kernel &k, const u32 *grid, const u32 *block, u32 dynamic_lds, std::vector<u8> *out) {
    auto put = [&](const KernelArg &a, u64 value) {
        if (a.size <= 8 && u64(a.offset) + a.size <= out->size()) std::memcpy(out->data() + a.offset, &value, a.size);
    };
    for (const KernelArg &a : k.args) {
        const std::string &kind = a.value_kind;
        if (kind.compare(0, 7, "hidden_") != 0) continue;
        u32 axis = kind.back() == 'y' ? 1 : kind.back() == 'z' ? 2 : 0;
        if (kind.compare(0, 19, "hidden_block_count_") == 0)
            put(a, grid[axis]);
        else if (kind.compare(0, 18, "hidden_group_size_") == 0)
            put(a, block[axis]);
        else if (kind == "hidden_grid_dims")
            put(a, grid[2] * block[2] > 1 ? 3 : grid[1] * block[1] > 1 ? 2 : 1);
        else if (kind == "hidden_dynamic_lds_size")
            put(a, dynamic_lds);
        else if (kind == "hidden_private_base")
            put(a, 0x00020000u);
        else if (kind == "hidden_shared_base")
            put(a, 0x00010000u);
        else  // remainders, global offsets, and pointers to services that are not here
            put(a, 0);
    }
}

int check_launch(const Function *f, const u32 *grid, const u32 *block, u32 lds, const void *stream) {
    const Kernel &k = *f->kernel;
    const char *name = k.name.c_str();
    u64 threads = u64(block[0]) * block[1] * block[2];
    for (int d = 0; d < 3; d++) {
        if (grid[d] == 0 || block[d] == 0)
            return hip_fail(
                1, "hipModuleLaunchKernel: kernel %s: grid (%u, %u, %u) and block (%u, %u, %u) must not have a zero",
                name, grid[0], grid[1], grid[2], block[0], block[1], block[2]);
        if (block[d] > 1024)
            return hip_fail(1, "hipModuleLaunchKernel: kernel %s: block dimension %u is over 1024", name, block[d]);
        if (u64(grid[d]) * block[d] > 0xffffffffull)
            return hip_fail(
                1, "hipModuleLaunchKernel: kernel %s: grid dimension %u times block dimension %u is over 2^32 - 1",
                name, grid[d], block[d]);
    }
    if (threads > 1024)
        return hip_fail(1, "hipModuleLaunchKernel: kernel %s: a block of %llu threads is over 1024", name,
                        (unsigned long long)threads);
    if (threads > k.max_threads)
        return hip_fail(
            719, "hipModuleLaunchKernel: kernel %s: a block of %llu threads is over the %u that it was built for", name,
            (unsigned long long)threads, k.max_threads);
    u32 limit = kDevices[f->device].lds_bytes;
    if (lds > limit)
        return hip_fail(1,
                        "hipModuleLaunchKernel: kernel %s: %u bytes of dynamic LDS are over the %u of a compute unit",
                        name, lds, limit);
    if (u64(lds) + k.lds_bytes > limit)
        return hip_fail(
            1,
            "hipModuleLaunchKernel: kernel %s: %u static and %u dynamic bytes of LDS are over the %u of a compute unit",
            name, k.lds_bytes, lds, limit);
    if (!k.has_args)
        return hip_fail(701, "hipModuleLaunchKernel: kernel %s: the code object's metadata has no .args", name);
    if (!hip_stream_known(stream)) return hip_fail(400, "hipModuleLaunchKernel: %p is not a stream", stream);
    return 0;
}

int launch(Function *handle, const u32 *grid, const u32 *block, u32 lds, const void *stream, void **params,
           void **extra) {
    Function f;
    {
        std::lock_guard<std::mutex> hold(g_lock);
        if (!functions().count(handle))
            return hip_fail(400, "hipModuleLaunchKernel: %p is not a function", static_cast<void *>(handle));
        f = *handle;
    }
    int e = check_launch(&f, grid, block, lds, stream);
    std::vector<u8> kernarg;
    if (!e) e = gather_arguments(*f.kernel, params, extra, &kernarg);
    if (e) return e;
    hidden_arguments(*f.kernel, grid, block, lds, &kernarg);
    std::lock_guard<std::mutex> one_at_a_time(g_launch);
    void *segment = memory_allocate(f.device, kernarg.size() + 64, false, false);
    if (!segment) return hip_fail(2, "hipModuleLaunchKernel: out of memory");
    std::memcpy(segment, kernarg.data(), kernarg.size());
    auto l = std::make_shared<Launch>();
    l->program = f.program, l->kernel = f.kernel, l->device = &kDevices[f.device];
    l->options = options();
    for (int d = 0; d < 3; d++) l->grid[d] = grid[d], l->block[d] = block[d];
    l->dynamic_lds = lds;
    l->kernarg = reinterpret_cast<u64>(segment), l->kernarg_size = u32(kernarg.size());
    l->ranges = memory_ranges(f.device);
    try {
        e = run_launch(*l);
    } catch (const std::exception &x) {
        e = 2;
        l->message = std::string("kernel ") + f.kernel->name + ": " + x.what();
    }
    memory_free(segment, false);
    hip_last_launch() = l;
    return e ? hip_fail(e, "%s", l->message.c_str()) : 0;
}

}  // namespace
}  // namespace moon

using namespace moon;

MOON_EXPORT int hipModuleLoadData(void **out, const void *image) {
    if (!out || !image) return hip_fail(1, "hipModuleLoadData: a pointer is null");
    std::vector<u8> copy;
    std::string why;
    if (!copy_image(image, kDevices[hip_device()].arch, &copy, &why))
        return hip_fail(200, "hipModuleLoadData: the code object cannot be loaded: %s", why.c_str());
    return load("hipModuleLoadData", out, copy);
}
MOON_EXPORT int hipModuleLoadDataEx(void **out, const void *image, unsigned, int *, void **) {
    return hipModuleLoadData(out, image);
}

MOON_EXPORT int hipModuleLoad(void **out, const char *path) {
    if (!out || !path) return hip_fail(1, "hipModuleLoad: a pointer is null");
    FILE *f = std::fopen(path, "rb");
    if (!f) return hip_fail(301, "hipModuleLoad: %s: no such file, or it cannot be read", path);
    std::vector<u8> data;
    u8 block[65536];
    for (size_t n; (n = std::fread(block, 1, sizeof(block), f)) > 0;) data.insert(data.end(), block, block + n);
    std::fclose(f);
    const u8 *inner = nullptr;
    size_t size = 0;
    if (unbundle(data.data(), data.size(), kDevices[hip_device()].arch, &inner, &size))
        data = std::vector<u8>(inner, inner + size);
    return load("hipModuleLoad", out, data);
}

MOON_EXPORT int hipModuleUnload(void *module) {
    std::lock_guard<std::mutex> hold(g_lock);
    Module *m = static_cast<Module *>(module);
    if (!modules().erase(m)) return hip_fail(400, "hipModuleUnload: %p is not a module", module);
    for (Function *f : m->functions) {
        functions().erase(f);
        delete f;
    }
    delete m;
    return 0;
}

MOON_EXPORT int hipModuleGetFunction(void **out, void *module, const char *name) {
    if (!out || !name) return hip_fail(1, "hipModuleGetFunction: a pointer is null");
    std::lock_guard<std::mutex> hold(g_lock);
    Module *m = static_cast<Module *>(module);
    if (!modules().count(m)) return hip_fail(400, "hipModuleGetFunction: %p is not a module", module);
    for (const Kernel &k : m->program->kernels) {
        if (k.name != name) continue;
        for (Function *f : m->functions)
            if (f->kernel == &k) {
                *out = f;
                return 0;
            }
        Function *f = new Function{m->program, &k, m->device};
        m->functions.push_back(f);
        functions().insert(f);
        *out = f;
        return 0;
    }
    return hip_fail(500, "hipModuleGetFunction: the code object has no kernel %s", name);
}

MOON_EXPORT int hipFuncGetAttribute(int *out, int key, void *function) {
    if (!out) return hip_fail(1, "hipFuncGetAttribute: the result pointer is null");
    std::lock_guard<std::mutex> hold(g_lock);
    Function *f = static_cast<Function *>(function);
    if (!functions().count(f)) return hip_fail(98, "hipFuncGetAttribute: %p is not a function", function);
    const Kernel &k = *f->kernel;
    switch (key) {
        case 0: *out = int(k.max_threads); return 0;
        case 1: *out = int(k.lds_bytes); return 0;
        case 2:
        case 7: *out = 0; return 0;
        case 3: *out = int(k.scratch_bytes); return 0;
        case 4: *out = int(k.vgprs); return 0;
        case 5:
        case 6: *out = f->device == 0 ? 942 : 950; return 0;
        case 8: *out = int(kDevices[f->device].lds_bytes - k.lds_bytes); return 0;
        default: return hip_fail(1, "hipFuncGetAttribute: attribute %d is not known here", key);
    }
}
MOON_EXPORT int hipFuncSetAttribute(const void *, int, int) { return 0; }

MOON_EXPORT int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                      unsigned bz, unsigned lds, void *stream, void **params, void **extra) {
    u32 grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(static_cast<Function *>(function), grid, block, lds, stream, params, extra);
}
