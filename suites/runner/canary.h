// Canaries: fixed work that has nothing to do with what is measured. When its time changes, the machine did.
#pragma once

#include <cstdint>
#include <string>

#include "baselines/store/records.h"

namespace mbb::suites {

// Thread CPU time of one kind of fixed work: a busy neighbour takes time on the clock, not of this. It is repeated in
// batches, after a warm-up that lets the clock rise.
struct CanaryTime {
  int64_t best_ns = 0;  // of all repetitions
  int64_t spread_ns =
      0;  // from the fastest batch to the slowest, by the best of each: what no change of the machine is
};

struct Canary {
  CanaryTime arithmetic;  // a chain of dependent multiplications: the core's clock
  CanaryTime memory;      // a copy larger than the caches: memory bandwidth
};

Canary run_canary();  // about 80 ms

// Named counts of a launch: "canary_arithmetic_before_ns", "canary_arithmetic_before_spread_ns", ...
void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after);

// The largest relative change from before to after, of either canary, that stands out: from kCanaryLimit on, and
// kCanarySpreads times as far as the batches of either lie apart. 0 when none does, or none was recorded.
inline constexpr double kCanaryLimit = 0.15;
inline constexpr double kCanarySpreads = 2;
double canary_change(const baselines::Launch& launch);

// Such a change makes the launch's times no evidence: the cell gets a verdict "machine" that says so.
void judge_canaries(baselines::Cell& cell);

}  // namespace mbb::suites
