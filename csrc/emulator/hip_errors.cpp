// Error state, names and versions.
#include "hip_state.h"
#include <cstdarg>
#include <cstdio>

namespace moon {

namespace {
thread_local int t_error = 0;
thread_local int t_device = 0;
thread_local std::string t_message;
thread_local std::shared_ptr<Launch> t_launch;

struct Name {
    int code;
    const char *name, *text;
};
const Name kNames[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {9, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {17, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {218, "hipErrorInvalidKernelFile", "invalid kernel file"},
    {301, "hipErrorFileNotFound", "file not found"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "hipErrorLaunchOutOfResources", "out of resources requested for launch"},
    {702, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {709, "hipErrorContextIsDestroyed", "context is destroyed"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {999, "hipErrorUnknown", "unknown error"},
};
const Name *find_name(int code) {
    for (const Name &n : kNames)
        if (n.code == code) return &n;
    return nullptr;
}
}  // namespace

int hip_fail(int code, const char *format, ...) {
    char text[1536];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    t_error = code;
    t_message = text;
    return code;
}
int hip_last_error(bool clear) {
    int e = t_error;
    if (clear) t_error = 0;
    return e;
}
const char *hip_message() { return t_message.c_str(); }
int &hip_device() { return t_device; }
std::shared_ptr<Launch> &hip_last_launch() { return t_launch; }

}  // namespace moon

using namespace moon;

MOON_EXPORT const char *hipGetErrorName(int code) {
    const Name *n = find_name(code);
    return n ? n->name : "hipErrorUnknown";
}
MOON_EXPORT const char *hipGetErrorString(int code) {
    const Name *n = find_name(code);
    return n ? n->text : "unknown error";
}
MOON_EXPORT int hipGetLastError() { return hip_last_error(true); }
MOON_EXPORT int hipExtGetLastError() { return hip_last_error(true); }
MOON_EXPORT int hipPeekAtLastError() { return hip_last_error(false); }

MOON_EXPORT int hipDrvGetErrorName(int code, const char **out) {
    if (!out) return hip_fail(1, "hipDrvGetErrorName: the result pointer is null");
    *out = hipGetErrorName(code);
    return 0;
}
MOON_EXPORT int hipDrvGetErrorString(int code, const char **out) {
    if (!out) return hip_fail(1, "hipDrvGetErrorString: the result pointer is null");
    *out = hipGetErrorString(code);
    return 0;
}
