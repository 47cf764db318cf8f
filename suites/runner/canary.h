// Canaries: fixed work that has nothing to do with what is measured. When its time changes, the machine did.
#pragma once

#include <cstdint>
#include <string>

#include "baselines/store/records.h"

namespace mbb::suites {

// Thread CPU time of the best of a few repetitions: a busy neighbour takes time on the clock, not of this.
struct Canary {
  int64_t arithmetic_ns = 0;  // a chain of dependent multiplications: the core's clock
  int64_t memory_ns = 0;      // a copy larger than the caches: memory bandwidth
};

Canary run_canary();  // about 30 ms

// Named counts of a launch: "canary_arithmetic_before_ns", ..., and what they say of it.
void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after);

// The largest relative change from before to after, of either canary, where both were recorded; 0 otherwise.
double canary_change(const baselines::Launch& launch);

// A change from which on the launch's times are no evidence: the cell gets a verdict "machine" that says so.
inline constexpr double kCanaryLimit = 0.15;
void judge_canaries(baselines::Cell& cell);

}  // namespace mbb::suites
