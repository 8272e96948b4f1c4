// A HIP library for tests: host memory for a device, and an attention kernel in plain C for every kernel name.
// It reads the kernarg segment as csrc/kernels/common/forward_args.def lays it out.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { RIGHT, NOTHING, WRONG, REFUSE, WRONG_LSE };
static int mode = RIGHT, launches, live_allocations, properties_wrong_arch;
static int last_error, free_error, allocations_left = -1;
// How many allocations there is memory for; below 0 any number.
void fakeMemory(int allocations) { allocations_left = allocations; }
static const char *arch_name;
static int64_t last_stream;
void fakeFreeError(int code) { free_error = code; }
// What a library might say of its device: an architecture's name, compute units and dies; null for MI300X's.
static int cu_count = 304, dies = 8;
void fakeDevice(const char *arch, int cus, int xccs) { arch_name = arch, cu_count = cus, dies = xccs; }
void fakeMode(int m) { mode = m; }
int fakeLaunches(void) { return launches; }
int fakeAllocations(void) { return live_allocations; }
int64_t fakeStream(void) { return last_stream; }
void fakeArch(int wrong) { properties_wrong_arch = wrong; }

typedef struct {
    uint64_t q, k, v, o, lse, cu_q, cu_k, seqlens_k, workspace;
    int64_t qb, qh, qr, kb, kh, kr, vb, vh, vr, ob, oh, orow, lb, lh;
    int32_t batch, heads, heads_kv, sq, sk, causal, splits;
    float scale;
} Args;

static float load(uint64_t base, int64_t i) {
    uint32_t u = (uint32_t)((uint16_t *)base)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static void store(uint64_t base, int64_t i, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    ((uint16_t *)base)[i] = (uint16_t)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

static void attention(const Args *a) {
    float *s = malloc(sizeof(float) * (size_t)a->sk);
    for (int b = 0; b < a->batch; b++)
        for (int h = 0; h < a->heads; h++)
            for (int r = 0; r < a->sq; r++) {
                int hk = h / (a->heads / a->heads_kv), keys = a->sk;
                if (a->seqlens_k && ((int32_t *)a->seqlens_k)[b] < keys) keys = ((int32_t *)a->seqlens_k)[b];
                if (a->causal && r + keys - a->sq + 1 < keys) keys = r + keys - a->sq + 1;
                float m = -INFINITY, sum = 0, acc[128] = {0};
                for (int c = 0; c < keys; c++) {
                    s[c] = 0;
                    for (int d = 0; d < 128; d++)
                        s[c] += load(a->q, b * a->qb + h * a->qh + r * a->qr + d) *
                                load(a->k, b * a->kb + hk * a->kh + c * a->kr + d);
                    s[c] *= a->scale;
                    m = fmaxf(m, s[c]);
                }
                for (int c = 0; c < keys; c++) {
                    float p = expf(s[c] - m);
                    sum += p;
                    for (int d = 0; d < 128; d++) acc[d] += p * load(a->v, b * a->vb + hk * a->vh + c * a->vr + d);
                }
                for (int d = 0; d < 128; d++) {
                    float x = keys > 0 ? acc[d] / sum : 0;
                    if (mode == WRONG && r == a->sq - 1) x *= 1.25f;
                    store(a->o, b * a->ob + h * a->oh + r * a->orow + d, x);
                }
                if (a->lse) ((float *)a->lse)[b * a->lb + h * a->lh + r] = keys > 0 ? m + logf(sum) + (mode == WRONG_LSE) : -INFINITY;
            }
    free(s);
}

int hipGetDeviceCount(int *n) { return *n = 1, 0; }
int hipSetDevice(int d) { return d ? 101 : 0; }
int hipGetDevice(int *d) { return *d = 0, 0; }
int hipGetDevicePropertiesR0600(void *p, int d) {
    if (d) return 101;
    memset(p, 0, 1472);
    strcpy((char *)p, "Fake MI300X");
    *(size_t *)((char *)p + 296) = 65536;
    *(int *)((char *)p + 308) = 64;
    *(int *)((char *)p + 388) = cu_count;
    strcpy((char *)p + 1160, arch_name ? arch_name : properties_wrong_arch ? "gfx90a:sramecc+:xnack-" : "gfx942:sramecc+:xnack-");
    return 0;
}
int hipDeviceGetAttribute(int *v, int a, int d) { return (void)d, a == 10018 ? (*v = dies, 0) : (last_error = 1); }
int hipDriverGetVersion(int *v) { return *v = 70200000, 0; }
int hipRuntimeGetVersion(int *v) { return *v = 70200000, 0; }
int hipMalloc(void **p, size_t n) {
    if (allocations_left == 0) return 2;
    allocations_left--;
    return *p = malloc(n), live_allocations++, 0;
}
int hipFree(void *p) { return free(p), live_allocations--, free_error; }
int hipMemcpy(void *d, const void *s, size_t n, int k) { return (void)k, memcpy(d, s, n), 0; }
int hipMemset(void *d, int v, size_t n) { return memset(d, v, n), 0; }
int hipModuleLoadData(void **m, const void *image) {
    return memcmp(image, "\177ELF", 4) ? (last_error = 200) : (*m = (void *)image, 0);
}
int hipModuleUnload(void *m) { return (void)m, 0; }
int hipModuleGetFunction(void **f, void *m, const char *name) {
    return (void)m, strstr(name, ".kd") ? (last_error = 500) : (*f = strdup(name), 0);
}
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned lds, void *stream, void **params, void **extra) {
    if (!f) return last_error = 400;
    if (!gx || !gy || !gz || !bx || !by || !bz || bx > 1024 || lds > 65536 || mode == REFUSE) return last_error = 1;
    if (params || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3) return last_error = 1;
    Args args;
    if (*(size_t *)extra[3] < sizeof(args)) return last_error = 1;
    memcpy(&args, extra[1], sizeof(args));
    last_stream = (int64_t)stream;
    __atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST);
    if (mode != NOTHING) attention(&args);
    return 0;
}
int hipStreamCreateWithFlags(void **s, unsigned f) { return (void)f, *s = malloc(8), 0; }
int hipStreamDestroy(void *s) { return free(s), 0; }
int hipStreamSynchronize(void *s) { return (void)s, 0; }
int hipDeviceSynchronize(void) { return 0; }
int hipEventCreate(void **e) { return *e = malloc(8), 0; }
int hipEventDestroy(void *e) { return free(e), 0; }
int hipEventRecord(void *e, void *s) { return (void)e, (void)s, 0; }
int hipEventSynchronize(void *e) { return (void)e, 0; }
int hipEventElapsedTime(float *ms, void *a, void *b) { return (void)a, (void)b, *ms = 1, 0; }
int hipGetLastError(void) {
    int e = last_error;
    return last_error = 0, e;
}
const char *hipGetErrorName(int e) { return e == 1 ? "hipErrorInvalidValue" : e == 200 ? "hipErrorInvalidImage" : "hipErrorOther"; }
const char *hipGetErrorString(int e) { return e == 1 ? "invalid argument" : "something else"; }
