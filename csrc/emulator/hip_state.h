// What the HIP entry points share: the current device, the last error, and handles.
#pragma once
#include "memory.h"
#include <memory>

#if defined(__GNUC__)
#define MOON_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define MOON_EXPORT extern "C"
#endif

namespace moon {

constexpr int kDeviceCount = 2;
extern const Device kDevices[];

// Sets this thread's last error and message, and returns the code. Success leaves both as they are.
int hip_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int hip_last_error(bool clear);
const char *hip_message();
int &hip_device();
bool hip_stream_known(const void *stream);

std::shared_ptr<Launch> &hip_last_launch();  // of this thread
std::string report_json(const Launch &l);
std::string disassemble_json(const void *image, size_t size, int *error, std::string *message);
std::string json_string(const std::string &s);

// A copy of a code object at an address of unknown size; reads past mapped memory fail instead of crashing. Offload
// bundles are opened.
bool copy_image(const void *image, const char *arch, std::vector<u8> *out, std::string *why);
bool unbundle(const u8 *data, size_t size, const char *arch, const u8 **out, size_t *out_size);

}  // namespace moon
