// Memory entry points. Everything is done by the time a call returns, the Async forms too.
#include "hip_state.h"

using namespace moon;

namespace {

// Device memory that [p, p + size) lies in, or an error.
int device_span(const char *call, const char *what, const void *p, size_t size) {
    Allocation a;
    u64 at = reinterpret_cast<u64>(p);
    if (!memory_find(at, &a)) return hip_fail(1, "%s: %s %p is not device memory", call, what, p);
    if (size > a.base + a.size - at)
        return hip_fail(1, "%s: %zu bytes at %s %p end %llu bytes past its allocation", call, size, what, p,
                        (unsigned long long)(size - (a.base + a.size - at)));
    return 0;
}

int allocate(const char *call, void **out, size_t size) {
    if (!out) return hip_fail(1, "%s: the result pointer is null", call);
    *out = nullptr;
    if (size == 0) return 0;
    void *p = memory_allocate(hip_device(), size, true, true);
    if (!p)
        return hip_fail(2, "%s: %zu bytes do not fit: %llu of %llu are in use", call, size,
                        (unsigned long long)memory_used(hip_device()),
                        (unsigned long long)kDevices[hip_device()].memory);
    *out = p;
    return 0;
}
int release(const char *call, void *p) {
    if (!p || memory_free(p, true)) return 0;
    return hip_fail(1, "%s: %p was not allocated here, or was freed before", call, p);
}

enum { HostToHost, HostToDevice, DeviceToHost, DeviceToDevice, Default };
int copy(const char *call, void *dst, const void *src, size_t size, int kind) {
    if (size == 0) return 0;
    if (!dst || !src) return hip_fail(1, "%s: a pointer is null", call);
    if (kind < HostToHost || kind > Default) return hip_fail(21, "%s: %d is no copy direction", call, kind);
    Allocation a;
    bool to = kind == HostToDevice || kind == DeviceToDevice ||
              (kind == Default && memory_find(reinterpret_cast<u64>(dst), &a));
    bool from = kind == DeviceToHost || kind == DeviceToDevice ||
                (kind == Default && memory_find(reinterpret_cast<u64>(src), &a));
    int e = to ? device_span(call, "destination", dst, size) : 0;
    if (!e && from) e = device_span(call, "source", src, size);
    if (e) return e;
    std::memmove(dst, src, size);
    return 0;
}
int set(const char *call, void *p, int value, size_t size) {
    if (size == 0) return 0;
    int e = device_span(call, "destination", p, size);
    if (!e) memory_fill(p, value, size);
    return e;
}
int bad_stream(const char *call, const void *stream) {
    return hip_stream_known(stream) ? 0 : hip_fail(400, "%s: %p is not a stream", call, stream);
}

}  // namespace

MOON_EXPORT int hipMalloc(void **out, size_t size) { return allocate("hipMalloc", out, size); }
MOON_EXPORT int hipFree(void *p) { return release("hipFree", p); }
MOON_EXPORT int hipMallocAsync(void **out, size_t size, void *stream) {
    int e = bad_stream("hipMallocAsync", stream);
    return e ? e : allocate("hipMallocAsync", out, size);
}
MOON_EXPORT int hipFreeAsync(void *p, void *stream) {
    int e = bad_stream("hipFreeAsync", stream);
    return e ? e : release("hipFreeAsync", p);
}
MOON_EXPORT int hipHostMalloc(void **out, size_t size, unsigned) { return allocate("hipHostMalloc", out, size); }
MOON_EXPORT int hipHostFree(void *p) { return release("hipHostFree", p); }

MOON_EXPORT int hipMemcpy(void *dst, const void *src, size_t size, int kind) {
    return copy("hipMemcpy", dst, src, size, kind);
}
MOON_EXPORT int hipMemcpyAsync(void *dst, const void *src, size_t size, int kind, void *stream) {
    int e = bad_stream("hipMemcpyAsync", stream);
    return e ? e : copy("hipMemcpyAsync", dst, src, size, kind);
}
MOON_EXPORT int hipMemcpyHtoD(void *dst, const void *src, size_t size) {
    return copy("hipMemcpyHtoD", dst, src, size, HostToDevice);
}
MOON_EXPORT int hipMemcpyDtoH(void *dst, const void *src, size_t size) {
    return copy("hipMemcpyDtoH", dst, src, size, DeviceToHost);
}
MOON_EXPORT int hipMemcpyDtoD(void *dst, const void *src, size_t size) {
    return copy("hipMemcpyDtoD", dst, src, size, DeviceToDevice);
}
MOON_EXPORT int hipMemcpyHtoDAsync(void *dst, const void *src, size_t size, void *stream) {
    int e = bad_stream("hipMemcpyHtoDAsync", stream);
    return e ? e : copy("hipMemcpyHtoDAsync", dst, src, size, HostToDevice);
}
MOON_EXPORT int hipMemcpyDtoHAsync(void *dst, const void *src, size_t size, void *stream) {
    int e = bad_stream("hipMemcpyDtoHAsync", stream);
    return e ? e : copy("hipMemcpyDtoHAsync", dst, src, size, DeviceToHost);
}
MOON_EXPORT int hipMemset(void *p, int value, size_t size) { return set("hipMemset", p, value, size); }
MOON_EXPORT int hipMemsetAsync(void *p, int value, size_t size, void *stream) {
    int e = bad_stream("hipMemsetAsync", stream);
    return e ? e : set("hipMemsetAsync", p, value, size);
}
MOON_EXPORT int hipMemsetD8(void *p, unsigned char value, size_t size) { return set("hipMemsetD8", p, value, size); }

MOON_EXPORT int hipMemGetInfo(size_t *free_bytes, size_t *total) {
    if (!free_bytes || !total) return hip_fail(1, "hipMemGetInfo: a result pointer is null");
    *total = kDevices[hip_device()].memory;
    *free_bytes = *total - memory_used(hip_device());
    return 0;
}

MOON_EXPORT int hipPointerGetAttributes(void *out, const void *p) {
    if (!out || !p) return hip_fail(1, "hipPointerGetAttributes: a pointer is null");
    struct {
        int type, device;
        const void *device_pointer, *host_pointer;
        int managed;
        unsigned flags;
    } attributes = {0, -2, nullptr, nullptr, 0, 0};  // hipMemoryTypeUnregistered
    Allocation a;
    if (memory_find(reinterpret_cast<u64>(p), &a) && a.user) {
        attributes.type = 2;  // hipMemoryTypeDevice
        attributes.device = a.device;
        attributes.device_pointer = p;
    }
    std::memcpy(out, &attributes, sizeof(attributes));
    return 0;
}
