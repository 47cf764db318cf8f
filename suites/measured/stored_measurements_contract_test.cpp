// The committed figures and traces of the card become runs that a store indexes, series span, and an op table explains.
#include "suites/measured/stored_measurements.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/store.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

TEST(StoredMeasurements, FiguresAndTracesAreRunsOfAStore) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("measured-{}", getpid());
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto written = write_measured_bundles(MBB_SOURCE_DIR "/baselines/measured/h100-sxm", folder / "runs");
  ASSERT_TRUE(written) << format(written.error());
  EXPECT_EQ(written->size(), 7U);
  auto store = baselines::Store::open(folder / "store.sqlite");
  ASSERT_TRUE(store);
  const auto report = store->index(folder);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->troubles.empty());
  EXPECT_EQ(report->runs, 7);

  // The bf16 case was measured in four calls: one series with a point each, and the traced run's.
  const auto first = store->load_run(store->resolve("@h100-first").value()).value();
  const auto cell =
      std::find_if(first.cells.begin(), first.cells.end(), [](const auto& c) { return c.name == "llama3-8b-bf16"; });
  ASSERT_NE(cell, first.cells.end());
  EXPECT_EQ(class_label(*cell),
            "measured/NVIDIA H100 80GB HBM3\xC3\x97"
            "1");
  EXPECT_EQ(cell->launches.size(), 2U);
  const auto* step = analysis::find(*cell, "step_time");
  ASSERT_NE(step, nullptr);
  EXPECT_NEAR(step->value, (237.739807e6 + 241.122726e6) / 2, 1);
  ASSERT_NE(analysis::find(*cell, "mfu_bf16"), nullptr);
  EXPECT_NEAR(analysis::find(*cell, "tokens_per_second")->value, 8192e9 / step->value, 1e-6);
  const auto points =
      store->series({cell->identity_hash, first.fingerprint.class_hash, first.epoch, "step_time"}).value();
  EXPECT_GE(points.size(), 5U);

  // Of the traced run every kernel's op is one of this build's program, so that FLOPs stand beside its time.
  const auto traced = store->load_run(store->resolve("@h100-traced-bf16").value()).value();
  const auto& launch = traced.cells.at(0).launches.at(0);
  EXPECT_EQ(launch.steps.size(), 5U);
  int64_t known = 0, all = 0;
  for (const auto& row : launch.ops) {
    if (row.path == analysis::kIdlePath) continue;
    all += row.total_ns;
    if (!row.kind.empty()) known += row.total_ns;
  }
  EXPECT_GT(static_cast<double>(known), 0.9 * static_cast<double>(all));
  EXPECT_FALSE(traced.cells[0].memory.at(0).tensors.empty());
  fs::remove_all(folder);
}

TEST(StoredMeasurements, WhatCannotBeReadIsNamed) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("measured-none-{}", getpid());
  const auto written = write_measured_bundles(folder / "nothing", folder / "runs");
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().what.find("steps-2026-11-28.jsonl"), std::string::npos) << written.error().what;
}

}  // namespace
}  // namespace mbb::suites
