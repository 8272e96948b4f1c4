// Running a launch: workgroups over threads, wavefronts of a workgroup in turn from barrier to barrier.
#include "instrument.h"
#include "valu.h"
#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace moon {

namespace {

constexpr u64 kSlice = 1u << 20;      // instructions before another wave of the workgroup gets a turn
constexpr u32 kPoison = 0xffffffffu;  // what registers and LDS hold before they are written: a NaN in every float type

struct WaveMemory {
    std::vector<Wave *> waves;
    explicit WaveMemory(size_t n) {
        for (size_t i = 0; i < n; i++) {
            void *p = std::aligned_alloc(64, (sizeof(Wave) + 63) / 64 * 64);
            if (!p) throw std::bad_alloc();
            waves.push_back(new (p) Wave());
        }
    }
    ~WaveMemory() {
        for (Wave *w : waves) {
            w->~Wave();
            std::free(w);
        }
    }
};

// The initial SGPRs, in the order that the descriptor's bits ask for.
void initial_sgprs(Wave &w, const Launch &l, const u32 *group, u64 dispatch, u64 queue) {
    const Kernel &k = *l.kernel;
    u32 n = 0, p = k.properties;
    auto put64 = [&](u64 x) { w.s[n] = u32(x), w.s[n + 1] = u32(x >> 32), n += 2; };
    if (p & 1) {  // private segment buffer: a descriptor that spans everything
        w.s[0] = 0, w.s[1] = 0, w.s[2] = 0xffffffffu, w.s[3] = 0x00027000u;
        n += 4;
    }
    if (p & 2) put64(dispatch);
    if (p & 4) put64(queue);
    if (p & 8) put64(l.kernarg);
    if (p & 16) put64(0);
    if (p & 32) put64(0);
    if (p & 64) w.s[n++] = k.scratch_bytes;
    u32 count = k.preload & 127, offset = k.preload >> 7 & 511;
    for (u32 i = 0; i < count && n < 16; i++, n++) {
        u64 at = u64(offset + i) * 4;
        if (at + 4 <= l.kernarg_size) std::memcpy(&w.s[n], reinterpret_cast<u8 *>(l.kernarg + at), 4);
    }
    n = k.rsrc2 >> 1 & 31;
    for (int d = 0; d < 3; d++)
        if (k.rsrc2 >> (7 + d) & 1) w.s[n++] = group[d];
    if (k.rsrc2 >> 10 & 1) w.s[n++] = 0;
}

void start_wave(Wave &w, Launch &l, Workgroup &g, int id, u64 dispatch, u64 queue) {
    const Kernel &k = *l.kernel;
    u32 regs = std::min<u32>(256, std::max<u32>(k.vgprs, 8));
    std::memset(w.v, 0xff, size_t(regs) * sizeof(w.v[0]));
    u32 total =
        std::max<u32>(k.vgprs, ((k.rsrc1 & 63) + 1) * 8);  // the descriptor's count includes accumulation registers
    std::memset(&w.v[regs], 0xff, size_t(std::max<u32>(256, regs) - regs) * sizeof(w.v[0]));
    if (total > regs || k.agprs) std::memset(&w.v[256], 0xff, 256 * sizeof(w.v[0]));
    for (u32 &s : w.s) s = kPoison;
    w.launch = &l, w.group = &g, w.id = id;
    w.scc = false, w.stop = Stop::RUN, w.executed = 0, w.barriers = 0;
    w.range_lo = 1, w.range_hi = 0;
    w.mem.mask = 0;
    w.set_mode(k.rsrc1 >> 12 & 255u);
    w.set_mode(w.mode | (k.rsrc1 >> 21 & 1u) << 8 | (k.rsrc1 >> 23 & 1u) << 9);
    initial_sgprs(w, l, g.id, dispatch, queue);
    u32 threads = l.threads(), first = u32(id) * kLanes, live = std::min<u32>(kLanes, threads - first);
    w.set_s64(kExec, live == 64 ? ~0ull : (1ull << live) - 1);
    w.set_s64(kVcc, 0);
    w.s[kM0] = 0;
    for (u32 i = 0; i < kLanes; i++) {
        u32 t = first + i, x = t % l.block[0], y = t / l.block[0] % l.block[1], z = t / (l.block[0] * l.block[1]);
        w.v[0][i] = x | y << 10 | z << 20;  // packed work-item ids
    }
    w.scratch_bytes = k.scratch_bytes;
    w.scratch.assign(size_t(k.scratch_bytes) * kLanes, 0xff);
    w.refresh_lanes(w.exec());
    w.pc = &l.program->ops[k.first_op];
}

void run_rounded(Wave &w, const Op &op) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    int mode = op.fp & 1 ? int(w.mode & 3) : op.fp & 2 ? int(w.mode >> 2 & 3) : 0;
    if (mode) std::fesetround(modes[mode]);
    f16_rounding() = int(w.mode >> 2 & 3);
    op.run(w, op);
    f16_rounding() = 0;
    if (mode) std::fesetround(FE_TONEAREST);
}

// Runs until the wave stops or has had its slice; returns the number of instructions.
template <bool INSTRUMENTED>
u64 run_wave(Wave &w, u64 slice) {
    u64 n = 0;
    while (n < slice) {
        const Op &op = *w.pc;
        w.pc = &op + 1;
        n++;
        if (INSTRUMENTED) instrument_before(w, op);
        if (__builtin_expect(w.rounding, 0))
            run_rounded(w, op);
        else
            op.run(w, op);
        if (INSTRUMENTED) instrument_after(w, op);
        if (w.stop != Stop::RUN) break;
    }
    w.executed += n;
    return n;
}

u64 mix(u64 x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

void shuffle(std::vector<int> *order, u64 *state) {
    for (size_t i = order->size(); i > 1; i--) {
        *state = mix(*state);
        std::swap((*order)[i - 1], (*order)[*state % i]);
    }
}

void out_of_budget(Launch &l, Wave &w) {
    std::lock_guard<std::mutex> hold(l.lock);
    l.stop = true;
    if (l.error) return;
    char text[256];
    snprintf(text, sizeof(text), "kernel %s: stopped after %llu wave-instructions, the budget, near address 0x%x",
             l.kernel->name.c_str(), (unsigned long long)l.options.budget, w.pc->address);
    l.error = 702;  // hipErrorLaunchTimeOut
    l.message = text;
}

void run_group(Launch &l, Workgroup &g, bool instrument, u64 seed) {
    const size_t n = g.waves.size();
    std::vector<int> order(n);
    for (size_t i = 0; i < n; i++) order[i] = l.options.order == 1 ? int(n - 1 - i) : int(i);
    const u64 slice = l.options.order == 3 ? l.options.quantum : kSlice;
    std::vector<Stop> state(n, Stop::RUN);
    for (;;) {
        if (l.options.order == 2) shuffle(&order, &seed);
        bool live = false, waiting = false;
        for (int i : order) {
            if (state[size_t(i)] != Stop::RUN) continue;
            Wave &w = *g.waves[size_t(i)];
            w.stop = Stop::RUN;
            u64 done = instrument ? run_wave<true>(w, slice) : run_wave<false>(w, slice);
            u64 total = l.executed.fetch_add(done) + done;
            if (w.stop == Stop::FAULT || l.stop) return;
            if (l.options.budget && total > l.options.budget && w.stop != Stop::END) {
                out_of_budget(l, w);
                return;
            }
            if (w.stop == Stop::BARRIER) w.barriers++;
            state[size_t(i)] = w.stop == Stop::YIELD ? Stop::RUN : w.stop;
        }
        for (Stop s : state) {
            live |= s == Stop::RUN;
            waiting |= s == Stop::BARRIER;
        }
        if (!live && !waiting) return;
        if (!live) {  // all that have not ended have arrived
            if (instrument) instrument_barrier(g, l);
            g.epoch++;
            for (Stop &s : state)
                if (s == Stop::BARRIER) s = Stop::RUN;
        }
    }
}

struct Packet {  // the AQL dispatch packet that kernels may read
    u16 header, setup, group[3], reserved;
    u32 grid[3], private_bytes, group_bytes;
    u64 object, kernarg, reserved2, signal;
};

void worker(Launch &l, const Packet *packet, const u8 *queue) {
    const u32 waves = (l.threads() + kLanes - 1) / kLanes;
    WaveMemory memory(waves);
    Workgroup g;
    u32 granule = l.program->arch_bit == GFX950 ? 1280 : 512;
    g.lds_bytes = l.kernel->lds_bytes + l.dynamic_lds;
    g.lds.resize((g.lds_bytes + granule - 1) / granule * granule);
    g.waves = memory.waves;
    bool instrument = instrumented(l);
    WorkerState *state = instrument ? instrument_worker(l) : nullptr;
    for (;;) {
        u64 index = l.next_group.fetch_add(1);
        if (index >= l.groups() || l.stop) break;
        g.id[0] = u32(index % l.grid[0]), g.id[1] = u32(index / l.grid[0] % l.grid[1]),
        g.id[2] = u32(index / (u64(l.grid[0]) * l.grid[1]));
        g.epoch = 0;
        std::memset(g.lds.data(), 0xff, g.lds.size());
        for (u32 i = 0; i < waves; i++)
            start_wave(*g.waves[i], l, g, int(i), reinterpret_cast<u64>(packet), reinterpret_cast<u64>(queue));
        if (instrument) instrument_group(g, l, state);
        run_group(l, g, instrument, l.options.seed ^ mix(index));
        if (instrument) instrument_group_end(g, l);
    }
    if (instrument) instrument_merge(l, state);
}

}  // namespace

void fault(Wave &w, const Op &op, int error, const char *format, ...) {
    char text[512], line[1024], name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    mnemonic(op, name, sizeof(name));
    snprintf(line, sizeof(line), "kernel %s, workgroup (%u, %u, %u), wavefront %d, address 0x%x, %s: %s",
             w.launch->kernel->name.c_str(), w.group->id[0], w.group->id[1], w.group->id[2], w.id, op.address, name,
             text);
    w.stop = Stop::FAULT;
    if (error == 700) report_finding(w, op, "out-of-bounds", "error", "global memory", text);
    std::lock_guard<std::mutex> hold(w.launch->lock);
    w.launch->stop = true;
    if (w.launch->error == 0) {
        w.launch->error = error;
        w.launch->message = line;
    }
}

void run_unknown(Wave &w, const Op &op) {
    if (op.words[0] == 0)
        fault(w, op, 719, "execution ran into something that is no instruction (end of the code, or data)");
    else
        fault(w, op, 719, "unknown instruction, encoding 0x%08x", op.words[0]);
}
void run_not_modelled(Wave &w, const Op &op) {
    fault(w, op, 719, "this instruction, or this form of it, is not modelled");
}

const Op *op_at(const Wave &w, u64 address) {
    const Program &p = *w.launch->program;
    u64 off = address - reinterpret_cast<u64>(p.base);
    if ((off & 3) || off / 4 >= p.op_of_dword.size()) return nullptr;
    return op_index(w, p.op_of_dword[size_t(off / 4)]);
}
const Op *op_index(const Wave &w, i32 index) {
    const Program &p = *w.launch->program;
    return index < 0 ? nullptr : &p.ops[size_t(index)];
}
u64 code_address(const Wave &w, const Op &op) { return reinterpret_cast<u64>(w.launch->program->base) + op.address; }
u32 xcc_id(const Wave &w) {
    const Launch &l = *w.launch;
    u64 index = w.group->id[0] + u64(l.grid[0]) * (w.group->id[1] + u64(l.grid[1]) * w.group->id[2]);
    return u32(index % u64(l.device->xcds));
}

int run_launch(Launch &l) {
    auto t0 = std::chrono::steady_clock::now();
    alignas(64) Packet packet = {};
    alignas(64) u8 queue[256] = {};
    for (int d = 0; d < 3; d++) packet.group[d] = u16(l.block[d]), packet.grid[d] = l.grid[d] * l.block[d];
    packet.setup = 3;
    packet.private_bytes = l.kernel->scratch_bytes, packet.group_bytes = l.kernel->lds_bytes + l.dynamic_lds;
    packet.object = reinterpret_cast<u64>(l.program->base) + l.kernel->descriptor;
    packet.kernarg = l.kernarg;
    l.ranges.push_back({reinterpret_cast<u64>(&packet), reinterpret_cast<u64>(&packet) + sizeof(packet), false});
    l.ranges.push_back({reinterpret_cast<u64>(queue), reinterpret_cast<u64>(queue) + sizeof(queue), false});
    std::sort(l.ranges.begin(), l.ranges.end(), [](const Range &a, const Range &b) { return a.lo < b.lo; });
    u64 n = l.options.threads > 0 ? u64(l.options.threads) : std::max(1u, std::thread::hardware_concurrency());
    n = std::min<u64>(n, l.groups());
    std::vector<std::thread> threads;
    auto work = [&] {
        try {
            worker(l, &packet, queue);
        } catch (const std::exception &x) {
            std::lock_guard<std::mutex> hold(l.lock);
            l.stop = true;
            if (l.error == 0) l.error = 2, l.message = "kernel " + l.kernel->name + ": " + x.what();
        }
    };
    try {
        for (u64 i = 1; i < n; i++) threads.emplace_back(work);
    } catch (const std::exception &) {
        // The system gives no more threads; those that are there do the work.
    }
    work();
    for (std::thread &t : threads) t.join();
    l.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    return l.error;
}

}  // namespace moon
