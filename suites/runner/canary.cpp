// The loops, their record, their verdict.
#include "suites/runner/canary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr int kRepetitions = 5;
constexpr int64_t kSteps = 1'000'000;
constexpr size_t kCopyBytes = size_t{16} << 20U;

constexpr const char* kArithmeticBefore = "canary_arithmetic_before_ns";
constexpr const char* kArithmeticAfter = "canary_arithmetic_after_ns";
constexpr const char* kMemoryBefore = "canary_memory_before_ns";
constexpr const char* kMemoryAfter = "canary_memory_after_ns";

template <typename Work>
int64_t best_of(const Work& work) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kRepetitions; ++i) {
    const int64_t began = thread_cpu_ns();
    work();
    best = std::min(best, thread_cpu_ns() - began);
  }
  return best;
}

double count_of(const baselines::Launch& launch, std::string_view name) {
  for (const baselines::NamedCount& count : launch.counts)
    if (count.name == name) return static_cast<double>(count.count);
  return 0;
}

double change(double before, double after) {
  return before > 0 && after > 0 ? after / before - 1.0 : 0.0;
}

}  // namespace

Canary run_canary() {
  Canary canary;
  volatile uint64_t sink = 1;  // keeps the work
  canary.arithmetic_ns = best_of([&] {
    uint64_t x = sink;
    for (int64_t i = 0; i < kSteps; ++i) x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    sink = x;
  });
  std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
  canary.memory_ns = best_of([&] {
    std::memcpy(to.data(), from.data(), kCopyBytes);
    sink = sink + static_cast<unsigned char>(to[static_cast<size_t>(sink % kCopyBytes)]);
  });
  return canary;
}

void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after) {
  launch.counts.push_back({kArithmeticBefore, before.arithmetic_ns});
  launch.counts.push_back({kArithmeticAfter, after.arithmetic_ns});
  launch.counts.push_back({kMemoryBefore, before.memory_ns});
  launch.counts.push_back({kMemoryAfter, after.memory_ns});
}

double canary_change(const baselines::Launch& launch) {
  const double arithmetic = change(count_of(launch, kArithmeticBefore), count_of(launch, kArithmeticAfter));
  const double memory = change(count_of(launch, kMemoryBefore), count_of(launch, kMemoryAfter));
  return std::abs(arithmetic) >= std::abs(memory) ? arithmetic : memory;
}

void judge_canaries(baselines::Cell& cell) {
  for (const baselines::Launch& launch : cell.launches) {
    const double moved = canary_change(launch);
    if (std::abs(moved) < kCanaryLimit) continue;
    baselines::VerdictRow row;
    row.subject = "machine";
    row.verdict = baselines::Verdict::kInconclusive;
    row.change = moved;
    row.text = fmt::format(
        "fixed work took {:+.0f} % after launch {} (the machine changed while it ran: clocks, heat or a "
        "neighbour)",
        100.0 * moved, launch.index);
    cell.verdicts.push_back(std::move(row));
  }
}

}  // namespace mbb::suites
