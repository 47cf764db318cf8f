// Made-up nights, and a store that keeps them: for tests of the gate.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "analysis/gate/gate_report.h"
#include "baselines/store/store.h"
#include "suites/runner/gate.h"

namespace mbb::suites {

using baselines::Pin;
using Stored = baselines::Run;  // testing::Test has a Run of its own
using baselines::Verdict;

inline constexpr int64_t kDay = int64_t{24} * 3600 * 1'000'000'000;
inline constexpr int64_t kStart = int64_t{1'790'000'000} * 1'000'000'000;
inline const profiler::FactRoles kRoles{{"build.commit"}, {"kernel.release"}};

// One launch of 30 steps of about `ms` of CPU time.
inline baselines::Launch launch_of(int index, double ms) {
  baselines::Launch launch;
  launch.index = index;
  for (int i = 0; i < 30; ++i) {
    baselines::Step step;
    step.index = i;
    step.cpu_ns = static_cast<int64_t>(1e6 * ms * (1 + 0.001 * ((i * 7) % 5)));
    step.wall_ns = step.cpu_ns + 1000;
    step.loss = 3.0;
    launch.steps.push_back(step);
  }
  return launch;
}

struct Night {
  const char* id;
  int64_t day = 0;
  const char* commit = "old";
  const char* kernel = "6.1";
  double ms = 100;
  const char* command = kGateCommand;
};

inline Stored run_of(const Night& night) {
  Stored run;
  run.id = night.id;
  run.command = night.command;
  run.suite = "small";
  run.created_unix_ns = kStart + night.day * kDay;
  run.ended_unix_ns = run.created_unix_ns + 1;
  auto roled = profiler::apply_roles(
      profiler::make_fingerprint(
          {{"build.commit", night.commit}, {"kernel.release", night.kernel}, {"cpu.model", "Xeon", true}}),
      kRoles);
  run.fingerprint = roled->fingerprint;
  run.epoch = roled->epoch;
  run.planned_cells = {"one"};
  baselines::Cell cell;
  cell.run = run.id;
  cell.name = "one";
  cell.device = "cpu";
  cell.knobs = {{.key = "train.train_iters", .value = "30", .source = "suite"}};
  cell.identity_hash = "identity";
  cell.program_hash = "program";
  for (int i = 0; i < 5; ++i) cell.launches.push_back(launch_of(i, night.ms * (1 + 0.0005 * i)));
  baselines::MemoryMap map;
  map.peak_bytes = 1 << 20;
  cell.memory = {map};
  run.cells = {cell};
  return run;
}

inline Pin pin_of(const Stored& run, const char* metric = "cpu_step_time") {
  Pin pin;
  pin.id = "b-1";
  pin.identity_hash = "identity";
  pin.class_hash = run.fingerprint.class_hash;
  pin.epoch = run.epoch;
  pin.product = profiler::product_hash(run.fingerprint, kRoles);
  pin.configuration = baselines::configuration_hash(run.cells[0]);
  pin.metric = metric;
  pin.cell = "one";
  pin.nights = {analysis::launch_values(run.cells[0], metric)};
  pin.runs = {run.id};
  pin.build = "old";
  pin.accepted_unix_ns = run.created_unix_ns;
  return pin;
}

// A night that the gate judged, as its store keeps it.
inline Stored judged(const Night& night, Verdict verdict, const char* against = "b-1") {
  Stored run = run_of(night);
  run.cells[0].metrics = {{.name = "cpu_step_time", .value = night.ms * 1e6, .unit = "ns", .launches = 5}};
  run.cells[0].verdicts = {{"cpu_step_time", verdict, against}};
  return run;
}

class GateOverNights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("mbbench_gate_nights_" + std::to_string(getpid()) +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    request_.store_file = folder_ / "mbbench.sqlite";
    request_.now_unix_ns = kStart + 10 * kDay;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void keep(const Stored& run) {
    auto store = baselines::Store::open(request_.store_file);
    ASSERT_TRUE(store.has_value()) << format(store.error());
    ASSERT_TRUE(store->put_run(run, folder_ / run.id));
    for (const baselines::Cell& cell : run.cells) ASSERT_TRUE(store->put_cell(cell));
  }
  analysis::GateReport judge(const Stored& tonight) {
    RunOptions options;
    options.roles = kRoles;
    auto report = gate_run(tonight, {}, request_, options);
    EXPECT_TRUE(report.has_value()) << format(report.error());
    return std::move(*report);
  }
  static const analysis::GateRow& row(const analysis::GateReport& report, const std::string& metric) {
    for (const auto& one : report.rows)
      if (one.metric == metric) return one;
    ADD_FAILURE() << "no row " << metric;
    return report.rows.front();
  }

  std::filesystem::path folder_;
  GateRequest request_;
};

}  // namespace mbb::suites
