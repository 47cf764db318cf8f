// Canaries: fixed work that has nothing to do with what is measured. When its time changes, the machine did.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "baselines/store/records.h"
#include "profiler/base/error.h"

namespace mbb::suites {

// Time of one kind of fixed work, repeated in batches after a warm-up that lets the clock rise: of the CPU thread CPU
// time, of which a busy neighbour takes nothing; of a GPU the device's.
struct CanaryTime {
  int64_t best_ns = 0;  // of all repetitions; of queues the median
  int64_t spread_ns =
      0;  // from the fastest batch to the slowest, by the best of each: what no change of the machine is
};

struct Canary {
  CanaryTime arithmetic;  // a chain of dependent multiplications: the core's clock
  CanaryTime memory;      // a copy larger than the caches: memory bandwidth
  CanaryTime share = {};  // of a GPU: the arithmetic's in a queue of many time slices; longer where others use it
};

Canary run_canary();  // of the CPU, about 80 ms
// Of a GPU, about 160 ms in a process that has a CUDA context.
Result<Canary> run_gpu_canary(int device);

// Named counts of a launch: "canary_arithmetic_before_ns", "canary_arithmetic_before_spread_ns", ...; of the launch's
// first GPU "canary_gpu_...", of the next "canary_gpu1_...". What a GPU's were before is known to the process of its
// rank alone, so both come from there.
inline constexpr int kOfCpu = -1;
void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after, int gpu = kOfCpu);

// What ranks beside the first leave of their GPUs in their folders, for the record that the first one writes.
Status leave_canary(const std::filesystem::path& folder, const Canary& before, const Canary& after, int gpu);
void take_canary(const std::filesystem::path& folder, baselines::Launch& launch);  // a count says why there is none

// The largest relative change from before to after, of any canary, that stands out: from the limit of its processor on,
// and kCanarySpreads times as far as the batches of either lie apart. 0 when none does, or none was recorded.
inline constexpr double kCanaryLimit = 0.15;
inline constexpr double kGpuCanaryLimit = 0.05;  // nobody shares a GPU's clock, and it is warm both times
inline constexpr double kCanarySpreads = 2;
struct CanaryChange {
  double by = 0;
  std::string of = {};  // the processor
};
CanaryChange canary_change(const baselines::Launch& launch);

// Such a change makes the launch's times no evidence, and so does another process on its GPU: the cell gets a verdict
// "machine" that says so. A change does not where fixed work was done beside each step: its ratio has the machine taken
// out.
void judge_canaries(baselines::Cell& cell);

}  // namespace mbb::suites
