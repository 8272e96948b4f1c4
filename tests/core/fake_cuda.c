// A CUDA driver for tests: host memory for the memory of two devices, and the sm_90a kernels in plain C, which read q, k
// and v through the tensor maps of their argument struct, as csrc/kernels/common/sm90a_args.def lays it out.
// It is strict where a real driver is: contexts, alignments, shared memory above 48 KiB, clusters.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIGHT, NOTHING, WRONG, REFUSE, WRONG_LSE };
enum { SUCCESS, INVALID_VALUE, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE, INVALID_IMAGE = 200, INVALID_CONTEXT,
       NO_BINARY = 209, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500,
       LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900 };
#define DEVICES 2
#define ROWS rows_of_a_block
#define MAGIC 0x4d4f4f4eu

typedef struct { int device; } Context;
typedef struct { Context *context; } Module;
typedef struct { Context *context; char name[64]; unsigned dynamic; int ready; } Function;
typedef struct { uint64_t address, magic, dims[4], strides[3], box[4], params, unused[2]; } Map;

static int mode, launches, attempts, live, initialized, refuse_cubin, major_ = 9, minor_, clusters = 66, devices = DEVICES;
static int64_t last_stream;
static unsigned last_grid, last_shared, last_device;
static Context contexts[DEVICES] = {{0}, {1}};
static int retained[DEVICES];
static Context other_context = {1};
static __thread Context *stack[8];
static __thread int depth, capture_mode;
// 192 rows a block of a cluster; set by each launch.
static __thread int rows_of_a_block;
static int captured;

void fakeCapturedElsewhere(int on) { captured = on; }
int fakeCaptureMode(void) { return capture_mode; }
void fakeMode(int m) { mode = m; }
void fakeRefuseCubin(int r) { refuse_cubin = r; }
void fakeCapability(int major, int minor) { major_ = major, minor_ = minor; }
void fakeDevices(int n) { devices = n; }
void fakeClusters(int n) { clusters = n; }
// The kernels' own sources, compiled for the host (tests/core/hopper), instead of the plain C below; null: no more.
static int (*own_kernels)(const char *name, const void *arguments, unsigned blocks);
int fakeKernels(const char *path) {
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
    own_kernels = library ? (int (*)(const char *, const void *, unsigned))dlsym(library, "moonHopperLaunch") : 0;
    return !path || own_kernels;
}
int fakeLaunches(void) { return launches; }
int fakeAttempts(void) { return attempts; }
int fakeAllocations(void) { return live; }
int64_t fakeStream(void) { return last_stream; }
unsigned fakeGrid(void) { return last_grid; }
unsigned fakeShared(void) { return last_shared; }
unsigned fakeDevice(void) { return last_device; }
int fakeRetained(int device) { return retained[device]; }
int fakeDepth(void) { return depth; }
void fakeForeignContext(int on) { on ? (stack[depth++] = &other_context) : (stack[--depth] = 0); }
int fakeCurrent(void) { return depth == 0 || !stack[depth - 1] ? -1 : stack[depth - 1] == &other_context ? 9 : stack[depth - 1]->device; }
void fakeDropContexts(void) { depth = 0; }

static Context *current(void) { return depth ? stack[depth - 1] : 0; }
#define NEED_INIT do { if (!initialized) return NOT_INITIALIZED; } while (0)
#define NEED_CONTEXT do { if (!initialized) return NOT_INITIALIZED; if (!current()) return INVALID_CONTEXT; } while (0)

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : devices ? (initialized = 1, SUCCESS) : NO_DEVICE; }
int cuDriverGetVersion(int *v) { return *v = 12090, SUCCESS; }
int cuDeviceGetCount(int *n) { NEED_INIT; return *n = devices, SUCCESS; }
int cuDeviceGet(int *d, int ordinal) { NEED_INIT; return ordinal < 0 || ordinal >= devices ? INVALID_DEVICE : (*d = ordinal + 40, SUCCESS); }
int cuDeviceGetName(char *name, int size, int device) { NEED_INIT; return snprintf(name, size, "Fake H200 %d", device - 40), SUCCESS; }
int cuDeviceGetAttribute(int *v, int attribute, int device) {
    NEED_INIT;
    if (device < 40 || device >= 40 + DEVICES) return INVALID_DEVICE;
    switch (attribute) {
    case 10: *v = 32; break;
    case 16: *v = 132; break;
    case 75: *v = major_; break;
    case 76: *v = minor_; break;
    case 97: *v = 232448; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(Context **c, int device) {
    NEED_INIT;
    if (device < 40 || device >= 40 + DEVICES) return INVALID_DEVICE;
    return retained[device - 40]++, *c = &contexts[device - 40], SUCCESS;
}
int cuCtxGetCurrent(Context **c) { NEED_INIT; return *c = current(), SUCCESS; }
int cuCtxSetCurrent(Context *c) { NEED_INIT; if (!depth) depth = 1; return stack[depth - 1] = c, SUCCESS; }
int cuCtxPushCurrent_v2(Context *c) { NEED_INIT; return depth == 8 ? INVALID_VALUE : (stack[depth++] = c, SUCCESS); }
int cuCtxPopCurrent_v2(Context **c) { NEED_INIT; return depth ? (*c = stack[--depth], SUCCESS) : INVALID_CONTEXT; }
int cuThreadExchangeStreamCaptureMode(int *m) { int old = capture_mode; return capture_mode = *m, *m = old, SUCCESS; }
// While some thread captures a graph, others may do these things only where they said that they mean no harm.
#define NO_CAPTURE do { if (captured && capture_mode != 2) return CAPTURE_UNSUPPORTED; } while (0)
int cuCtxSynchronize(void) { NEED_CONTEXT; NO_CAPTURE; return SUCCESS; }

int cuMemAlloc_v2(void **p, size_t n) { NEED_CONTEXT; NO_CAPTURE; return n ? (*p = aligned_alloc(256, (n + 255) / 256 * 256), live++, SUCCESS) : INVALID_VALUE; }
int cuMemFree_v2(void *p) { NEED_CONTEXT; return free(p), live--, SUCCESS; }
int cuMemcpyHtoD_v2(void *d, const void *h, size_t n) { NEED_CONTEXT; return memcpy(d, h, n), SUCCESS; }
int cuMemcpyDtoH_v2(void *h, const void *d, size_t n) { NEED_CONTEXT; return memcpy(h, d, n), SUCCESS; }
int cuMemsetD8_v2(void *d, unsigned char v, size_t n) { NEED_CONTEXT; return memset(d, v, n), SUCCESS; }

static int new_module(Module **m) { return (*m = malloc(sizeof(Module)))->context = current(), SUCCESS; }
int cuModuleLoadData(Module **m, const void *image) {
    NEED_CONTEXT;
    NO_CAPTURE;
    if (memcmp(image, "\177ELF", 4)) return INVALID_IMAGE;
    return refuse_cubin ? refuse_cubin : new_module(m);
}
int cuModuleLoadDataEx(Module **m, const char *image, unsigned count, int *options, void **values) {
    NEED_CONTEXT;
    if (count != 2 || options[0] != 5 || options[1] != 6 || (size_t)values[1] < 64) return INVALID_VALUE;
    if (strncmp(image, ".version 8.0\n", 13)) {
        snprintf(values[0], (size_t)values[1], "line 1; error:\n  no version");
        return INVALID_PTX;
    }
    return new_module(m);
}
int cuModuleUnload(Module *m) { NEED_CONTEXT; return free(m), SUCCESS; }
int cuModuleGetFunction(Function **f, Module *m, const char *name) {
    NEED_CONTEXT;
    if (m->context != current()) return INVALID_HANDLE;
    if (strstr(name, "missing")) return NOT_FOUND;
    *f = calloc(1, sizeof(Function));
    (*f)->context = m->context;
    strncpy((*f)->name, name, 63);
    return SUCCESS;
}
int cuFuncGetAttribute(int *v, int attribute, Function *f) {
    NEED_CONTEXT;
    return attribute ? INVALID_VALUE : (f->ready = 1, *v = 512, SUCCESS);
}
int cuFuncSetAttribute(Function *f, int attribute, int value) {
    NEED_CONTEXT;
    return attribute != 8 || value > 232448 ? INVALID_VALUE : (f->dynamic = value, SUCCESS);
}
typedef struct { int id, pad; unsigned x, y, z; char unused[52]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
int cuOccupancyMaxActiveClusters(int *n, Function *f, const Config *c) {
    NEED_CONTEXT;
    if (f->context != current()) return INVALID_HANDLE;
    if (c->count != 1 || c->attributes->id != 4 || c->attributes->x != 2 || c->attributes->y != 1 || c->attributes->z != 1) return INVALID_VALUE;
    if (c->grid[0] % 2 || !c->grid[0] || c->block[0] != 512 || c->shared > f->dynamic) return INVALID_VALUE;
    return *n = clusters, SUCCESS;
}

int cuTensorMapEncodeTiled(Map *m, int type, uint32_t rank, uint64_t address, const uint64_t *dims, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    NEED_CONTEXT;
    if ((uintptr_t)m % 64 || type != 9 || rank != 4 || !address || address % 16 || interleave || swizzle != 3 || promotion != 3 || fill) return INVALID_VALUE;
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 4; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
        m->dims[i] = dims[i], m->box[i] = box[i];
    }
    for (int i = 0; i < 3; i++) {
        if (strides[i] % 16 || strides[i] >= 1ull << 40) return INVALID_VALUE;
        m->strides[i] = strides[i];
    }
    if (box[0] * 2 > 128) return INVALID_VALUE;
    return m->address = address, m->magic = MAGIC, SUCCESS;
}
int cuTensorMapReplaceAddress(Map *m, uint64_t address) {
    NEED_CONTEXT;
    return (uintptr_t)m % 64 || m->magic != MAGIC || address % 16 ? INVALID_VALUE : (m->address = address, SUCCESS);
}

typedef struct {
    Map q_map, k_map, v_map;
    uint64_t q, k, o, lse, cu_q, cu_k, seqlens_k, workspace;
    int64_t qb, qh, qr, kb, kh, kr, ob, oh, orow, lb, lh;
    int32_t batch, heads, heads_kv, sq, sk, causal, first_split, splits;
    float scale;
} __attribute__((aligned(64))) Args;
_Static_assert(sizeof(Args) == 576, "the layout of sm90a_args.def");

// One part of a row block: its rows of O, then their sums, then their references; in as much room as the kernel's take.
#define PART (ROWS / 64 * 34816 / 4)

static float value(uint16_t word) {
    uint32_t bits = (uint32_t)word << 16;
    float f;
    return memcpy(&f, &bits, 4), f;
}
// 128 elements of a tensor; what lies beyond it is zero.
static const uint16_t *row(const Map *m, uint64_t index, int head, int batch) {
    static const uint16_t zeros[128];
    if (index >= m->dims[1] || (uint64_t)head >= m->dims[2] || (uint64_t)batch >= m->dims[3]) return zeros;
    return (uint16_t *)(m->address + index * m->strides[0] + head * m->strides[1] + batch * m->strides[2]);
}
static void store(uint64_t base, int64_t i, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    ((uint16_t *)base)[i] = (uint16_t)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
typedef struct { int block, head, batch, map_batch, rows, keys; int64_t row0, key0; } Where;
static Where where(const Args *a, int block) {
    int per_head = (a->sq + ROWS - 1) / ROWS;
    Where w = {block % per_head, block / per_head % a->heads, block / per_head / a->heads, 0, a->sq, a->sk, 0, 0};
    w.map_batch = w.batch;
    if (a->cu_q) {
        const int32_t *q = (int32_t *)a->cu_q, *k = (int32_t *)a->cu_k;
        w.row0 = q[w.batch], w.rows = q[w.batch + 1] - q[w.batch];
        w.key0 = k[w.batch], w.keys = k[w.batch + 1] - k[w.batch];
        w.map_batch = 0;
    }
    if (a->seqlens_k && ((int32_t *)a->seqlens_k)[w.batch] < w.keys) w.keys = ((int32_t *)a->seqlens_k)[w.batch];
    return w;
}
static void finish(const Args *a, Where w, int r, const float *o, float sum, float reference) {
    for (int d = 0; d < 128; d++) {
        float x = sum > 0 ? o[d] / sum : 0;
        if (mode == WRONG && r == w.rows - 1) x *= 1.25f;
        store(a->o, (a->cu_q ? 0 : w.batch) * a->ob + w.head * a->oh + (w.row0 + r) * a->orow + d, x);
    }
    if (a->lse)
        ((float *)a->lse)[(a->cu_q ? 0 : w.batch) * a->lb + w.head * a->lh + w.row0 + r] =
            sum > 0 ? reference + logf(sum) + (mode == WRONG_LSE) : -INFINITY;
}
static void forward(const Args *a, int block, int part, int parts, float *partial) {
    Where w = where(a, block);
    int each = ((a->sk + 79) / 80 + parts - 1) / parts * 80, first = part * each;
    for (int i = 0; i < ROWS; i++) {
        int r = w.block * ROWS + i;
        if (r >= w.rows) break;
        int last = w.keys;
        if (a->causal && r + w.keys - w.rows + 1 < last) last = r + w.keys - w.rows + 1;
        if (parts > 1 && first + each < last) last = first + each;
        float reference = -INFINITY, sum = 0, o[128] = {0};
        int hk = w.head / (a->heads / a->heads_kv);
        const uint16_t *q = row(&a->q_map, w.row0 + r, w.head, w.map_batch);
        for (int c = first; c < last; c++) {
            const uint16_t *k = row(&a->k_map, w.key0 + c, hk, w.map_batch), *v = row(&a->v_map, w.key0 + c, hk, w.map_batch);
            float s = 0;
            for (int d = 0; d < 128; d++) s += value(q[d]) * value(k[d]);
            s *= a->scale;
            float next = fmaxf(reference, s), old = expf(reference - next), p = expf(s - next);
            sum = sum * old + p, reference = next;
            for (int d = 0; d < 128; d++) o[d] = o[d] * old + p * value(v[d]);
        }
        if (partial) {
            memcpy(partial + i * 128, o, sizeof o);
            partial[ROWS * 128 + i] = sum, partial[ROWS * 129 + i] = reference;
        } else {
            finish(a, w, r, o, sum, reference);
        }
    }
}
static void merge(const Args *a, int block, const float *parts) {
    Where w = where(a, block);
    for (int i = 0; i < ROWS && w.block * ROWS + i < w.rows; i++) {
        float reference = -INFINITY, sum = 0, o[128] = {0};
        for (int p = 0; p < a->splits; p++) reference = fmaxf(reference, parts[p * PART + ROWS * 129 + i]);
        for (int p = 0; p < a->splits; p++) {
            const float *part = parts + p * PART;
            float factor = part[ROWS * 128 + i] > 0 ? expf(part[ROWS * 129 + i] - reference) : 0;
            sum += factor * part[ROWS * 128 + i];
            for (int d = 0; d < 128; d++) o[d] += factor * part[i * 128 + d];
        }
        finish(a, w, w.block * ROWS + i, o, sum, reference);
    }
}

int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
    __atomic_add_fetch(&attempts, 1, __ATOMIC_SEQ_CST);
    NEED_CONTEXT;
    if (f->context != current()) return INVALID_HANDLE;
    int merging = strstr(f->name, "merge") != 0, cluster = strstr(f->name, "solo") || strstr(f->name, "short") ? 1 : 2;
    rows_of_a_block = 192 * cluster;
    if (!f->ready || !params || extra || gy != 1 || gz != 1 || !gx || by != 1 || bz != 1 || mode == REFUSE) return INVALID_VALUE;
    if (bx != (merging ? 128 : 512) || shared > (f->dynamic > 49152 ? f->dynamic : 49152)) return INVALID_VALUE;
    if (!merging && (gx % cluster || shared != f->dynamic)) return INVALID_VALUE;
    Args a;
    memcpy(&a, params[0], sizeof a);
    int per_head = (a.sq + ROWS - 1) / ROWS, blocks = per_head * a.heads * a.batch, split = blocks - a.first_split;
    const Map *maps[] = {&a.q_map, &a.k_map, &a.v_map};
    for (int i = 0; i < 3; i++)
        if (maps[i]->magic != MAGIC || maps[i]->dims[0] != 128 || maps[i]->box[0] != 64 || maps[i]->box[1] != (i && !strstr(f->name, "short") ? 80 : 64)) return INVALID_VALUE;
    if (a.q_map.address != a.q || a.k_map.address != a.k) return INVALID_VALUE;
    if ((a.splits > 1) != (a.workspace != 0) || a.splits < 1 || split < 0 || (a.splits == 1 && split)) return INVALID_VALUE;
    if (merging && gx != (unsigned)(split * ROWS / 64)) return INVALID_VALUE;
    if (strstr(f->name, "causal") && !a.causal) return INVALID_VALUE;
    last_stream = (int64_t)stream, last_grid = gx, last_shared = shared, last_device = current()->device;
    __atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST);
    if (mode == NOTHING) return SUCCESS;
    if (own_kernels) return own_kernels(f->name, params[0], gx) == 1 ? SUCCESS : LAUNCH_FAILED;
    if (merging) {
        for (int i = 0; i < split; i++) merge(&a, a.first_split + i, (float *)a.workspace + (size_t)i * a.splits * PART);
        return SUCCESS;
    }
    int work = a.first_split + split * a.splits;
    int running = gx / cluster;
    if (running > work) return INVALID_VALUE;
    for (int first = 0; first < running; first++)
        for (int item = first; item < work; item += running) {
            int part = item - a.first_split;
            if (part < 0) forward(&a, item, 0, 1, 0);
            else forward(&a, a.first_split + part / a.splits, part % a.splits, a.splits, (float *)a.workspace + (size_t)part * PART);
        }
    return SUCCESS;
}
int cuStreamCreate(void **s, unsigned flags) { NEED_CONTEXT; return flags == 1 ? (*s = malloc(8), SUCCESS) : INVALID_VALUE; }
int cuStreamDestroy_v2(void *s) { NEED_CONTEXT; return free(s), SUCCESS; }
int cuStreamSynchronize(void *s) { NEED_CONTEXT; return (void)s, SUCCESS; }
int cuEventCreate(void **e, unsigned flags) { NEED_CONTEXT; return (void)flags, *e = malloc(8), SUCCESS; }
int cuEventDestroy_v2(void *e) { NEED_CONTEXT; return free(e), SUCCESS; }
int cuEventRecord(void *e, void *s) { NEED_CONTEXT; return (void)e, (void)s, SUCCESS; }
int cuEventSynchronize(void *e) { NEED_CONTEXT; return (void)e, SUCCESS; }
int cuEventElapsedTime(float *ms, void *a, void *b) { NEED_CONTEXT; return (void)a, (void)b, *ms = 1, SUCCESS; }
int cuGetErrorName(int e, const char **s) {
    *s = e == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : e == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : e == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX" : e == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : 0;
    return *s ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int e, const char **s) { return *s = e == INVALID_VALUE ? "invalid argument" : 0, *s ? SUCCESS : INVALID_VALUE; }
