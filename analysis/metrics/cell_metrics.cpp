// Computes a cell's metrics from its launches.
#include "analysis/metrics/cell_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "analysis/metrics/metrics.h"
#include "analysis/metrics/peaks.h"
#include "profiler/base/check.h"

namespace mbb::analysis {

namespace {

using baselines::Cell;
using baselines::kNotMeasured;
using baselines::Launch;
using baselines::Metric;
using baselines::Step;

bool is_good(const Launch& launch) {
  return launch.exit_status == 0 && launch.signal == 0 && launch.reason.empty();
}

bool is_timed(const Step& step) {
  return (step.flags & baselines::kStepProfiled) == 0U;
}

double time_of(const Step& step, StepClock clock) {
  return static_cast<double>(clock == StepClock::kModelled ? step.modelled_ns : step.wall_ns);
}

// The timed steps of a launch without a mark. Where a quarter of its steps or more have the tokens that the cell's
// rates are of, steps of other sizes are not timed and marked as no part of any metric.
std::vector<Step*> timed_steps(Launch& launch, int64_t tokens_per_step) {
  const auto of_the_size = [&](const Step& step) { return step.tokens == tokens_per_step; };
  const auto same = std::count_if(launch.steps.begin(), launch.steps.end(), of_the_size);
  const bool sized = tokens_per_step > 0 && 4 * same >= static_cast<std::ptrdiff_t>(launch.steps.size());
  std::vector<Step*> timed;
  for (Step& step : launch.steps) {
    if (!is_timed(step)) continue;
    step.flags &= ~static_cast<uint32_t>(baselines::kStepWarmUp);
    if (sized && step.tokens > 0 && !of_the_size(step))
      step.flags |= baselines::kStepWarmUp;
    else
      timed.push_back(&step);
  }
  return timed;
}

// Times of the timed steps of a launch, and marks its warm-up.
SteadyState find_steady(Launch& launch, int64_t tokens_per_step, StepClock clock, std::vector<double>& steady) {
  const std::vector<Step*> timed = timed_steps(launch, tokens_per_step);
  std::vector<double> times;
  for (const Step* step : timed) times.push_back(time_of(*step, clock));
  const SteadyState state = find_steady_state(times);
  if (!state.found) return state;
  for (size_t i = 0; i < state.first; ++i) timed[i]->flags |= baselines::kStepWarmUp;
  steady.assign(times.begin() + static_cast<std::ptrdiff_t>(state.first), times.end());
  return state;
}

// All timed steps but the first, which is marked as warm-up unless it is the only one; false when none is timed.
bool all_but_first(Launch& launch, int64_t tokens_per_step, StepClock clock, std::vector<double>& times) {
  const std::vector<Step*> timed = timed_steps(launch, tokens_per_step);
  bool first = timed.size() > 1;
  for (Step* step : timed) {
    if (first)
      step->flags |= baselines::kStepWarmUp;
    else
      times.push_back(time_of(*step, clock));
    first = false;
  }
  return !timed.empty();
}

// Adds metrics of one cell under the declared names and units.
class Writer {
 public:
  explicit Writer(Cell& cell) : cell_(cell) { cell_.metrics.clear(); }

  void add(const char* id, double value, double low = kNotMeasured, double high = kNotMeasured,
           const std::string& interval = "", int launches = 0) {
    const MetricInfo* info = find_metric(id);
    MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
    if (!std::isfinite(value)) return;
    cell_.metrics.push_back({info->id, value, low, high, info->unit, launches, interval});
  }

  // A metric without an interval, of so many launches.
  void add_of(const char* id, double value, int launches) { add(id, value, kNotMeasured, kNotMeasured, "", launches); }

  // A metric that is `numerator` / step time, with the interval turned round.
  void add_rate(const char* id, double numerator, const StepTime& time, int launches) {
    const Estimate& e = time.estimate;
    if (!(numerator > 0.0)) return;
    add(id, numerator / e.value, e.has_interval() ? numerator / e.high : kNotMeasured,
        e.has_interval() && e.low > 0.0 ? numerator / e.low : kNotMeasured, time.interval, launches);
  }

 private:
  Cell& cell_;
};

void add_throughput(Writer& writer, const Cell& cell, const StepTime& time, bool uses_fp8) {
  const int launches = static_cast<int>(time.launch_medians.size());
  const auto tokens = static_cast<double>(cell.work.tokens_per_step);
  const double gpus = std::max(1, cell.gpus);
  writer.add_rate("tokens_per_second", tokens * 1e9, time, launches);
  writer.add_rate("tokens_per_second_per_gpu", tokens * 1e9 / gpus, time, launches);
  // FLOPs / ns = GFLOP/s: 1e-3 makes TFLOP/s.
  const double causal = tokens * cell.work.flops_per_token_causal * 1e-3 / gpus;
  writer.add_rate("tflops_per_gpu_causal", causal, time, launches);
  writer.add_rate("tflops_per_gpu_full", tokens * cell.work.flops_per_token_full * 1e-3 / gpus, time, launches);
  const auto peaks = peaks_of(cell.device);
  if (!peaks) return;
  const double full = tokens * cell.work.flops_per_token_full * 1e-3 / gpus;
  writer.add_rate("mfu_bf16", 100.0 * causal / peaks->bf16_tflops, time, launches);
  writer.add_rate("mfu_bf16_full", 100.0 * full / peaks->bf16_tflops, time, launches);
  if (!uses_fp8 || !(peaks->fp8_tflops > 0.0)) return;
  writer.add_rate("mfu_fp8", 100.0 * causal / peaks->fp8_tflops, time, launches);
  writer.add_rate("mfu_fp8_full", 100.0 * full / peaks->fp8_tflops, time, launches);
}

// Launches of a cell that have something.
template <typename Has>
int launches_with(const Cell& cell, Has has) {
  return static_cast<int>(std::count_if(cell.launches.begin(), cell.launches.end(),
                                        [&](const Launch& launch) { return is_good(launch) && has(launch); }));
}

void add_shares(Writer& writer, const Cell& cell, const std::vector<StepBreakdown>& breakdowns) {
  if (breakdowns.empty()) return;
  const StepBreakdown all = sum(breakdowns);
  if (all.total_ns <= 0) return;
  const int traced = launches_with(cell, [](const Launch& launch) { return !launch.trace_files.empty(); });
  const auto share = [&](int64_t part) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(all.total_ns);
  };
  const auto add = [&](const char* id, double percent) { writer.add_of(id, percent, traced); };
  add("compute", share(all.compute_ns));
  add("comm", share(all.comm_busy_ns));
  add("exposed_comm", all.exposed_comm_pct());
  constexpr const char* kBusy[] = {"comm_tp", "comm_cp", "comm_ep", "comm_pp", "comm_dp", "comm_other"};
  constexpr const char* kExposed[] = {"exposed_comm_tp", "exposed_comm_cp", "exposed_comm_ep",
                                      "exposed_comm_pp", "exposed_comm_dp", "exposed_comm_other"};
  static_assert(std::size(kBusy) == kCommKinds && std::size(kExposed) == kCommKinds);
  for (size_t kind = 0; kind < kCommKinds; ++kind) {
    if (all.comm[kind].busy_ns <= 0) continue;
    add(kBusy[kind], share(all.comm[kind].busy_ns));
    add(kExposed[kind], share(all.comm[kind].exposed_ns));
  }
  add("exposed_copy", share(all.exposed_copy_ns));
  add("idle", share(all.idle_ns));
  constexpr const char* kCauses[] = {"idle_host_bound", "idle_launch_gap", "idle_dependency", "idle_bubble"};
  static_assert(std::size(kCauses) == kIdleCauses);
  for (size_t cause = 0; cause < kIdleCauses; ++cause) add(kCauses[cause], share(all.idle_by_cause_ns[cause]));
  add("bubble", all.bubble_pct());
  add("skew", share(all.skew_ns()));
  if (all.comm_busy_ns > 0) add("overlap", all.overlap_pct());
}

// The map with the largest peak, of the launches (as executed) before the plan.
const baselines::MemoryMap* fullest_map(const Cell& cell) {
  const baselines::MemoryMap* fullest = nullptr;
  const auto look = [&](const std::vector<baselines::MemoryMap>& maps) {
    for (const baselines::MemoryMap& map : maps)
      if (fullest == nullptr || map.peak_bytes > fullest->peak_bytes) fullest = &map;
  };
  for (const Launch& launch : cell.launches) look(launch.memory);
  look(cell.memory);
  return fullest;
}

void add_memory(Writer& writer, const Cell& cell) {
  const baselines::MemoryMap* map = fullest_map(cell);
  if (map == nullptr || map->peak_bytes <= 0) return;
  const int measured = launches_with(cell, [](const Launch& launch) { return !launch.memory.empty(); });
  const int launches = measured > 0 ? measured : good_launches(cell);
  writer.add_of("peak_memory", static_cast<double>(map->peak_bytes), launches);
  for (const baselines::CategoryBytes& category : map->categories) {
    const int64_t bytes = category.measured_bytes >= 0 ? category.measured_bytes : category.planned_bytes;
    std::string id = "memory_" + category.category;
    std::replace(id.begin(), id.end(), ' ', '_');
    if (bytes > 0 && find_metric(id) != nullptr) writer.add_of(id.c_str(), static_cast<double>(bytes), launches);
  }
}

// Of Transformer blocks: a GEMM has a role, a block's path a layer.
void add_eligible_time(Writer& writer, const Cell& cell) {
  int64_t eligible = 0, all = 0;
  for (const Launch& launch : cell.launches)
    for (const baselines::OpRow& row : launch.ops) {
      all += row.total_ns;
      const bool block = row.path.starts_with("layers.") || row.path.find(".layers.") != std::string::npos;
      const bool product = row.kind.find("gemm") != std::string::npos && row.kind != "router_gemm";
      if (product && block && row.stream == "compute") eligible += row.total_ns;
    }
  if (eligible <= 0) return;
  writer.add_of("fp8_eligible_time", 100.0 * static_cast<double>(eligible) / static_cast<double>(all),
                launches_with(cell, [](const Launch& launch) { return !launch.ops.empty(); }));
}

// Of the first good launch with profiled steps. Ranks that share cores are judged by their CPU time.
void add_tracing(Writer& writer, const Cell& cell) {
  const bool cpu = cell.result_class == baselines::ResultClass::kFunctionalCpu;
  for (const Launch& launch : cell.launches) {
    std::vector<double> traced, timed;
    for (const Step& step : launch.steps) {
      if ((step.flags & baselines::kStepWarmUp) != 0U) continue;
      const auto ns = static_cast<double>(cpu ? step.cpu_ns : step.wall_ns);
      if (ns > 0.0) (is_timed(step) ? timed : traced).push_back(ns);
    }
    if (!is_good(launch) || traced.empty() || timed.empty()) continue;
    const Estimate a = median_of_steps(traced), b = median_of_steps(timed);
    const auto percent = [](double over, double under) { return 100.0 * (over / under - 1.0); };
    const bool bounds = a.has_interval() && b.has_interval() && b.low > 0.0;
    writer.add(
        "tracing_overhead", percent(a.value, b.value), bounds ? percent(a.low, b.high) : kNotMeasured,
        bounds ? percent(a.high, b.low) : kNotMeasured,
        bounds ? fmt::format("ends of both medians' intervals, {} and {} steps", traced.size(), timed.size()) : "", 1);
    return;
  }
}

// Of a cell of one CPU rank. The warm-up marks are those of the wall clock.
void add_cpu_time(Writer& writer, const Cell& cell) {
  if (cell.result_class != baselines::ResultClass::kFunctionalCpu || cell.ranks != 1) return;
  for (const char* metric : {"cpu_step_time", "cpu_step_ratio"}) {
    const CpuValues of = cpu_values(cell, metric);
    if (of.values.empty()) continue;
    const Estimate e = over_launches(of.values);
    std::string interval = of.values.size() < 2 ? "" : fmt::format("95 % over {} launches", of.values.size());
    if (!interval.empty() && of.disturbed > 0) interval += fmt::format("; {} more shared their core", of.disturbed);
    writer.add(metric, e.value, e.low, e.high, interval, static_cast<int>(of.values.size()));
  }
}

void add_losses(Writer& writer, const Cell& cell) {
  std::vector<double> first, last, final;
  for (const Launch& launch : cell.launches) {
    if (!is_good(launch) || launch.steps.empty()) continue;
    const size_t count = (launch.steps.size() + 9) / 10;
    double sum = 0;
    for (size_t i = launch.steps.size() - count; i < launch.steps.size(); ++i) sum += launch.steps[i].loss;
    for (const auto& [values, loss] : {std::pair{&first, launch.steps.front().loss},
                                       {&last, launch.steps.back().loss},
                                       {&final, sum / static_cast<double>(count)}})
      if (std::isfinite(loss)) values->push_back(loss);
  }
  for (const auto& [id, values] : {std::pair{"first_loss", &first}, {"last_loss", &last}, {"final_loss", &final}})
    if (!values->empty()) writer.add_of(id, median(*values), static_cast<int>(values->size()));
}

Status write_metrics(Cell& cell, const StepTime& time, const std::vector<StepBreakdown>& breakdowns, bool uses_fp8,
                     StepClock clock) {
  Writer writer(cell);
  if (time.launch_medians.empty() || !(time.estimate.value > 0.0)) {
    const std::string why = time.problems.empty() ? "the cell has no launch" : time.problems.front();
    return fail(ErrorCode::kMismatch, fmt::format("cell {}: no step time: {}", cell.name, why),
                "run more steps (train_iters), or look at the launch's log");
  }
  if (cell.work.tokens_per_step <= 0 && !cell.work.formula.empty())
    return fail(ErrorCode::kMismatch, fmt::format("cell {}: its step processes no tokens", cell.name));
  const Estimate& e = time.estimate;
  const int launches = static_cast<int>(time.launch_medians.size());
  writer.add("step_time", e.value, e.low, e.high, time.interval, launches);
  if (time.steady_steps > 0)
    writer.add_of("stalls", 100.0 * static_cast<double>(time.stalls) / static_cast<double>(time.steady_steps),
                  static_cast<int>(time.steady_launches));
  if (clock == StepClock::kWall) {
    const StepTime modelled = [&] {
      Cell copy = cell;  // the modelled clock must not move the warm-up marks
      const bool known = std::all_of(copy.launches.begin(), copy.launches.end(), [](const Launch& launch) {
        return std::all_of(launch.steps.begin(), launch.steps.end(), [](const Step& s) { return s.modelled_ns > 0; });
      });
      return known ? step_time(copy, StepClock::kModelled) : StepTime{};
    }();
    if (!modelled.launch_medians.empty()) {
      const Estimate& m = modelled.estimate;
      writer.add("modelled_step_time", m.value, m.low, m.high, modelled.interval,
                 static_cast<int>(modelled.launch_medians.size()));
    }
  }
  add_throughput(writer, cell, time, uses_fp8);
  add_shares(writer, cell, breakdowns);
  add_eligible_time(writer, cell);
  add_memory(writer, cell);
  add_tracing(writer, cell);
  add_losses(writer, cell);
  add_cpu_time(writer, cell);
  return {};
}

std::vector<const Launch*> good(const Cell& cell) {
  std::vector<const Launch*> launches;
  for (const Launch& launch : cell.launches)
    if (is_good(launch)) launches.push_back(&launch);
  return launches;
}

}  // namespace

int good_launches(const Cell& cell) {
  return static_cast<int>(good(cell).size());
}

double cpu_step_ns(const Launch& launch) {
  std::vector<double> steady;
  for (const Step& step : launch.steps)
    if (is_timed(step) && step.cpu_ns > 0) steady.push_back(static_cast<double>(step.cpu_ns));
  return median(steady);
}

std::string_view cpu_metric(const Cell& cell) {
  const auto has_reference = [](const Launch& launch) { return !is_good(launch) || cpu_step_ratio(launch) > 0; };
  const bool all = std::all_of(cell.launches.begin(), cell.launches.end(), has_reference);
  return all && !cell.launches.empty() ? "cpu_step_ratio" : "cpu_step_time";
}

std::vector<const Launch*> quiet_launches(const Cell& cell) {
  const std::vector<const Launch*> all = good(cell);
  std::vector<double> work_of;
  for (const Launch* launch : all) {
    std::vector<double> work;
    for (const Step& step : launch->steps)
      if (is_timed(step) && step.reference_ns > 0) work.push_back(static_cast<double>(step.reference_ns));
    if (work.empty()) return all;
    work_of.push_back(median(work));
  }
  std::vector<const Launch*> quiet;
  for (size_t i = 0; i < all.size(); ++i)
    if (work_of[i] <= kQuietWork * *std::min_element(work_of.begin(), work_of.end())) quiet.push_back(all[i]);
  return quiet.size() < kQuietLaunches ? all : quiet;
}

CpuValues cpu_values(const Cell& cell, std::string_view metric) {
  CpuValues out;
  const bool ratio = metric == "cpu_step_ratio";
  const std::vector<const Launch*> launches = ratio ? quiet_launches(cell) : good(cell);
  for (const Launch* launch : launches)
    if (const double value = ratio ? cpu_step_ratio(*launch) : cpu_step_ns(*launch); value > 0.0)
      out.values.push_back(value);
  out.disturbed = good_launches(cell) - static_cast<int>(launches.size());
  return out;
}

double cpu_step_ratio(const Launch& launch) {
  std::vector<double> steady;
  const std::vector<Step>& steps = launch.steps;
  for (size_t i = 1; i < steps.size(); ++i) {
    const std::int64_t around = steps[i - 1].reference_ns + steps[i].reference_ns;
    if (is_timed(steps[i]) && steps[i].cpu_ns > 0 && steps[i - 1].reference_ns > 0 && steps[i].reference_ns > 0)
      steady.push_back(2.0 * static_cast<double>(steps[i].cpu_ns) / static_cast<double>(around));
  }
  return steady.empty() ? 0.0 : median(steady);
}

StepTime step_time(Cell& cell, StepClock clock) {
  StepTime out;
  out.launch_sigma = kNotMeasured;
  std::vector<double> only_steps;
  for (Launch& launch : cell.launches) {
    if (!is_good(launch)) {
      const std::string how = launch.reason.empty() ? "ended with an error" : launch.reason;
      out.problems.push_back(fmt::format("launch {}: {}", launch.index, how));
      continue;
    }
    std::vector<double> steady;
    const SteadyState state = find_steady(launch, cell.work.tokens_per_step, clock, steady);
    if (!state.found) {
      out.problems.push_back(fmt::format("launch {}: {}", launch.index, state.reason));
      // Ranks on shared cores need not settle, and their time is no claim: all steps but the first stand for it.
      if (cell.result_class != baselines::ResultClass::kFunctionalCpu ||
          !all_but_first(launch, cell.work.tokens_per_step, clock, steady))
        continue;
    } else {
      ++out.steady_launches;
      out.steady_steps += steady.size();
      out.stalls += state.stalls;
    }
    out.launch_medians.push_back(median(steady));
    only_steps = std::move(steady);
  }
  if (out.launch_medians.empty()) {
    out.estimate = over_launches({});
  } else if (out.launch_medians.size() == 1) {
    out.estimate = median_of_steps(only_steps);
    const std::string over =
        fmt::format("over {} step{} of one launch", only_steps.size(), only_steps.size() == 1 ? "" : "s");
    out.interval = only_steps.size() < kFewestSteps
                       ? fmt::format("{} {}: at least {} are needed", kNoInterval, over, kFewestSteps)
                       : "95 % " + over;
  } else {
    out.estimate = over_launches(out.launch_medians);
    out.launch_sigma = out.estimate.sigma / out.estimate.value;
    out.interval = fmt::format("95 % over {} launches", out.launch_medians.size());
  }
  return out;
}

Status fill_metrics(Cell& cell, const std::vector<StepBreakdown>& breakdowns, bool uses_fp8, StepClock clock) {
  return write_metrics(cell, step_time(cell, clock), breakdowns, uses_fp8, clock);
}

Status fill_metrics_of(Cell& cell, const StepTime& time, const std::vector<StepBreakdown>& breakdowns, bool uses_fp8) {
  return write_metrics(cell, time, breakdowns, uses_fp8, StepClock::kModelled);
}

void fill_trace_metrics(Cell& cell, const std::vector<StepBreakdown>& breakdowns) {
  Writer writer(cell);
  add_shares(writer, cell, breakdowns);
  add_memory(writer, cell);
}

void add_hardware_utilization(Cell& cell, double recompute_share) {
  for (const auto& [from, to] : {std::pair("mfu_bf16", "hfu_bf16"), std::pair("mfu_fp8", "hfu_fp8")}) {
    const Metric* mfu = find(cell, from);
    if (mfu == nullptr) continue;
    const MetricInfo* info = find_metric(to);
    MB_CHECK(info != nullptr, std::string("metric not declared: ") + to);
    Metric hfu = *mfu;
    hfu.name = info->id;
    for (double* value : {&hfu.value, &hfu.low, &hfu.high}) *value *= 1.0 + recompute_share;
    cell.metrics.push_back(std::move(hfu));
  }
}

void add_eligible_flops(Cell& cell, double share) {
  const MetricInfo* info = find_metric("fp8_eligible_flops");
  MB_CHECK(info != nullptr, "metric not declared: fp8_eligible_flops");
  cell.metrics.push_back(
      {.name = info->id, .value = 100.0 * share, .unit = info->unit, .launches = good_launches(cell)});
}

std::vector<Metric> training_cost(const Cell& cell, const TrainingPlan& plan) {
  std::vector<Metric> out;
  const Metric* rate = find(cell, "tokens_per_second");
  if (rate == nullptr || !(plan.tokens > 0) || !(rate->value > 0)) return out;
  const auto days = [&](double tokens_per_second) { return plan.tokens / tokens_per_second / 86400.0; };
  const auto add = [&](const char* id, double scale) {
    const MetricInfo* info = find_metric(id);
    MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
    // More tokens a second are fewer days: the bounds change places.
    out.push_back({info->id, scale * days(rate->value), rate->high > 0 ? scale * days(rate->high) : kNotMeasured,
                   rate->low > 0 ? scale * days(rate->low) : kNotMeasured, info->unit, rate->launches, rate->interval});
  };
  add("days_to_train", 1.0);
  if (plan.price_gpu_hour > 0) add("cost_to_train", std::max(1, cell.gpus) * 24.0 * plan.price_gpu_hour);
  return out;
}

const Metric* find(const Cell& cell, std::string_view metric) {
  for (const Metric& one : cell.metrics)
    if (one.name == metric) return &one;
  return nullptr;
}

}  // namespace mbb::analysis
