// What another process on a GPU does to the gate's verdicts: named, and no product's fault or merit.
#include <gtest/gtest.h>

#include "suites/runner/gate_fixture_test.h"

namespace mbb::suites {
namespace {

using baselines::Cell;

// Measured beside a queue of so many ns a piece, which takes a millisecond alone.
Stored on_gpus(Stored run, int64_t share_ns) {
  Cell& cell = run.cells[0];
  cell.result_class = baselines::ResultClass::kMeasured;
  for (auto& launch : cell.launches)
    launch.counts = {{"canary_gpu_arithmetic_after_ns", 1'000'000}, {"canary_gpu_share_after_ns", share_ns}};
  return run;
}

TEST_F(GateOverNights, AStrangerOnAGpuIsNamedAndNoProductIsBlamed) {
  const Stored accepted = on_gpus(run_of({"r-1"}), 1'001'000);
  request_.pins = {pin_of(accepted, "step_time")};
  keep(accepted);
  Stored red = on_gpus(run_of({"r-2", 1, "new", "6.1", 190}), 1'001'000);
  red.cells[0].verdicts = {{"step_time", Verdict::kSlower, "b-1"}};
  keep(red);
  const auto alone = judge(on_gpus(run_of({"r-3", 2, "new", "6.1", 190}), 1'001'000));
  EXPECT_EQ(row(alone, "step_time").verdict.verdict, Verdict::kSlower) << row(alone, "step_time").verdict.text;
  EXPECT_TRUE(alone.canaries.starts_with("canaries steady")) << alone.canaries;
  EXPECT_TRUE(alone.warnings.empty()) << alone.warnings.front();
  const auto shared = judge(on_gpus(run_of({"r-4", 2, "new", "6.1", 190}), 2'000'000));
  EXPECT_EQ(row(shared, "step_time").verdict.verdict, Verdict::kIncomparable) << row(shared, "step_time").verdict.text;
  EXPECT_NE(row(shared, "step_time").verdict.text.find("on GPU 0 too: another process uses it, not the product"),
            std::string::npos)
      << row(shared, "step_time").verdict.text;
  EXPECT_TRUE(shared.canaries.ends_with("on GPU 0: another process uses it")) << shared.canaries;
  ASSERT_EQ(shared.warnings.size(), 1U);
  EXPECT_TRUE(shared.warnings[0].starts_with("one: another process uses GPU 0:")) << shared.warnings[0];
  EXPECT_EQ(analysis::gate_exit_status(shared), 3);
}

TEST_F(GateOverNights, WhoeverIsFasterThanABaselineBesideAStrangerIsNotPraised) {
  for (const auto& [share_ns, verdict] : {std::pair{int64_t{1'300'000}, Verdict::kIncomparable},
                                          {int64_t{1'000'000}, Verdict::kFaster},
                                          {int64_t{1'050'000}, Verdict::kFaster}}) {
    const Stored accepted = on_gpus(run_of({"r-1"}), share_ns);
    keep(accepted);
    request_.pins = {pin_of(accepted, "step_time")};
    const auto faster = row(judge(on_gpus(run_of({"r-2", 1, "new", "6.1", 80}), 1'000'000)), "step_time").verdict;
    EXPECT_EQ(faster.verdict, verdict) << faster.text;
    EXPECT_EQ(faster.text.find("; of the baseline, another process uses GPU 0") != std::string::npos,
              verdict == Verdict::kIncomparable)
        << faster.text;
    const auto half = row(judge(on_gpus(run_of({"r-2", 1, "new", "6.1", 40}), 1'000'000)), "step_time").verdict;
    EXPECT_EQ(half.verdict, Verdict::kFaster) << "far more than the stranger took: " << half.text;
  }
}

}  // namespace
}  // namespace mbb::suites
