// What the canaries of a session say: fixed work, timed around each launch, that no product can make slower.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::analysis {

// What a launch timed: canary_{arithmetic,memory} of the CPU, canary_gpu_{arithmetic,memory,share} of its first GPU,
// canary_gpu1_... of the next; each stands in the launch's counts, with _before_ns and _after_ns. Each once.
std::vector<std::string> canaries_of(const baselines::Launch& launch);
bool is_of_gpu(std::string_view canary);
bool is_of_share(std::string_view canary);
std::string processor_of(std::string_view canary);  // "the CPU", "GPU 0"

// Times of a cell's canaries over its good launches, in ns: of thread CPU time for cells of the CPU, else of the first
// GPU's. NaN where none was recorded.
struct CanaryTimes {
  double arithmetic_ns = baselines::kNotMeasured;
  double memory_ns = baselines::kNotMeasured;
};
CanaryTimes canary_times(const baselines::Cell& cell);

// Another process on a cell's GPUs. Time slices of a GPU are longer than the arithmetic, whose best therefore knows no
// neighbour; in a queue of many slices (share) it waits for them. So both of one moment tell, and no baseline is
// needed.
struct Contention {
  double by = 0;        // longer than alone, at most; 0 where it does not stand out
  std::string of = {};  // the GPU of that
  size_t beside = 0;    // launches
  size_t of_launches = 0;
};
Contention contention(const baselines::Cell& cell);
std::string text(const Contention& contention);  // empty at 0

// By how much the machine itself has become slower for a cell, by the largest of its kinds of canary; share counts by
// what it is of the arithmetic, from where that is contention on, and against 1 where there was none then. Of several
// GPUs, which wait for the slowest at every step, the slowest now against the slowest then, among those that both
// timed: more of them do not make a wrong excuse likelier. 0 when there is nothing to compare, and when it has become
// faster.
struct Slowdown {
  double by = 0;
  std::string of = {};  // the slowest processor now; empty at 0
  bool shared = false;  // as another process uses it more
};
Slowdown machine_slowdown(const baselines::Cell& then, const baselines::Cell& now);

std::string_view cause(const Slowdown& slowdown);  // "the machine is slower", "another process uses it"

// The metric of a cell that its canaries speak of.
std::string_view metric_of_canaries(const baselines::Cell& cell);

// Whether a machine that is slower by `slowdown` explains a cell that is slower by `change`.
bool explains(double slowdown, double change);

}  // namespace mbb::analysis
