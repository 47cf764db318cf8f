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
constexpr double kSharedSize = 0.25;   // of the steps: those of that size alone are timed, as step_time() does
constexpr double kMostSkipped = 0.25;  // of the updates; a loss scale is searched within a few steps
constexpr double kSameRate = 0.02;     // printed with one decimal, and by formulas that count a norm or a router more

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
  if (peak > allocated) map.categories.push_back({allocated > 0 ? "not handed out" : "reserved", -1, peak - allocated});
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
  add("steps without a time, left out", of(Clock::kNone) + log.timeless_lines);
  add("lines of steps missing between those printed", log.missing_lines() - log.timeless_lines);
  for (const auto& [key, count] : log.unreadable) add(fmt::format("'{}' without a number behind it", key), count);
}

}  // namespace

LogContext context_of(const TrainingLog& log, const LogContext& otherwise) {
  LogContext context = otherwise;
  if (log.sequence_length > 0) context.sequence_length = log.sequence_length;
  if (log.global_batch_size > 0 && context.sequence_length > 0)
    context.tokens_per_step = log.global_batch_size * context.sequence_length;
  if (log.gpus > 0) context.gpus = log.gpus;
  if (context.tokens_per_step == 0 && !log.steps.empty()) context.tokens_per_step = log.steps.front().tokens;
  return context;
}

namespace {

std::optional<baselines::Step> step_with(const TrainingLog& log, size_t i, const LogContext& context, Clock& clock) {
  const LoggedStep& from = log.steps[i];
  const int64_t own = from.sequences * context.sequence_length;
  const int64_t tokens = from.tokens > 0 ? from.tokens : own > 0 ? own : context.tokens_per_step;
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
  if (from.skipped > 0) step.flags |= baselines::kStepNonFinite;
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

void settle_batch(baselines::Cell& cell) {
  std::map<int64_t, int64_t> steps_of;  // by tokens
  std::vector<double> tokens;
  for (const baselines::Launch& launch : cell.launches)
    for (const baselines::Step& step : launch.steps)
      if (step.tokens > 0) {
        ++steps_of[step.tokens];
        tokens.push_back(static_cast<double>(step.tokens));
      }
  if (steps_of.size() < 2) return;
  auto most = steps_of.begin();
  for (auto one = steps_of.begin(); one != steps_of.end(); ++one)
    if (one->second >= most->second) most = one;
  const bool shared = most->second >= static_cast<int64_t>(std::ceil(kSharedSize * static_cast<double>(tokens.size())));
  cell.work.tokens_per_step = shared ? most->first : std::llround(analysis::median(tokens));
  baselines::VerdictRow row;
  row.subject = "batch";
  row.verdict = baselines::Verdict::kIncomparable;
  const std::string sizes = fmt::format("the {} steps are of {} sizes, {} to {} tokens", tokens.size(), steps_of.size(),
                                        steps_of.begin()->first, steps_of.rbegin()->first);
  row.text = shared ? fmt::format("{}; times and rates are of the {} steps of {} tokens, the others are not timed",
                                  sizes, most->second, most->first)
                    : fmt::format("{}; rates are of their median, {} tokens", sizes, cell.work.tokens_per_step);
  cell.verdicts.push_back(std::move(row));
}

void judge_numerics(baselines::Cell& cell, const std::vector<TrainingLog>& logs) {
  int64_t lines = 0, bad = 0, steps = 0, skipped = 0;
  const LoggedStep* first = nullptr;
  for (const TrainingLog& log : logs) {
    lines += static_cast<int64_t>(log.steps.size());
    const int64_t every = log.interval();
    steps += static_cast<int64_t>(log.steps.size()) * every;
    for (const LoggedStep& step : log.steps) {
      skipped += std::min(step.skipped, every);
      bad += step.loss_not_finite ? 1 : 0;
      if (step.loss_not_finite && first == nullptr) first = &step;
    }
  }
  if (first != nullptr) {
    cell.status = baselines::CellStatus::kBroken;
    cell.reason = fmt::format("the loss of step {} is {} (that of {} of {} steps that the log prints is no number)",
                              first->index, first->loss, bad, lines);
    return;
  }
  if (skipped == 0) return;
  const std::string text =
      fmt::format("{} of {} steps skipped their update, or had a gradient that is no number", skipped, steps);
  if (static_cast<double>(skipped) >= kMostSkipped * static_cast<double>(steps)) {
    cell.status = baselines::CellStatus::kBroken;
    cell.reason = text;
    return;
  }
  baselines::VerdictRow row;
  row.subject = "updates";
  row.verdict = baselines::Verdict::kInconclusive;
  row.text = text;
  cell.verdicts.push_back(std::move(row));
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
