// Tests of the declared metrics and of a cell's metrics from its launches.
#include "analysis/metrics/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/peaks.h"

namespace mbb::analysis {
namespace {

using baselines::Cell;
using baselines::Launch;

TEST(Metrics, EveryDeclarationIsWhole) {
  std::set<std::string> ids;
  std::set<std::string> titles;
  const std::set<std::string> units = {"ns", "tokens/s", "TFLOP/s", "%", "bytes", "days", ""};
  for (const MetricInfo& metric : metrics()) {
    EXPECT_TRUE(ids.insert(metric.id).second) << metric.id;
    EXPECT_TRUE(titles.insert(metric.title).second) << metric.title;
    EXPECT_TRUE(units.contains(metric.unit)) << metric.id;
    EXPECT_TRUE(std::string(metric.definition).ends_with(".")) << metric.id;
    EXPECT_EQ(find_metric(metric.id), &metric);
    EXPECT_EQ(std::string(metric.unit) == "%", metric.form == MetricForm::kPercent) << metric.id;
    EXPECT_NE(describe(metric).find(metric.definition), std::string::npos);
  }
  EXPECT_EQ(find_metric("no_such"), nullptr);
}

TEST(Metrics, HelpFindsTermsAsPeopleTypeThem) {
  ASSERT_EQ(lookup_metrics("Exposed-Comm").size(), 1u);
  EXPECT_STREQ(lookup_metrics("Exposed-Comm")[0]->id, "exposed_comm");
  EXPECT_GE(lookup_metrics("mfu").size(), 2u);
  EXPECT_STREQ(lookup_metrics("tokens/s/gpu")[0]->id, "tokens_per_second_per_gpu");
  EXPECT_TRUE(lookup_metrics("banana").empty());
  EXPECT_TRUE(lookup_metrics("  ").empty());
}

TEST(Metrics, ValuesForAPerson) {
  const MetricInfo& rate = *find_metric("tokens_per_second");
  EXPECT_EQ(format_value(rate, 10682.4), "10682");
  EXPECT_EQ(format_value(rate, 12.345), "12.35");
  EXPECT_EQ(format_value(rate, NAN), "-");
  EXPECT_EQ(format_value(*find_metric("exposed_comm"), 4.06), "4.1 %");
  EXPECT_EQ(format_half_width(rate, 90, 110), "±10.00");
  EXPECT_EQ(format_half_width(rate, NAN, NAN), "");
}

TEST(Metrics, PeaksNeedTheExactName) {
  ASSERT_TRUE(peaks_of("NVIDIA H100 80GB HBM3"));
  EXPECT_DOUBLE_EQ(peaks_of("NVIDIA H100 80GB HBM3")->bf16_tflops, 989.4);
  EXPECT_FALSE(peaks_of("NVIDIA H100 PCIe"));
  EXPECT_FALSE(peaks_of("NVIDIA H100 NVL"));
  EXPECT_FALSE(peaks_of("cpu"));
}

Launch launch_of(int index, int64_t step_ns, int count = 30) {
  Launch launch;
  launch.index = index;
  for (int i = 0; i < count; ++i) {
    baselines::Step step;
    step.index = i;
    step.wall_ns = i == 0 ? step_ns * 4 : step_ns + (i * 7919 % 13 - 6) * step_ns / 10000;
    step.loss = 5.0 - 0.1 * i;
    step.tokens = 8192;
    launch.steps.push_back(step);
  }
  return launch;
}

Cell cell_of(const std::vector<Launch>& launches) {
  Cell cell;
  cell.name = "c";
  cell.device = "NVIDIA H100 80GB HBM3";
  cell.gpus = 2;
  cell.work.tokens_per_step = 8192;
  cell.work.flops_per_token_causal = 51.47e9;
  cell.work.flops_per_token_full = 57.91e9;
  cell.launches = launches;
  return cell;
}

TEST(CellMetrics, ThroughputAgreesWithTheStepTime) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000), launch_of(1, 1'002'000'000), launch_of(2, 998'000'000)});
  ASSERT_TRUE(fill_metrics(cell, {}));
  const auto* step = find(cell, "step_time");
  ASSERT_NE(step, nullptr);
  EXPECT_NEAR(step->value, 1e9, 1e6);
  EXPECT_EQ(step->launches, 3);
  EXPECT_EQ(step->interval, "95 % over 3 launches");
  EXPECT_LT(step->low, step->value);
  EXPECT_NEAR(find(cell, "tokens_per_second")->value, 8192e9 / step->value, 1e-6);
  EXPECT_NEAR(find(cell, "tokens_per_second_per_gpu")->value, 4096e9 / step->value, 1e-6);
  const double tflops = 8192 * 51.47e9 / (step->value / 1e9) / 2 / 1e12;
  EXPECT_NEAR(find(cell, "tflops_per_gpu_causal")->value, tflops, 1e-6);
  EXPECT_NEAR(find(cell, "mfu_bf16")->value, 100 * tflops / 989.4, 1e-6);
  EXPECT_EQ(find(cell, "mfu_fp8"), nullptr);
  EXPECT_EQ(find(cell, "exposed_comm"), nullptr);
  EXPECT_NEAR(find(cell, "last_loss")->value, 5.0 - 2.9, 1e-9);
  EXPECT_NEAR(find(cell, "final_loss")->value, 5.0 - 2.8, 1e-9);  // of the last three
  EXPECT_NE(cell.launches[0].steps[0].flags & baselines::kStepWarmUp, 0u);
  EXPECT_EQ(cell.launches[0].steps[1].flags & baselines::kStepWarmUp, 0u);
}

TEST(CellMetrics, TooFewStepsOfCpuRanksStandWithoutAnIntervalAndSaySo) {
  for (const int count : {1, 2, 4, 9}) {
    Cell cell = cell_of({launch_of(0, 1'000'000'000, count)});
    cell.result_class = baselines::ResultClass::kFunctionalCpu;
    ASSERT_TRUE(fill_metrics(cell, {})) << count << " steps";
    const auto* step = find(cell, "step_time");
    ASSERT_NE(step, nullptr);
    const bool enough = count == 9;
    EXPECT_EQ(step->low <= step->high, enough) << count;
    EXPECT_EQ(step->interval.find("at least 6 are needed") == std::string::npos, enough) << step->interval;
    Cell measured = cell_of({launch_of(0, 1'000'000'000, count)});
    measured.result_class = baselines::ResultClass::kMeasured;
    EXPECT_EQ(fill_metrics(measured, {}).has_value(), enough) << "on a GPU a time is a claim";
  }
}

TEST(CellMetrics, StallsAreCountedAndDoNotMoveTheMedian) {
  Cell even = cell_of({launch_of(0, 1'000'000'000), launch_of(1, 1'002'000'000)}), stalled = even;
  for (const int i : {9, 17, 25}) stalled.launches[0].steps[static_cast<size_t>(i)].wall_ns *= 2;
  ASSERT_TRUE(fill_metrics(even, {}));
  ASSERT_TRUE(fill_metrics(stalled, {}));
  EXPECT_EQ(find(even, "stalls")->value, 0);
  EXPECT_NEAR(find(stalled, "stalls")->value, 100.0 * 3 / 58, 1e-9) << "each launch's first step is warm-up";
  EXPECT_NEAR(find(stalled, "step_time")->value, find(even, "step_time")->value, 1e5);
}

TEST(CellMetrics, MfuByConventionAndPeakAndHfuBesideBoth) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000), launch_of(1, 1'002'000'000)});
  ASSERT_TRUE(fill_metrics(cell, {}, true));
  const auto value = [&](const char* id) { return find(cell, id)->value; };
  EXPECT_NEAR(value("mfu_bf16_full") / value("mfu_bf16"), 57.91 / 51.47, 1e-9);
  EXPECT_NEAR(value("mfu_bf16") / value("mfu_fp8"), 1978.9 / 989.4, 1e-9);
  EXPECT_NEAR(value("mfu_fp8_full") / value("mfu_fp8"), 57.91 / 51.47, 1e-9);
  add_hardware_utilization(cell, 0.25);
  EXPECT_NEAR(value("hfu_bf16"), 1.25 * value("mfu_bf16"), 1e-9);
  EXPECT_NEAR(value("hfu_fp8"), 1.25 * value("mfu_fp8"), 1e-9);
}

TEST(CellMetrics, MemoryByCategoryOfTheFullestMapAndEligibleTime) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000)});
  cell.memory = {{"stage0", "op", 300, 0, {{"weights", 100, -1}, {"activations", 200, -1}}, {}, {}, {}},
                 {"stage1", "op", 500, 0, {{"weights", 150, -1}, {"activations", 350, -1}}, {}, {}, {}}};
  const auto row = [](const char* path, const char* kind, int64_t ns) {
    baselines::OpRow one;
    one.path = path;
    one.kind = kind;
    one.role = "wgrad";  // whatever makes a weight's gradient has a role
    one.stream = "compute";
    one.total_ns = ns;
    return one;
  };
  cell.launches[0].ops = {row("layers.0.mlp.fc1.bwd.wgrad", "gemm_scaled", 50),
                          row("layers.0.moe.fc1.bwd", "grouped_gemm", 10),
                          row("head.bwd.wgrad", "gemm", 10),
                          row("layers.0.attn.core.bwd", "attention_grad", 5),
                          row("layers.0.norm.bwd", "rmsnorm_grad", 3),
                          row("layers.0.moe.router", "router_gemm", 2),
                          row("(idle)", "", 20)};
  ASSERT_TRUE(fill_metrics(cell, {}));
  EXPECT_DOUBLE_EQ(find(cell, "peak_memory")->value, 500);
  EXPECT_DOUBLE_EQ(find(cell, "memory_weights")->value, 150);
  EXPECT_DOUBLE_EQ(find(cell, "memory_activations")->value, 350);
  EXPECT_NEAR(find(cell, "fp8_eligible_time")->value, 60, 1e-9);
}

TEST(CellMetrics, DaysAndCostFollowFromTheRateWithItsInterval) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000), launch_of(1, 1'002'000'000), launch_of(2, 998'000'000)});
  ASSERT_TRUE(fill_metrics(cell, {}));
  const double rate = find(cell, "tokens_per_second")->value;
  const auto metrics = training_cost(cell, {.tokens = 1e12, .price_gpu_hour = 2.0});
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_NEAR(metrics[0].value, 1e12 / rate / 86400, 1e-6);
  EXPECT_NEAR(metrics[1].value, metrics[0].value * 24 * 2 * 2.0, 1e-6);
  EXPECT_LT(metrics[0].low, metrics[0].value);
  EXPECT_GT(metrics[0].high, metrics[0].value);
  EXPECT_EQ(training_cost(cell, {.tokens = 1e12}).size(), 1u);
  EXPECT_TRUE(training_cost(cell, {}).empty());
}

TEST(CellMetrics, AStepOfUnknownWorkHasATimeAndNoRate) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000)});
  cell.work = {};
  ASSERT_TRUE(fill_metrics(cell, {}));
  EXPECT_NE(find(cell, "step_time"), nullptr);
  EXPECT_EQ(find(cell, "tokens_per_second"), nullptr);
  cell.work.formula = "f";
  EXPECT_FALSE(fill_metrics(cell, {})) << "known work without a token is a fault";
}

TEST(CellMetrics, TracingOverheadComparesProfiledStepsWithTimedOnes) {
  Launch launch = launch_of(0, 1'000'000'000);
  for (int i = 20; i < 30; ++i) {
    launch.steps[static_cast<size_t>(i)].flags |= baselines::kStepProfiled;
    launch.steps[static_cast<size_t>(i)].wall_ns += 20'000'000;
  }
  Cell cell = cell_of({launch});
  cell.result_class = baselines::ResultClass::kMeasured;
  ASSERT_TRUE(fill_metrics(cell, {}));
  const auto* cost = find(cell, "tracing_overhead");
  ASSERT_NE(cost, nullptr);
  EXPECT_NEAR(cost->value, 2.0, 0.1);
  EXPECT_LT(cost->low, cost->value);
  EXPECT_NEAR(find(cell, "step_time")->value, 1e9, 1e6) << "profiled steps are never timed";
  Cell untraced = cell_of({launch_of(0, 1'000'000'000)});
  ASSERT_TRUE(fill_metrics(untraced, {}));
  EXPECT_EQ(find(untraced, "tracing_overhead"), nullptr);
}

TEST(CellMetrics, OneLaunchSaysWhatItsIntervalCovers) {
  Cell cell = cell_of({launch_of(0, 1'000'000'000)});
  const StepTime time = step_time(cell);
  EXPECT_FALSE(time.estimate.is_evidence);
  EXPECT_TRUE(time.estimate.has_interval());
  EXPECT_EQ(time.interval, "95 % over 29 steps of one launch");
  EXPECT_TRUE(std::isnan(time.launch_sigma));
}

TEST(CellMetrics, UnknownDeviceHasNoMfu) {
  Cell cell = cell_of({launch_of(0, 1'000'000)});
  cell.device = "cpu";
  ASSERT_TRUE(fill_metrics(cell, {}));
  EXPECT_EQ(find(cell, "mfu_bf16"), nullptr);
  EXPECT_NE(find(cell, "tflops_per_gpu_causal"), nullptr);
}

TEST(CellMetrics, FailedAndProfiledPartsNeverCount) {
  Launch failed = launch_of(1, 500);
  failed.exit_status = 1;
  Launch good = launch_of(0, 1'000'000);
  for (size_t i = 10; i < 15; ++i) {
    good.steps[i].flags = baselines::kStepProfiled;
    good.steps[i].wall_ns = 9'000'000;
  }
  Cell cell = cell_of({good, failed});
  const StepTime time = step_time(cell);
  EXPECT_NEAR(time.estimate.value, 1'000'000, 1'000);
  EXPECT_EQ(time.interval, "95 % over 24 steps of one launch");
  ASSERT_EQ(time.problems.size(), 1u);
  EXPECT_EQ(time.problems[0], "launch 1: ended with an error");
  Cell none = cell_of({failed});
  const Status status = fill_metrics(none, {});
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("launch 1"), std::string::npos);
  EXPECT_TRUE(none.metrics.empty());
}

TEST(CellMetrics, FixedWorkBesideAStepTakesTheMachineOut) {
  // Half the steps on a core that a neighbour slows to two thirds, and one step of 1 % more work in every launch.
  const auto launch = [](int index, double work, bool neighbour) {
    Launch l = launch_of(index, 1'000'000);
    for (size_t i = 0; i < l.steps.size(); ++i) {
      const double slower = neighbour && i >= l.steps.size() / 2 ? 1.5 : 1.0;
      l.steps[i].cpu_ns = static_cast<int64_t>(4e6 * work * slower);
      l.steps[i].reference_ns = static_cast<int64_t>(1e6 * slower);
    }
    return l;
  };
  EXPECT_NEAR(cpu_step_ratio(launch(0, 1.0, false)), 4.0, 1e-9);
  EXPECT_NEAR(cpu_step_ratio(launch(0, 1.01, true)), 4.04, 1e-6);
  Launch without = launch(1, 1.0, false);
  for (auto& step : without.steps) step.reference_ns = 0;
  EXPECT_EQ(cpu_step_ratio(without), 0.0);

  Cell cell = cell_of({launch(0, 1.0, false), launch(1, 1.01, true)});
  cell.result_class = baselines::ResultClass::kFunctionalCpu;
  EXPECT_EQ(cpu_metric(cell), "cpu_step_ratio");
  ASSERT_TRUE(fill_metrics(cell, {}));
  EXPECT_NEAR(find(cell, "cpu_step_ratio")->value, 4.02, 1e-6);
  EXPECT_GT(find(cell, "cpu_step_time")->value, 4.1e6) << "which the neighbour moves";
  cell.launches.push_back(without);
  EXPECT_EQ(cpu_metric(cell), "cpu_step_time") << "of launches that cannot be held against each other";
}

TEST(CellMetrics, ALaunchWhoseFixedWorkTookLongerSharedItsCore) {
  // As seen: a neighbour slows the fixed work by a quarter and a step by a half.
  const auto cell = [](const std::vector<bool>& shared) {
    std::vector<Launch> launches;
    for (size_t n = 0; n < shared.size(); ++n) {
      Launch& l = launches.emplace_back(launch_of(static_cast<int>(n), 1'000'000));
      for (auto& step : l.steps) {
        step.cpu_ns = shared[n] ? 6'000'000 : 4'000'000;
        step.reference_ns = shared[n] ? 1'250'000 : 1'000'000 + static_cast<int64_t>(n) * 4'000;
      }
    }
    Cell c = cell_of(launches);
    c.result_class = baselines::ResultClass::kFunctionalCpu;
    return c;
  };
  Cell some = cell({false, true, false, true, false});
  EXPECT_EQ(quiet_launches(some).size(), 3u);
  ASSERT_TRUE(fill_metrics(some, {}));
  EXPECT_NEAR(find(some, "cpu_step_ratio")->value, 4.0, 0.05);
  EXPECT_NE(find(some, "cpu_step_ratio")->interval.find("2 more shared their core"), std::string::npos);
  // Alike in all of them: nothing tells them apart. Too few quiet ones: better all than two.
  EXPECT_EQ(quiet_launches(cell({true, true, true, true})).size(), 4u);
  EXPECT_EQ(quiet_launches(cell({false, true, true, false, true})).size(), 5u);
  Cell without = cell({false, false, false, true});
  for (auto& step : without.launches[0].steps) step.reference_ns = 0;
  EXPECT_EQ(quiet_launches(without).size(), 4u);
}

TEST(CellMetrics, EveryMetricSaysHowManyLaunchesItRestsOn) {
  StepBreakdown b;
  b.total_ns = 1000;
  b.compute_ns = 1000;
  Cell cell = cell_of(
      {launch_of(0, 1'000'000'000), launch_of(1, 1'002'000'000), launch_of(2, 998'000'000), launch_of(3, 998'000'000)});
  cell.launches[1].trace_files = {"trace.mbt"};
  cell.launches[1].ops = {{.path = "layers.0.mlp.fc1.fwd", .kind = "gemm", .stream = "compute", .total_ns = 10}};
  cell.launches[2].steps.back().loss = 9.0;
  cell.launches[3].exit_status = 1;
  baselines::MemoryMap map;
  map.peak_bytes = 1 << 20;
  cell.memory = {map};
  ASSERT_TRUE(fill_metrics(cell, {b}, true));
  add_eligible_flops(cell, 0.5);
  for (const baselines::Metric& metric : cell.metrics) EXPECT_GT(metric.launches, 0) << metric.name;
  for (const char* id : {"step_time", "stalls", "peak_memory", "first_loss", "last_loss", "final_loss", "mfu_bf16"}) {
    ASSERT_NE(find(cell, id), nullptr) << id;
    EXPECT_EQ(find(cell, id)->launches, 3) << id;
  }
  for (const char* id : {"compute", "exposed_comm", "fp8_eligible_time"}) {
    ASSERT_NE(find(cell, id), nullptr) << id;
    EXPECT_EQ(find(cell, id)->launches, 1) << id;
  }
  EXPECT_DOUBLE_EQ(find(cell, "last_loss")->value, cell.launches[0].steps.back().loss) << "the median of launches";
  for (size_t i : {0, 2}) cell.launches[i].memory = {map};
  ASSERT_TRUE(fill_metrics(cell, {}));
  EXPECT_EQ(find(cell, "peak_memory")->launches, 2) << "as executed";
}

TEST(CellMetrics, SharesComeFromTheBreakdowns) {
  StepBreakdown b;
  b.total_ns = 1000;
  b.compute_ns = 800;
  b.comm[static_cast<size_t>(CommKind::kTp)] = {150, 50, 10};
  b.comm_busy_ns = 150;
  b.comm_overlap_ns = 100;
  b.idle_ns = 150;
  b.idle_by_cause_ns = {30, 0, 0, 120};
  Cell cell = cell_of({launch_of(0, 1'000'000)});
  ASSERT_TRUE(fill_metrics(cell, {b, b}));
  EXPECT_DOUBLE_EQ(find(cell, "exposed_comm")->value, 5.0);
  EXPECT_DOUBLE_EQ(find(cell, "exposed_comm_tp")->value, 5.0);
  EXPECT_EQ(find(cell, "exposed_comm_dp"), nullptr);
  EXPECT_DOUBLE_EQ(find(cell, "bubble")->value, 12.0);
  EXPECT_DOUBLE_EQ(find(cell, "skew")->value, 1.0);
  EXPECT_NEAR(find(cell, "overlap")->value, 200.0 / 3.0, 1e-9);
}

TEST(CellMetrics, HfuAddsTheFlopsOfRecompute) {
  Cell cell = cell_of({launch_of(0, 1'000'000)});
  add_hardware_utilization(cell, 0.3);
  EXPECT_EQ(find(cell, "hfu_bf16"), nullptr) << "without MFU there is none";
  cell.metrics.push_back({"mfu_bf16", 40.0, 39.0, 41.0, "%", 3, "95 %"});
  add_hardware_utilization(cell, 0.25);
  ASSERT_NE(find(cell, "hfu_bf16"), nullptr);
  EXPECT_DOUBLE_EQ(find(cell, "hfu_bf16")->value, 50.0);
  EXPECT_DOUBLE_EQ(find(cell, "hfu_bf16")->low, 48.75);
  EXPECT_DOUBLE_EQ(find(cell, "mfu_bf16")->value, 40.0);
}

}  // namespace
}  // namespace mbb::analysis
