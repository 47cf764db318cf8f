// Times of steps from what a log prints, memory, and the log's own rate.
#include "suites/foreign/log_records.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/check.h"

namespace mbb::suites {
namespace {

constexpr const char* kLoggedRate = "logged_tflops_per_gpu";
constexpr double kSameRate = 0.02;  // printed with one decimal, and by formulas that count a norm or a router more

enum class Clock { kPrinted, kRate, kTimeStamps, kNone };

struct Timed {
  double seconds = kNotLogged;
  Clock clock = Clock::kNone;
};

Timed time_of(const TrainingLog& log, size_t i, int64_t tokens, int64_t gpus) {
  const LoggedStep& step = log.steps[i];
  if (step.seconds > 0) return {step.seconds, Clock::kPrinted};
  const double rate =
      step.tokens_per_second > 0 ? step.tokens_per_second : step.tokens_per_second_per_gpu * static_cast<double>(gpus);
  if (rate > 0 && tokens > 0) return {static_cast<double>(tokens) / rate, Clock::kRate};
  if (i == 0) return {};
  const LoggedStep& before = log.steps[i - 1];
  const double passed = step.clock_s - before.clock_s;
  const int64_t steps = step.index - before.index;
  if (passed > 0 && steps > 0) return {passed / static_cast<double>(steps), Clock::kTimeStamps};
  return {};
}

void add_memory(baselines::Launch& launch, const TrainingLog& log) {
  const int64_t allocated = log.peak_allocated_bytes, peak = std::max(allocated, log.peak_reserved_bytes);
  if (peak <= 0) return;
  baselines::MemoryMap map;
  map.rank_class = "largest rank";
  map.peak_bytes = peak;
  if (allocated > 0) map.categories.push_back({"allocated", -1, allocated});
  if (peak > allocated) map.categories.push_back({"reserved", -1, peak - allocated});
  launch.memory.push_back(std::move(map));
}

void add_counts(baselines::Launch& launch, const TrainingLog& log, const std::map<Clock, int64_t>& clocks) {
  const auto add = [&](const std::string& name, int64_t count) {
    if (count > 0) launch.counts.push_back({name, count});
  };
  add("lines of the log", log.lines);
  if (log.interval() > 1) add("steps that a printed line is the mean of", log.interval());
  add("steps printed again (other ranks, a restart)", log.repeated_steps);
  const auto of = [&](Clock clock) { return clocks.contains(clock) ? clocks.at(clock) : 0; };
  add("steps timed by tokens over the printed rate", of(Clock::kRate));
  add("steps timed by the log's time stamps", of(Clock::kTimeStamps));
  add("steps without a time, left out", of(Clock::kNone));
  for (const auto& [key, count] : log.unreadable) add(fmt::format("'{}' without a number behind it", key), count);
}

}  // namespace

LogContext context_of(const TrainingLog& log, const LogContext& otherwise) {
  LogContext context = otherwise;
  if (log.global_batch_size > 0 && log.sequence_length > 0)
    context.tokens_per_step = log.global_batch_size * log.sequence_length;
  if (log.gpus > 0) context.gpus = log.gpus;
  if (context.tokens_per_step == 0 && !log.steps.empty()) context.tokens_per_step = log.steps.front().tokens;
  return context;
}

namespace {

std::optional<baselines::Step> step_with(const TrainingLog& log, size_t i, const LogContext& context, Clock& clock) {
  const LoggedStep& from = log.steps[i];
  const int64_t tokens = from.tokens > 0 ? from.tokens : context.tokens_per_step;
  const Timed timed = time_of(log, i, tokens, context.gpus);
  clock = timed.clock;
  if (!(timed.seconds > 0) || timed.seconds > 1e8) return std::nullopt;
  baselines::Step step;
  step.index = from.index;
  step.wall_ns = std::llround(timed.seconds * 1e9);
  step.loss = from.loss;
  step.balance_loss = from.balance_loss;
  step.z_loss = from.z_loss;
  step.mtp_loss = from.mtp_loss;
  step.grad_norm = from.grad_norm;
  step.learning_rate = from.learning_rate;
  step.tokens = tokens;
  if (from.skipped) step.flags |= baselines::kStepNonFinite;
  return step;
}

}  // namespace

std::optional<baselines::Step> step_of(const TrainingLog& log, size_t index, const LogContext& context) {
  Clock clock = Clock::kNone;
  return step_with(log, index, context, clock);
}

baselines::Launch launch_of(const TrainingLog& log, const LogContext& context) {
  baselines::Launch launch;
  std::map<Clock, int64_t> clocks;
  for (size_t i = 0; i < log.steps.size(); ++i) {
    Clock clock = Clock::kNone;
    const auto step = step_with(log, i, context, clock);
    ++clocks[clock];
    if (step) launch.steps.push_back(*step);
  }
  launch.loss_checksum = baselines::loss_checksum(launch.steps);
  add_memory(launch, log);
  add_counts(launch, log, clocks);
  return launch;
}

void add_logged_metrics(baselines::Cell& cell, const std::vector<TrainingLog>& logs) {
  std::vector<double> medians;
  for (size_t i = 0; i < std::min(logs.size(), cell.launches.size()); ++i) {
    std::map<int64_t, uint32_t> flags;
    for (const baselines::Step& step : cell.launches[i].steps) flags[step.index] = step.flags;
    std::vector<double> rates;
    for (const LoggedStep& step : logs[i].steps)
      if (step.tflops_per_gpu > 0 && flags.contains(step.index) && (flags[step.index] & baselines::kStepWarmUp) == 0U)
        rates.push_back(step.tflops_per_gpu);
    if (!rates.empty()) medians.push_back(analysis::median(rates));
  }
  if (medians.empty()) return;
  const analysis::MetricInfo* info = analysis::find_metric(kLoggedRate);
  MB_CHECK(info != nullptr, std::string("metric not declared: ") + kLoggedRate);
  baselines::Metric metric{.name = info->id, .value = analysis::mean(medians), .unit = info->unit};
  metric.launches = static_cast<int>(medians.size());
  cell.metrics.push_back(std::move(metric));
}

void judge_logged_rate(baselines::Cell& cell) {
  const auto* logged = analysis::find(cell, kLoggedRate);
  const auto* causal = analysis::find(cell, "tflops_per_gpu_causal");
  const auto* full = analysis::find(cell, "tflops_per_gpu_full");
  if (logged == nullptr || causal == nullptr || full == nullptr) return;
  const auto off = [&](const baselines::Metric& ours) { return logged->value / ours.value - 1.0; };
  const baselines::Metric& nearest = std::abs(off(*causal)) <= std::abs(off(*full)) ? *causal : *full;
  const bool same = std::abs(off(nearest)) <= kSameRate;
  baselines::VerdictRow row;
  row.subject = "TFLOP/s";
  row.verdict = same ? baselines::Verdict::kSame : baselines::Verdict::kIncomparable;
  row.against = nearest.name;
  row.change = off(nearest);
  const char* convention = &nearest == causal ? "causal" : "full";
  row.text = same ? fmt::format("the log's {:.1f} TFLOP/s/GPU are ours by the {} convention ({:.1f})", logged->value,
                                convention, nearest.value)
                  : fmt::format(
                        "the log's {:.1f} TFLOP/s/GPU are ours by neither convention (causal {:.1f}, full "
                        "{:.1f}): another formula, model, batch or number of GPUs",
                        logged->value, causal->value, full->value);
  cell.verdicts.push_back(std::move(row));
}

}  // namespace mbb::suites
