// From the launches of a cell to its metrics: steady steps, medians, intervals over launches, throughput, MFU, the
// shares of the step. Fills what a table, the store and the gate read.
#pragma once

#include <string>
#include <vector>

#include "analysis/exposure/breakdown.h"
#include "analysis/stats/stats.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// Launches of a cell that ended well: what a number that each of them has alike (of the plan they ran) rests on.
int good_launches(const baselines::Cell& cell);

// Which time of a step the step_time metric is.
enum class StepClock { kWall, kModelled };

inline constexpr const char* kNoInterval = "no interval";

// Step time of a cell over its good launches.
struct StepTime {
  Estimate estimate;                   // ns; over launches with two or more of them, else over one launch's steps
  std::vector<double> launch_medians;  // ns, of the launches that reached a steady state
  double launch_sigma = 0;             // relative; NaN with one launch
  // What the bounds cover: "95 % over 5 launches", "95 % over 40 steps of one launch"; where too few steps leave none,
  // it begins with kNoInterval and says so.
  std::string interval;
  size_t steady_launches = 0;         // that reached a steady state
  size_t steady_steps = 0;            // of them
  size_t stalls = 0;                  // of them: single outliers
  std::vector<std::string> problems;  // launches left out, and why: "launch 2: no steady state: ..."
};

// Marks steps before the steady state with kStepWarmUp, then estimates. Profiled steps never count, nor steps of other
// tokens than the work's where a quarter of a launch or more has those. A launch of CPU ranks without a steady state
// stands with all timed steps but the first (with the only one): its time is no claim. Any other is left out.
StepTime step_time(baselines::Cell& cell, StepClock clock = StepClock::kWall);

// Median CPU time of a launch's steady steps, all ranks' threads together, by the marks that step_time() leaves; NaN
// when no step has one.
double cpu_step_ns(const baselines::Launch& launch);
// The same over the fixed work beside each step (the mean of that before and after it); 0 where none was done.
double cpu_step_ratio(const baselines::Launch& launch);
// The good launches that cpu_step_ratio is taken from. A neighbour on the core slows the fixed work by a quarter and a
// step by a half, so that their ratio does not take it out: launches whose fixed work took over kQuietWork of what it
// took in the quickest one are left out, as long as kQuietLaunches stay. Without fixed work: all good launches.
std::vector<const baselines::Launch*> quiet_launches(const baselines::Cell& cell);
inline constexpr double kQuietWork = 1.03;
inline constexpr size_t kQuietLaunches = 3;
// cpu_step_time (ns) of the good launches, or cpu_step_ratio of the quiet ones.
struct CpuValues {
  std::vector<double> values;
  int disturbed = 0;  // good launches that were left out
};
CpuValues cpu_values(const baselines::Cell& cell, std::string_view metric);
// What speed on the CPU is judged by: cpu_step_ratio where every good launch did the fixed work, else cpu_step_time.
std::string_view cpu_metric(const baselines::Cell& cell);

// Replaces cell.metrics. `breakdowns`: one a traced rank and step, any launch; empty when nothing was traced. Fields
// that cannot be known (MFU of an unknown device) are left out. `uses_fp8`: print MFU against the FP8 peak too.
// An error: no launch gave a steady step, or the cell's work has a formula and no tokens. Work without a formula is not
// known: rates are left out.
Status fill_metrics(baselines::Cell& cell, const std::vector<StepBreakdown>& breakdowns, bool uses_fp8 = false,
                    StepClock clock = StepClock::kWall);

// The same from a step time that is known otherwise, such as the committed figures of a card: the cell's launches need
// no steps. `time` needs a positive estimate and a launch.
Status fill_metrics_of(baselines::Cell& cell, const StepTime& time, const std::vector<StepBreakdown>& breakdowns,
                       bool uses_fp8 = false);

// Of a cell whose launches hold no steps (an imported trace or snapshot): the shares of its breakdowns and its memory.
void fill_trace_metrics(baselines::Cell& cell, const std::vector<StepBreakdown>& breakdowns);

// Adds HFU beside every MFU (causal) that is there: `recompute_share` is the FLOPs of recompute passes over model
// FLOPs.
void add_hardware_utilization(baselines::Cell& cell, double recompute_share);

// Adds the share of model FLOPs that a recipe of fewer bits could take, from the step program.
void add_eligible_flops(baselines::Cell& cell, double share);

// What a whole training takes at a cell's rate; not stored, since its inputs are the asker's.
struct TrainingPlan {
  double tokens = 0;          // of the training
  double price_gpu_hour = 0;  // in any currency; 0: no cost
};
// days_to_train, and with a price cost_to_train; empty without a rate or tokens.
std::vector<baselines::Metric> training_cost(const baselines::Cell& cell, const TrainingPlan& plan);

const baselines::Metric* find(const baselines::Cell& cell, std::string_view metric);

}  // namespace mbb::analysis
