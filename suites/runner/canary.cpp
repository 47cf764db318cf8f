// The loops, their record, their verdict.
#include "suites/runner/canary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "analysis/gate/canary.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/cuda_table.h"

namespace mbb::suites {
namespace {

constexpr int kBatches = 5;
constexpr int kRepetitions = 3;  // of a batch
constexpr int64_t kSteps = 1'000'000;
constexpr size_t kCopyBytes = size_t{16} << 20U;
constexpr int64_t kWarmUpNs = 15'000'000;  // of CPU time: an idle core takes as long to reach its clock

constexpr const char* kCanaryFile = "canary";

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
double change(const baselines::Launch& launch, const std::string& canary) {
  const double limit = analysis::is_of_gpu(canary) ? kGpuCanaryLimit : kCanaryLimit;
  const CanaryTime before = recorded(launch, canary, "_before"), after = recorded(launch, canary, "_after");
  if (before.best_ns <= 0 || after.best_ns <= 0) return 0;
  const auto from = static_cast<double>(before.best_ns), to = static_cast<double>(after.best_ns);
  const double spread = static_cast<double>(std::max(before.spread_ns, after.spread_ns)) / std::min(from, to);
  const double moved = to / from - 1.0;
  return std::abs(moved) >= std::max(limit, kCanarySpreads * spread) ? moved : 0;
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

Result<Canary> run_gpu_canary(int device) {
  MB_ASSIGN(const profiler::CudaTable* table, profiler::cuda_table());
  profiler::CudaCanary times{};
  profiler::CudaText error;
  MB_TRY(profiler::cuda_answer(table->canary(device, &times, &error), error));
  return Canary{{times.arithmetic_ns, times.arithmetic_spread_ns},
                {times.memory_ns, times.memory_spread_ns},
                {times.share_ns, times.share_spread_ns}};
}

void record_canary(baselines::Launch& launch, const Canary& before, const Canary& after, int gpu) {
  const std::string of = gpu == kOfCpu ? "canary" : gpu == 0 ? "canary_gpu" : fmt::format("canary_gpu{}", gpu);
  record(launch, of + "_arithmetic", "_before", before.arithmetic);
  record(launch, of + "_arithmetic", "_after", after.arithmetic);
  record(launch, of + "_memory", "_before", before.memory);
  record(launch, of + "_memory", "_after", after.memory);
  if (gpu == kOfCpu) return;
  record(launch, of + "_share", "_before", before.share);
  record(launch, of + "_share", "_after", after.share);
}

Status leave_canary(const std::filesystem::path& folder, const Canary& before, const Canary& after, int gpu) {
  baselines::Launch launch;
  record_canary(launch, before, after, gpu);
  std::string text;
  for (const baselines::NamedCount& count : launch.counts) text += fmt::format("{} {}\n", count.name, count.count);
  return write_file(folder / kCanaryFile, text);
}

void take_canary(const std::filesystem::path& folder, baselines::Launch& launch) {
  const auto text = read_file(folder / kCanaryFile);
  if (!text) {
    launch.counts.push_back({fmt::format("canary of rank {}: none was left", folder.filename().string()), 1});
    return;
  }
  for (const std::string_view line : split(trim(*text), '\n')) {
    const size_t space = line.find(' ');
    const auto count = parse_int(space == std::string_view::npos ? "" : line.substr(space + 1));
    if (count) launch.counts.push_back({std::string(line.substr(0, space)), *count});
  }
}

CanaryChange canary_change(const baselines::Launch& launch) {
  CanaryChange most;
  for (const std::string& canary : analysis::canaries_of(launch)) {
    if (analysis::is_of_share(canary)) continue;  // contention() tells
    if (const double moved = change(launch, canary); std::abs(moved) > std::abs(most.by))
      most = {moved, analysis::processor_of(canary)};
  }
  return most;
}

void judge_canaries(baselines::Cell& cell) {
  const auto add = [&](double by, std::string text) {
    baselines::VerdictRow row;
    row.subject = "machine";
    row.verdict = baselines::Verdict::kInconclusive;
    row.change = by;
    row.text = std::move(text);
    cell.verdicts.push_back(std::move(row));
  };
  for (const baselines::Launch& launch : cell.launches) {
    const CanaryChange moved = canary_change(launch);
    const bool beside = std::any_of(launch.steps.begin(), launch.steps.end(),
                                    [](const baselines::Step& step) { return step.reference_ns > 0; });
    if (moved.by == 0 || beside) continue;
    add(moved.by,
        fmt::format(
            "fixed work on {} took {:+.0f} % after launch {} (the machine changed while it ran: clocks, heat or "
            "a neighbour)",
            moved.of, 100.0 * moved.by, launch.index));
  }
  if (const analysis::Contention shared = analysis::contention(cell); shared.by > 0)
    add(shared.by, analysis::text(shared));
}

}  // namespace mbb::suites
