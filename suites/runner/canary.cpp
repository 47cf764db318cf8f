// The loops, their record, their verdict.
#include "suites/runner/canary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr int kBatches = 5;
constexpr int kRepetitions = 3;  // of a batch
constexpr int64_t kSteps = 1'000'000;
constexpr size_t kCopyBytes = size_t{16} << 20U;
constexpr int64_t kWarmUpNs = 15'000'000;  // of CPU time: an idle core takes as long to reach its clock

constexpr const char* kArithmetic = "canary_arithmetic";
constexpr const char* kMemory = "canary_memory";

template <typename Work>
int64_t cpu_time_of(const Work& work) {
  const int64_t began = thread_cpu_ns();
  work();
  return thread_cpu_ns() - began;
}

template <typename Work>
CanaryTime time_work(const Work& work) {
  for (const int64_t began = thread_cpu_ns(); thread_cpu_ns() - began < kWarmUpNs;) work();
  int64_t slowest = 0, best = std::numeric_limits<int64_t>::max();
  for (int batch = 0; batch < kBatches; ++batch) {
    int64_t of_batch = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kRepetitions; ++i) of_batch = std::min(of_batch, cpu_time_of(work));
    best = std::min(best, of_batch);
    slowest = std::max(slowest, of_batch);
  }
  return {best, slowest - best};
}

void record(baselines::Launch& launch, const std::string& canary, const char* when, const CanaryTime& time) {
  launch.counts.push_back({canary + when + "_ns", time.best_ns});
  launch.counts.push_back({canary + when + "_spread_ns", time.spread_ns});
}

CanaryTime recorded(const baselines::Launch& launch, const std::string& canary, const char* when) {
  CanaryTime time;
  for (const baselines::NamedCount& count : launch.counts) {
    if (count.name == canary + when + "_ns") time.best_ns = count.count;
    if (count.name == canary + when + "_spread_ns") time.spread_ns = count.count;
  }
  return time;
}

// 0 unless it stands out.
double change(const baselines::Launch& launch, const char* canary) {
  const CanaryTime before = recorded(launch, canary, "_before"), after = recorded(launch, canary, "_after");
  if (before.best_ns <= 0 || after.best_ns <= 0) return 0;
  const auto from = static_cast<double>(before.best_ns), to = static_cast<double>(after.best_ns);
  const double spread = static_cast<double>(std::max(before.spread_ns, after.spread_ns)) / std::min(from, to);
  const double moved = to / from - 1.0;
  return std::abs(moved) >= std::max(kCanaryLimit, kCanarySpreads * spread) ? moved : 0;
}

}  // namespace

Canary run_canary() {
  Canary canary;
  volatile uint64_t sink = 1;  // keeps the work
  canary.arithmetic = time_work([&] {
    uint64_t x = sink;
    for (int64_t i = 0; i < kSteps; ++i) x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    sink = x;
  });
  std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
  canary.memory = time_work([&] {
    std::memcpy(to.data(), from.data(), kCopyBytes);
    sink = sink + static_cast<unsigned char>(to[static_cast<size_t>(sink % kCopyBytes)]);
  });
  return canary;
}

void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after) {
  record(launch, kArithmetic, "_before", before.arithmetic);
  record(launch, kArithmetic, "_after", after.arithmetic);
  record(launch, kMemory, "_before", before.memory);
  record(launch, kMemory, "_after", after.memory);
}

double canary_change(const baselines::Launch& launch) {
  const double arithmetic = change(launch, kArithmetic), memory = change(launch, kMemory);
  return std::abs(arithmetic) >= std::abs(memory) ? arithmetic : memory;
}

void judge_canaries(baselines::Cell& cell) {
  for (const baselines::Launch& launch : cell.launches) {
    const double moved = canary_change(launch);
    if (moved == 0) continue;
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
