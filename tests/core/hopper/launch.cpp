// The kernels by name, for the tests' driver: csrc/kernels/sm90a's own sources, compiled for this machine.
#include <cstring>

#include "attention.cu"
extern "C" unsigned char moon_shared[1024];
unsigned char moon_shared[1024];

// merge.cu is a translation unit of its own.
extern "C" {
void moon_attention_sm90a_merge(const moon::Sm90aArgs args);
void moon_attention_sm90a_causal_merge(const moon::Sm90aArgs args);
void moon_attention_sm90a_solo_merge(const moon::Sm90aArgs args);
void moon_attention_sm90a_solo_causal_merge(const moon::Sm90aArgs args);
void moon_attention_sm90a_short_merge(const moon::Sm90aArgs args);

// 1: launched, all threads came to their end; 0: they wait for each other; -1: no kernel of that name.
int moonHopperLaunch(const char *name, const void *arguments, unsigned blocks) {
    struct Kernel {
        const char *name;
        void (*function)(const moon::Sm90aArgs);
        unsigned cluster, threads;
    };
#define KERNEL(name, cluster) {#name, name, cluster, 512}, {#name "_merge", name##_merge, 1, 128}
    static const Kernel kernels[] = {
        KERNEL(moon_attention_sm90a, 2),       KERNEL(moon_attention_sm90a_causal, 2),
        KERNEL(moon_attention_sm90a_solo, 1),  KERNEL(moon_attention_sm90a_solo_causal, 1),
        KERNEL(moon_attention_sm90a_short, 1),
    };
    moon::Sm90aArgs args;
    std::memcpy(&args, arguments, sizeof args);
    for (const Kernel &kernel : kernels) {
        if (std::strcmp(kernel.name, name) == 0) {
            return machine::run([&] { kernel.function(args); }, blocks, kernel.cluster, kernel.threads);
        }
    }
    return -1;
}
}
