// Streams and events. Work is done when it is submitted, so that every stream is always idle.
#include "hip_state.h"
#include <chrono>
#include <set>

namespace moon {

namespace {
std::mutex g_lock;
struct Event {
    bool recorded = false;
    std::chrono::steady_clock::time_point time;
};
std::set<const void *> &streams() {
    static auto *s = new std::set<const void *>;
    return *s;
}
std::set<Event *> &events() {
    static auto *s = new std::set<Event *>;
    return *s;
}
bool event_known(const void *e) {
    std::lock_guard<std::mutex> hold(g_lock);
    return events().count(static_cast<Event *>(const_cast<void *>(e))) != 0;
}
int new_stream(void **out, const char *call) {
    if (!out) return hip_fail(1, "%s: the result pointer is null", call);
    std::lock_guard<std::mutex> hold(g_lock);
    *out = new char;
    streams().insert(*out);
    return 0;
}
}  // namespace

bool hip_stream_known(const void *s) {
    if (reinterpret_cast<u64>(s) <= 2)  // null, legacy, per thread
        return true;
    std::lock_guard<std::mutex> hold(g_lock);
    return streams().count(s) != 0;
}

}  // namespace moon

using namespace moon;

#define MOON_STREAM(call, s) \
    if (!hip_stream_known(s)) return hip_fail(400, call ": %p is not a stream", s);
#define MOON_EVENT(call, e) \
    if (!event_known(e)) return hip_fail(400, call ": %p is not an event", e);

MOON_EXPORT int hipStreamCreate(void **out) { return new_stream(out, "hipStreamCreate"); }
MOON_EXPORT int hipStreamCreateWithFlags(void **out, unsigned) { return new_stream(out, "hipStreamCreateWithFlags"); }
MOON_EXPORT int hipStreamCreateWithPriority(void **out, unsigned, int) {
    return new_stream(out, "hipStreamCreateWithPriority");
}
MOON_EXPORT int hipStreamDestroy(void *s) {
    std::lock_guard<std::mutex> hold(g_lock);
    if (!streams().erase(s)) return hip_fail(400, "hipStreamDestroy: %p is not a stream that was created here", s);
    delete static_cast<char *>(s);
    return 0;
}
MOON_EXPORT int hipStreamSynchronize(void *s) {
    MOON_STREAM("hipStreamSynchronize", s)
    return 0;
}
MOON_EXPORT int hipStreamQuery(void *s) {
    MOON_STREAM("hipStreamQuery", s)
    return 0;
}
MOON_EXPORT int hipStreamWaitEvent(void *s, void *e, unsigned) {
    MOON_STREAM("hipStreamWaitEvent", s)
    MOON_EVENT("hipStreamWaitEvent", e)
    return 0;
}
MOON_EXPORT int hipStreamIsCapturing(void *s, int *status) {
    if (!status) return hip_fail(1, "hipStreamIsCapturing: the result pointer is null");
    MOON_STREAM("hipStreamIsCapturing", s)
    *status = 0;
    return 0;
}
MOON_EXPORT int hipStreamGetDevice(void *s, int *device) {
    if (!device) return hip_fail(1, "hipStreamGetDevice: the result pointer is null");
    MOON_STREAM("hipStreamGetDevice", s)
    *device = hip_device();
    return 0;
}

MOON_EXPORT int hipEventCreateWithFlags(void **out, unsigned) {
    if (!out) return hip_fail(1, "hipEventCreate: the result pointer is null");
    std::lock_guard<std::mutex> hold(g_lock);
    Event *e = new Event;
    events().insert(e);
    *out = e;
    return 0;
}
MOON_EXPORT int hipEventCreate(void **out) { return hipEventCreateWithFlags(out, 0); }
MOON_EXPORT int hipEventRecord(void *e, void *s) {
    MOON_STREAM("hipEventRecord", s)
    MOON_EVENT("hipEventRecord", e)
    static_cast<Event *>(e)->recorded = true;
    static_cast<Event *>(e)->time = std::chrono::steady_clock::now();
    return 0;
}
MOON_EXPORT int hipEventSynchronize(void *e) {
    MOON_EVENT("hipEventSynchronize", e)
    return 0;
}
MOON_EXPORT int hipEventQuery(void *e) {
    MOON_EVENT("hipEventQuery", e)
    return 0;
}
MOON_EXPORT int hipEventElapsedTime(float *ms, void *a, void *b) {
    if (!ms) return hip_fail(1, "hipEventElapsedTime: the result pointer is null");
    MOON_EVENT("hipEventElapsedTime", a)
    MOON_EVENT("hipEventElapsedTime", b)
    const Event *x = static_cast<Event *>(a), *y = static_cast<Event *>(b);
    if (!x->recorded || !y->recorded) return hip_fail(400, "hipEventElapsedTime: an event was never recorded");
    *ms = std::chrono::duration<float, std::milli>(y->time - x->time).count();  // of the emulation, not of a device
    return 0;
}
MOON_EXPORT int hipEventDestroy(void *e) {
    std::lock_guard<std::mutex> hold(g_lock);
    if (!events().erase(static_cast<Event *>(e))) return hip_fail(400, "hipEventDestroy: %p is not an event", e);
    delete static_cast<Event *>(e);
    return 0;
}
