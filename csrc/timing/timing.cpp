// The replay: SIMD turns, the units they share, and the counters that waves wait on. timing.h says what is modelled.

#include "timing.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

namespace {

using Cycle = uint64_t;
constexpr int kSimds = 4;
constexpr int kTurn = 4;  // a SIMD acts every fourth cycle
constexpr int kLineBytes = 128;

// Which instructions exclude each other within a turn of a SIMD.
enum Category { kVector, kScalarUnit, kLdsUnit, kMemoryUnit, kBranchUnit, kFree, kCategories };

Category category(MoonTimingClass kind) {
    switch (kind) {
        case kValu:
        case kTranscendental:
        case kPacked:
        case kMfma: return kVector;
        case kScalar:
        case kScalarLoad: return kScalarUnit;
        case kLdsRead:
        case kLdsWrite: return kLdsUnit;
        case kVectorLoad:
        case kVectorStore:
        case kLdsDma: return kMemoryUnit;
        case kBranch: return kBranchUnit;
        default: return kFree;
    }
}

// Lines of global memory in the L1, least recently used last.
class L1 {
  public:
    explicit L1(size_t capacity) : capacity_(capacity) {}

    // True if the line was there; it is the most recent afterwards.
    bool touch(uint32_t line) {
        auto found = where_.find(line);
        const bool hit = found != where_.end();
        if (hit) order_.erase(found->second);
        order_.push_front(line);
        where_[line] = order_.begin();
        if (order_.size() > capacity_) {
            where_.erase(order_.back());
            order_.pop_back();
        }
        return hit;
    }

  private:
    size_t capacity_;
    std::list<uint32_t> order_;
    std::unordered_map<uint32_t, std::list<uint32_t>::iterator> where_;
};

struct Wave {
    const MoonTimingWave *trace = nullptr;
    uint64_t at = 0;  // next record
    Cycle ready = 0;  // not before
    int priority = 0;
    bool in_barrier = false;
    bool vm_in_wait = false;
    std::deque<Cycle> vm, lgkm;     // completion of outstanding operations, in order of issue
    std::vector<Cycle> result;      // per register: readable at
    std::vector<Cycle> accumulate;  // per register: readable as an identical accumulator at
    std::vector<uint32_t> writer;   // per register: which matrix tuple wrote it last

    bool done() const { return at >= trace->count; }
};

struct Simd {
    Cycle port_free = 0;
    Cycle pipe_free = 0;
};

class Model {
  public:
    Model(const MoonTimingInstruction *instructions, const MoonTimingConstants &constants, MoonTimingResult &result)
        : code_(instructions), c_(constants), result_(result), l1_(std::max(1, constants.l1_lines)) {}

    int run(const MoonTimingWave *traces, uint32_t count, uint64_t *issue);

  private:
    // Why wave w cannot issue its next instruction now; kIssued if it can.
    MoonTimingStall obstacle(Wave &wave, const Simd &simd, const MoonTimingInstruction &in) const;
    void issue(Wave &wave, uint32_t index, const MoonTimingInstruction &in, const MoonTimingRecord &record);
    Cycle operands_ready(const Wave &wave, const MoonTimingInstruction &in) const;
    void write_result(Wave &wave, const MoonTimingRange &range, Cycle readable, Cycle accumulate);
    Cycle lds(uint32_t wave, const MoonTimingInstruction &in, const MoonTimingRecord &record);
    Cycle memory(const Wave &wave, const MoonTimingRecord &record);
    void release_barrier();
    static bool allowed(std::deque<Cycle> &queue, int keep, Cycle now);

    const MoonTimingInstruction *code_;
    const MoonTimingConstants &c_;
    MoonTimingResult &result_;
    std::vector<Wave> waves_;
    Simd simds_[kSimds];
    Cycle lds_free_[2] = {0, 0};
    Cycle memory_free_ = 0;
    L1 l1_;
    Cycle now_ = 0;
};

Cycle Model::operands_ready(const Wave &wave, const MoonTimingInstruction &in) const {
    Cycle ready = 0;
    for (int i = 0; i < in.reads; i++) {
        for (int r = 0; r < in.read[i].count; r++) ready = std::max(ready, wave.result[in.read[i].first + r]);
    }
    const MoonTimingRange &acc = in.accumulator;
    if (acc.count != 0) {
        const uint32_t tuple = acc.first * 1024u + acc.count;
        for (int r = 0; r < acc.count; r++) {
            const int reg = acc.first + r;
            ready = std::max(ready, wave.writer[reg] == tuple ? wave.accumulate[reg] : wave.result[reg]);
        }
    }
    return ready;
}

void Model::write_result(Wave &wave, const MoonTimingRange &range, Cycle readable, Cycle accumulate) {
    const uint32_t tuple = range.first * 1024u + range.count;
    for (int r = 0; r < range.count; r++) {
        wave.result[range.first + r] = readable;
        wave.accumulate[range.first + r] = accumulate;
        wave.writer[range.first + r] = tuple;
    }
}

// True if at most `keep` operations of the queue are still outstanding; what is complete is dropped.
bool Model::allowed(std::deque<Cycle> &queue, int keep, Cycle now) {
    while (!queue.empty() && queue.front() <= now) queue.pop_front();
    return queue.size() <= static_cast<size_t>(keep);
}

MoonTimingStall Model::obstacle(Wave &wave, const Simd &simd, const MoonTimingInstruction &in) const {
    if (wave.in_barrier) return kStallBarrier;
    if (wave.ready > now_) return kStallNop;
    if (in.kind == kWaitcnt) {
        if (in.vmcnt >= 0 && !allowed(wave.vm, in.vmcnt, now_)) return kStallVm;
        if (in.lgkmcnt >= 0 && !allowed(wave.lgkm, in.lgkmcnt, now_)) return kStallLgkm;
        return kIssued;
    }
    if (operands_ready(wave, in) > now_) return kStallResult;
    if (category(in.kind) == kVector) {
        if (simd.port_free > now_) return kStallPort;
        if (in.kind == kMfma && simd.pipe_free > now_) return kStallMatrix;
        if (in.kind == kPacked && !c_.packed_beside_mfma && simd.pipe_free > now_) return kStallMatrix;
    }
    return kIssued;
}

// Time on the port that the wave's SIMD shares with its neighbour; returns when the data is there.
Cycle Model::lds(uint32_t index, const MoonTimingInstruction &in, const MoonTimingRecord &record) {
    const int pair = index % kSimds / 2;
    const int half = std::max(1, c_.lds_bytes_per_cycle / 2);
    Cycle busy = (record.lds_bytes + half - 1) / half + record.lds_conflict_cycles;
    if (in.kind == kLdsWrite) busy = std::max<Cycle>(busy, 4 + 4 * in.dwords);
    const Cycle start = std::max(now_, lds_free_[pair]);
    lds_free_[pair] = start + busy;
    result_.lds_busy[pair] += busy;
    return start + busy + c_.lds_latency;
}

// Time on the compute unit's L1; a line touched for the first time comes from the L2.
Cycle Model::memory(const Wave &wave, const MoonTimingRecord &record) {
    const int rate = std::max(1, c_.l1_bytes_per_cycle);
    const Cycle start = std::max(now_, memory_free_);
    bool miss = false;
    for (uint32_t i = 0; i < record.lines; i++) miss |= !l1_.touch(wave.trace->lines[record.first_line + i]);
    const Cycle busy = std::max(1, (record.lines * kLineBytes + rate - 1) / rate);
    memory_free_ = start + busy;
    result_.l1_busy += busy;
    return start + busy + (miss ? c_.l2_latency : c_.l1_hit_latency);
}

void Model::release_barrier() {
    for (const Wave &wave : waves_) {
        if (!wave.done() && !wave.in_barrier) return;
    }
    for (Wave &wave : waves_) {
        if (!wave.in_barrier) continue;
        wave.in_barrier = false;
        wave.ready = now_ + c_.barrier;
    }
}

void Model::issue(Wave &wave, uint32_t index, const MoonTimingInstruction &in, const MoonTimingRecord &record) {
    Simd &simd = simds_[index % kSimds];
    wave.ready = now_ + kTurn;
    const auto in_order = [](std::deque<Cycle> &queue, Cycle done) {
        queue.push_back(queue.empty() ? done : std::max(done, queue.back()));
    };
    const auto hold_port = [&](Cycle cycles) {
        simd.port_free = now_ + cycles;
        result_.port_busy[index % kSimds] += cycles;
    };
    switch (in.kind) {
        case kValu:
        case kPacked:
        case kTranscendental: {
            const Cycle held = in.kind == kTranscendental ? c_.transcendental : c_.valu;
            hold_port(held);
            write_result(wave, in.write, now_ + held + c_.valu_result, now_ + held + c_.valu_result);
            break;
        }
        case kMfma: {
            const Cycle end = now_ + in.matrix_cycles;
            hold_port(c_.mfma_overlaps_valu ? c_.mfma_port : in.matrix_cycles);
            simd.pipe_free = end;
            result_.matrix_busy[index % kSimds] += in.matrix_cycles;
            write_result(wave, in.write, end + c_.mfma_result, end + c_.mfma_accumulate);
            break;
        }
        case kLdsRead:
        case kLdsWrite: in_order(wave.lgkm, lds(index, in, record)); break;
        case kScalarLoad: in_order(wave.lgkm, now_ + c_.scalar_load_latency); break;
        case kVectorLoad:
        case kVectorStore:
        case kLdsDma: in_order(wave.vm, memory(wave, record)); break;
        case kNop: wave.ready = now_ + Cycle{kTurn} * (in.immediate + 1u); break;
        case kSetprio: wave.priority = in.immediate; break;
        case kBranch:
            if (record.taken) wave.ready = now_ + c_.branch_taken;
            break;
        case kBarrier: wave.in_barrier = true; break;
        default: break;
    }
    wave.at++;
    if (in.kind == kBarrier || wave.done()) release_barrier();
}

int Model::run(const MoonTimingWave *traces, uint32_t count, uint64_t *issue_times) {
    std::vector<uint64_t> base(count, 0);
    for (uint32_t w = 0; w < count; w++) {
        Wave wave;
        wave.trace = &traces[w];
        wave.result.assign(512, 0);
        wave.accumulate.assign(512, 0);
        wave.writer.assign(512, 0);
        waves_.push_back(std::move(wave));
        if (w > 0) base[w] = base[w - 1] + traces[w - 1].count;
    }
    Cycle last_progress = 0;
    uint32_t running = count;
    for (const Wave &wave : waves_) running -= wave.done();
    for (now_ = 0; running > 0; now_++) {
        const uint32_t simd = now_ % kSimds;
        bool taken[kCategories] = {};
        // Higher priority first; among equals the wave that issued longest ago.
        uint32_t order[4];
        uint32_t candidates = 0;
        for (uint32_t w = simd; w < count; w += kSimds) order[candidates++] = w;
        std::stable_sort(order, order + candidates, [&](uint32_t a, uint32_t b) {
            if (waves_[a].priority != waves_[b].priority) return waves_[a].priority > waves_[b].priority;
            return waves_[a].ready < waves_[b].ready;
        });
        for (uint32_t i = 0; i < candidates; i++) {
            const uint32_t w = order[i];
            Wave &wave = waves_[w];
            if (wave.done()) {
                result_.stalls[w][kStallDone]++;
                continue;
            }
            const MoonTimingRecord &record = wave.trace->records[wave.at];
            const MoonTimingInstruction &in = code_[record.instruction];
            const Category unit = category(in.kind);
            MoonTimingStall why = obstacle(wave, simds_[simd], in);
            if (why == kIssued && unit != kFree && taken[unit]) why = kStallCategory;
            result_.stalls[w][why]++;
            if (why != kIssued) continue;
            taken[unit] = true;
            if (issue_times != nullptr) issue_times[base[w] + wave.at] = now_;
            issue(wave, w, in, record);
            running -= wave.done();
            last_progress = now_;
        }
        if (now_ - last_progress > 1000000) return 2;
    }
    result_.cycles = now_;
    return 0;
}

}  // namespace

int moon_timing_run(const MoonTimingInstruction *instructions, uint64_t instruction_count, const MoonTimingWave *waves,
                    uint32_t wave_count, const MoonTimingConstants *constants, MoonTimingResult *result,
                    uint64_t *issue) {
    if (instructions == nullptr || waves == nullptr || constants == nullptr || result == nullptr) return 1;
    if (wave_count == 0 || wave_count > 16) return 1;
    for (uint32_t w = 0; w < wave_count; w++) {
        for (uint64_t i = 0; i < waves[w].count; i++) {
            if (waves[w].records[i].instruction >= instruction_count) return 1;
        }
    }
    std::memset(result, 0, sizeof *result);
    return Model(instructions, *constants, *result).run(waves, wave_count, issue);
}
