// Devices: what they are and what they say about themselves.
#include "hip_state.h"
#include <cstdio>

namespace moon {

const Device kDevices[kDeviceCount] = {
    {"gfx942", "gfx942:sramecc+:xnack-", "AMD Instinct MI300X (emulated)", 304, 8, 2100000, 2600000, 65536,
     192ull << 30},
    {"gfx950", "gfx950:sramecc+:xnack-", "AMD Instinct MI355X (emulated)", 256, 8, 2400000, 2000000, 163840,
     288ull << 30},
};

namespace {

// Field offsets of hipDeviceProp_tR0600, 1472 bytes.
struct Properties {
    u8 bytes[1472];
    void put32(size_t off, int x) { std::memcpy(bytes + off, &x, 4); }
    void put64(size_t off, u64 x) { std::memcpy(bytes + off, &x, 8); }
    void text(size_t off, size_t room, const char *s) {
        snprintf(reinterpret_cast<char *>(bytes) + off, room, "%s", s);
    }
};

int cus(int device) {
    int n = options().cu_count;
    return n > 0 ? n : kDevices[device].cus;
}

bool bad_device(int device) { return device < 0 || device >= kDeviceCount; }

void fill(Properties *p, int device) {
    const Device &d = kDevices[device];
    std::memset(p->bytes, 0, sizeof(p->bytes));
    p->text(0, 256, d.name);
    p->put64(288, d.memory);
    p->put64(296, d.lds_bytes);
    p->put32(304, 65536);                                             // regsPerBlock
    p->put32(308, 64);                                                // warpSize
    p->put64(312, 0x7fffffff);                                        // memPitch
    p->put32(320, 1024);                                              // maxThreadsPerBlock
    for (int k = 0; k < 3; k++) p->put32(324 + 4 * size_t(k), 1024);  // maxThreadsDim
    p->put32(336, 0x7fffffff);                                        // maxGridSize
    p->put32(340, 65536);
    p->put32(344, 65536);
    p->put32(348, d.clock_khz);
    p->put64(352, 0x7fffffff);  // totalConstMem
    p->put32(360, 9);           // major, minor
    p->put32(364, device == 0 ? 4 : 5);
    p->put64(368, 256);  // textureAlignment
    p->put32(388, cus(device));
    p->put32(400, 1);           // canMapHostMemory
    p->put32(576, 1);           // concurrentKernels
    p->put32(580, 1);           // ECC
    p->put32(584, device + 1);  // pciBusID
    p->put32(600, 8);           // asyncEngineCount
    p->put32(604, 1);           // unifiedAddressing
    p->put32(608, d.memory_clock_khz);
    p->put32(612, 8192);     // memoryBusWidth
    p->put32(616, 4 << 20);  // l2CacheSize
    p->put32(624, 2048);     // maxThreadsPerMultiProcessor
    p->put64(640, d.lds_bytes);
    p->put32(648, 65536);
    p->put32(688, 1);            // cooperativeLaunch
    p->put64(696, d.lds_bytes);  // sharedMemPerBlockOptin
    p->put32(712, 2);            // maxBlocksPerMultiProcessor
    p->put32(744, 1);            // memoryPoolsSupported
    p->text(1160, 256, d.full_arch);
    p->put64(1416, d.lds_bytes);
    p->put32(1424, 100000);  // clockInstructionRate
    p->put32(1464, 1);       // isLargeBar
}

// -1: not an attribute that this library answers.
int attribute(int key, int device) {
    const Device &d = kDevices[device];
    switch (key) {
        case 0: return 1;
        case 2: return 8;
        case 5: return d.clock_khz;
        case 8:
        case 10:
        case 85:
        case 88:
        case 10011: return 1;
        case 16:
        case 18:
        case 24:
        case 69:
        case 68:
        case 10012: return 0;
        case 19: return 4 << 20;
        case 23: return 9;
        case 25: return 2;
        case 26:
        case 27:
        case 28:
        case 55:
        case 56: return 1024;
        case 29: return 0x7fffffff;
        case 30:
        case 31:
        case 71:
        case 72: return 65536;
        case 57: return 2048;
        case 59: return 8192;
        case 60: return d.memory_clock_khz;
        case 61: return device == 0 ? 4 : 5;
        case 63: return cus(device);
        case 67: return device + 1;
        case 73: return 0;
        case 74:
        case 75:
        case 76:
        case 10002: return int(d.lds_bytes);
        case 83:
        case 84: return 0x7fffffff;
        case 87: return 64;
        case 10015: return d.cus;
        case 10017: return 100000;
        case 10018: return d.xcds;
        default: return -1;
    }
}

}  // namespace
}  // namespace moon

using namespace moon;

MOON_EXPORT int hipInit(unsigned flags) {
    return flags == 0 ? 0 : hip_fail(1, "hipInit: flags must be 0, not %u", flags);
}

MOON_EXPORT int hipGetDeviceCount(int *count) {
    if (!count) return hip_fail(1, "hipGetDeviceCount: the result pointer is null");
    *count = kDeviceCount;
    return 0;
}
MOON_EXPORT int hipGetDevice(int *device) {
    if (!device) return hip_fail(1, "hipGetDevice: the result pointer is null");
    *device = hip_device();
    return 0;
}
MOON_EXPORT int hipSetDevice(int device) {
    if (bad_device(device)) return hip_fail(101, "hipSetDevice: device %d; there are %d", device, kDeviceCount);
    hip_device() = device;
    return 0;
}
MOON_EXPORT int hipDeviceGet(int *handle, int device) {
    if (!handle) return hip_fail(1, "hipDeviceGet: the result pointer is null");
    if (bad_device(device)) return hip_fail(101, "hipDeviceGet: device %d; there are %d", device, kDeviceCount);
    *handle = device;
    return 0;
}
MOON_EXPORT int hipGetDevicePropertiesR0600(void *out, int device) {
    if (!out) return hip_fail(1, "hipGetDeviceProperties: the result pointer is null");
    if (bad_device(device))
        return hip_fail(101, "hipGetDeviceProperties: device %d; there are %d", device, kDeviceCount);
    Properties p;
    fill(&p, device);
    std::memcpy(out, p.bytes, sizeof(p.bytes));
    return 0;
}
MOON_EXPORT int hipDeviceGetAttribute(int *out, int key, int device) {
    if (!out) return hip_fail(1, "hipDeviceGetAttribute: the result pointer is null");
    if (bad_device(device))
        return hip_fail(101, "hipDeviceGetAttribute: device %d; there are %d", device, kDeviceCount);
    int x = attribute(key, device);
    if (x < 0) return hip_fail(1, "hipDeviceGetAttribute: attribute %d is not known here", key);
    *out = x;
    return 0;
}
MOON_EXPORT int hipDeviceGetName(char *name, int length, int device) {
    if (!name || length <= 0) return hip_fail(1, "hipDeviceGetName: no room for the name");
    if (bad_device(device)) return hip_fail(101, "hipDeviceGetName: device %d; there are %d", device, kDeviceCount);
    snprintf(name, size_t(length), "%s", kDevices[device].name);
    return 0;
}
MOON_EXPORT int hipDeviceTotalMem(size_t *bytes, int device) {
    if (!bytes) return hip_fail(1, "hipDeviceTotalMem: the result pointer is null");
    if (bad_device(device)) return hip_fail(101, "hipDeviceTotalMem: device %d; there are %d", device, kDeviceCount);
    *bytes = kDevices[device].memory;
    return 0;
}
MOON_EXPORT int hipDriverGetVersion(int *version) {
    if (!version) return hip_fail(1, "hipDriverGetVersion: the result pointer is null");
    *version = 70200000;
    return 0;
}
MOON_EXPORT int hipRuntimeGetVersion(int *version) {
    if (!version) return hip_fail(1, "hipRuntimeGetVersion: the result pointer is null");
    *version = 70200000;
    return 0;
}
MOON_EXPORT int hipDeviceSynchronize() { return 0; }
MOON_EXPORT int hipDeviceReset() { return 0; }
