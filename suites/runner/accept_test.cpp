// Accepting counts a launch once, takes all cells or none, and says what it left out.
#include "suites/runner/accept.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

using baselines::Cell;
using baselines::CellStatus;
using Stored = baselines::Run;

Cell cell_of(const char* name, double ms) {
  Cell cell;
  cell.name = name, cell.identity_hash = name;
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.knobs = {{.key = "command.run", .value = "train", .source = "suite"}};
  for (int index = 0; index < 3; ++index) {
    baselines::Launch launch;
    launch.index = index;
    for (int64_t i = 0; i < 12; ++i) {
      baselines::Step step;
      step.index = i;
      step.wall_ns = static_cast<int64_t>(1e6 * (ms + 0.01 * static_cast<double>((i * 7 + index * 3) % 5)));
      step.loss = 3.0 - 0.01 * static_cast<double>(i) - index;
      launch.steps.push_back(step);
    }
    cell.launches.push_back(launch);
  }
  return cell;
}

Stored run_of(const char* id, double ms) {
  Stored run;
  run.id = id;
  run.fingerprint = profiler::make_fingerprint({{"build.commit", "4f1e2c0"}, {"cpu.model", "Xeon", true}});
  run.cells = {cell_of("a", ms), cell_of("b", 2 * ms)};
  return run;
}

AcceptRequest request_of(Stored run, std::vector<Stored> more) {
  AcceptRequest request;
  request.run = std::move(run), request.more = std::move(more);
  request.author = "ada", request.reason = "first";
  request.roles = {{"build.commit"}, {"cpu.*"}};
  request.now_unix_ns = 1'790'000'000'000'000'000;
  return request;
}

TEST(Accept, NightsOfOneProductAreOneBaselineACellAndMetric) {
  const auto accepted = accept_runs(request_of(run_of("r-1", 100), {run_of("r-2", 101)}));
  ASSERT_TRUE(accepted.has_value()) << format(accepted.error());
  ASSERT_EQ(accepted->pins.size(), 4U) << "step time and loss of two cells";
  for (const baselines::Pin& pin : accepted->pins) {
    EXPECT_EQ(pin.nights.size(), 2U);
    EXPECT_EQ(pin.steps, 12);
  }
  EXPECT_TRUE(accepted->left_out.empty());
  EXPECT_TRUE(accepted->too_few.empty());
  const auto alone = accept_runs(request_of(run_of("r-1", 100), {}));
  ASSERT_TRUE(alone.has_value()) << format(alone.error());
  EXPECT_EQ(alone->too_few, (std::vector<std::string>{"cell a has 3 launches", "cell b has 3 launches"}));
}

TEST(Accept, ARunWithoutAProductIsNoBaseline) {
  AcceptRequest request = request_of(run_of("r-1", 100), {});
  request.roles = {{"commit"}, {"cpu.*"}, ErrorCode::kBadFile};
  const auto accepted = accept_runs(request);
  ASSERT_FALSE(accepted.has_value());
  EXPECT_EQ(accepted.error().code, ErrorCode::kBadFile) << "where the roles stand";
  EXPECT_EQ(accepted.error().what,
            "gate.product = 'commit' matches no fact, so that nothing says which product this is");
  EXPECT_EQ(accepted.error().hint,
            "the facts there are: build.commit, cpu.model; others are declared under gate.facts");
}

TEST(Accept, ALaunchCountsOnce) {
  const auto twice = accept_runs(request_of(run_of("r-1", 100), {run_of("r-2", 101), run_of("r-2", 101)}));
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().what, "run r-2 is given twice: its launches count once");
  const auto itself = accept_runs(request_of(run_of("r-1", 100), {run_of("r-1", 100)}));
  EXPECT_EQ(itself.error().code, ErrorCode::kBadArgument);
  const auto again = accept_runs(request_of(run_of("r-1", 100), {run_of("r-2", 100)}));
  ASSERT_FALSE(again.has_value()) << "one log, imported in two runs";
  EXPECT_EQ(again.error().what, "cell a: launch 0 of run r-2 is launch 0 of run r-1: it counts once");
}

TEST(Accept, AllCellsOrNoneAndWhatIsLeftOutIsSaid) {
  Stored lost = run_of("r-1", 100);
  lost.cells[1].launches[2].steps.erase(lost.cells[1].launches[2].steps.begin() + 5);
  const auto none = accept_runs(request_of(lost, {}));
  ASSERT_FALSE(none.has_value()) << "cell a is whole";
  EXPECT_NE(none.error().what.find("cell b is no evidence: launch 2: step 5 is missing"), std::string::npos)
      << none.error().what;
  AcceptRequest only = request_of(lost, {});
  only.only = {"a"};
  EXPECT_EQ(accept_runs(only)->pins.size(), 2U);
  only.only = {"c", "d*"};
  EXPECT_EQ(accept_runs(only).error().what, "run r-1 has no ok cell that --only c, d* names");

  Stored broken = run_of("r-2", 101);
  broken.cells[1].status = CellStatus::kBroken, broken.cells[1].reason = "ended by signal 9";
  const auto accepted = accept_runs(request_of(run_of("r-1", 100), {broken}));
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(accepted->left_out, std::vector<std::string>{"run r-2, cell b: ended by signal 9"});
  EXPECT_EQ(accepted->pins[0].nights.size(), 2U);
  EXPECT_EQ(accepted->pins[2].nights.size(), 1U);
}

TEST(Accept, ANightBesideAnotherProcessIsSaid) {
  Stored beside = run_of("r-2", 101);
  for (baselines::Launch& launch : beside.cells[1].launches)
    launch.counts = {{"canary_gpu_arithmetic_after_ns", 1'000'000}, {"canary_gpu_share_after_ns", 2'000'000}};
  const auto accepted = accept_runs(request_of(run_of("r-1", 100), {beside}));
  ASSERT_TRUE(accepted.has_value()) << format(accepted.error());
  ASSERT_EQ(accepted->contended.size(), 1U);
  EXPECT_TRUE(accepted->contended[0].starts_with("run r-2, cell b: another process uses GPU 0"));
}

}  // namespace
}  // namespace mbb::suites
