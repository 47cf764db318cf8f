// Command cells and imported logs as a user meets them: a script that prints Megatron-Bridge's log runs as a cell, is
// stored, shown and compared; every way in which a command fails keeps its log and says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class CommandCli : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    script_ = fs::absolute(fs::path(MBB_SOURCE_DIR) / "suites" / "foreign" / "stand_in_bridge.sh").string();
  }

  // One cell that runs the script with these arguments; `more` are lines of [command].
  void write_suite(const std::string& name, const std::string& arguments, const std::string& more = "") const {
    write(name,
          "purpose = \"A trainer of somebody else's.\"\nmodel = \"llama3-8b\"\ngpus = 8\n[base]\nseq_length = 4096\n"
          "global_batch_size = 8\n[command]\nrun = \"sh " +
              script_ + " --gpus {gpus} --seq {seq_length} --gbs {knob.gbs} " + arguments +
              "\"\ndevice = \"NVIDIA H100 80GB HBM3\"\n" + more + "[[cell]]\nname = \"theirs\"\n");
  }

  // The only cell of the newest run.
  baselines::Cell stored() const {
    fs::path newest;
    for (const auto& entry : fs::directory_iterator(folder_ / "mbbench-runs" / "runs"))
      if (newest.empty() || fs::last_write_time(entry) >= fs::last_write_time(newest)) newest = entry.path();
    const auto reader = baselines::BundleReader::open(newest);
    EXPECT_TRUE(reader);
    auto run = reader->read_all();
    EXPECT_TRUE(run) << run.error().what;
    EXPECT_EQ(run->cells.size(), 1U);
    return run->cells.at(0);
  }

  static double metric(const baselines::Cell& cell, const std::string& id) {
    for (const auto& one : cell.metrics)
      if (one.name == id) return one.value;
    return -1;
  }

  std::string script_;
};

// The command itself looks for its steps, as a viewer would while it runs.
TEST_F(CommandCli, ItsStepsAreThereWhileItRuns) {
  write(
      "watched.sh",
      "for i in 1 2 3 4 5 6 7 8; do echo \"{\\\"step\\\": $i, \\\"step_time\\\": 0.25, \\\"loss\\\": $i.5}\"; done\n"
      "for wait in $(seq 100); do [ \"$(wc -l < $MBBENCH_RUN_DIR/steps.live.csv)\" -lt 9 ] || break; sleep 0.1; done\n"
      "cp $MBBENCH_RUN_DIR/steps.live.csv seen.csv\n");
  write("watched.toml", "purpose = \"p\"\ngpus = 1\n[command]\nrun = \"sh " + (folder_ / "watched.sh").string() +
                            "\"\nlog = \"jsonl\"\ndevice = \"X\"\n[[cell]]\nname = \"theirs\"\n");
  const Answer answer = run("suite ./watched.toml --quiet");
  ASSERT_EQ(answer.status, 0) << answer.out;
  const auto seen = read_file(folder_ / "seen.csv");
  ASSERT_TRUE(seen);
  EXPECT_EQ(std::count(seen->begin(), seen->end(), '\n'), 9) << *seen;
  EXPECT_NE(seen->find("8,250000000,"), std::string::npos) << *seen;
  EXPECT_EQ(stored().launches[0].steps.size(), 8U);
}

TEST_F(CommandCli, ATrainersLogBecomesACellLikeOurs) {
  write_suite("theirs.toml", "--iters 40 --step-ms 500");
  const Answer first = run("suite ./theirs.toml --quiet --tag a --launches 2");
  ASSERT_EQ(first.status, 0) << first.out;
  EXPECT_TRUE(first.has("measured/NVIDIA H100 80GB HBM3")) << first.out;
  const baselines::Cell cell = stored();
  EXPECT_EQ(cell.gpus, 8);
  EXPECT_EQ(cell.model, "llama3-8b");
  ASSERT_EQ(cell.launches.size(), 2U);
  EXPECT_EQ(cell.launches[0].steps.size(), 40U);
  EXPECT_NEAR(metric(cell, "step_time"), 500.2e6, 0.3e6);
  EXPECT_NEAR(metric(cell, "tokens_per_second_per_gpu"), 8 * 4096 / 0.5002 / 8, 10);
  EXPECT_NEAR(metric(cell, "logged_tflops_per_gpu"), 412.3, 1e-9);
  EXPECT_NEAR(metric(cell, "peak_memory"), 64.25e9, 1);
  EXPECT_GT(metric(cell, "mfu_bf16"), 10);
  bool rate = false;
  for (const auto& verdict : cell.verdicts) rate = rate || verdict.subject == "TFLOP/s";
  EXPECT_TRUE(rate) << "the log's rate is set against ours";
  EXPECT_TRUE(run("show @a --cell theirs").has("command.run"));
  write_suite("theirs.toml", "--iters 40 --step-ms 520");
  ASSERT_EQ(run("suite ./theirs.toml --quiet --tag b --launches 2").status, 0);
  const Answer compare = run("compare @a @b");
  EXPECT_EQ(compare.status, 0);
  EXPECT_TRUE(compare.has("+4.0 %")) << compare.out;
  EXPECT_EQ(run("compare @a @b --fail-on slower").status, 1);
  EXPECT_EQ(run("compare @a @b --fail-on faster").status, 0);
  EXPECT_EQ(run("compare @b @a --fail-on faster").status, 1);
  EXPECT_EQ(run("compare @a @b --fail-on much").status, 64);
  EXPECT_TRUE(compare.has("command.run")) << compare.out;
}

TEST_F(CommandCli, EveryWayToFailSaysWhyAndKeepsWhatCame) {
  struct Case {
    const char* arguments;
    const char* more;
    std::string says;
    size_t steps;
  };
  const Case cases[] = {
      {"--iters 20 --fail 3", "", "exit status 3: RuntimeError: NCCL error", 10},
      {"--iters 20 --hang", "silence_limit_s = 2\n", "silence_limit_s = 2", 10},
      {"--iters 20 --hang", "time_limit_s = 2\n", "time_limit_s = 2", 10},
      {"--quiet", "", "no step found", 0},
      {"--iters 20 && no_such_program_anywhere", "", "not found (exit status 127)", 20},
      {"--iters 20 --gbs 16", "", "global_batch_size is 8 as set and 16", 20},
      {"--iters 20 --step-ms 5", "", "1978.9 that a NVIDIA H100 80GB HBM3 does in fp8", 20},
  };
  for (const Case& one : cases) {
    write_suite("bad.toml", one.arguments, one.more);
    const Answer answer = run("suite ./bad.toml --quiet");
    EXPECT_EQ(answer.status, 4) << one.arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(one.says)) << one.arguments << "\n" << answer.out;
    const baselines::Cell cell = stored();
    EXPECT_EQ(cell.status, baselines::CellStatus::kBroken);
    EXPECT_TRUE(cell.metrics.empty()) << "a broken cell has no numbers";
    ASSERT_EQ(cell.launches.size(), 1U);
    EXPECT_EQ(cell.launches[0].steps.size(), one.steps) << one.arguments << ": steps that came are kept";
    fs::remove_all(folder_ / "mbbench-runs");
  }
}

TEST_F(CommandCli, BadCommandsAreRefusedBeforeAnythingRuns) {
  const auto refused = [&](const std::string& command, const std::string& part) {
    write("bad.toml", "purpose = \"x\"\n[command]\n" + command + "\n[[cell]]\nname = \"a\"\n");
    const Answer answer = run("suite ./bad.toml");
    EXPECT_EQ(answer.status, 4) << answer.out;
    EXPECT_TRUE(answer.has(part)) << command << "\n" << answer.out;
    EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs"));
  };
  refused("run = \"train --tp {tpp}\"", "{tpp}");
  refused("run = \"train {gpus\"", "not closed");
  refused("log = \"auto\"", "'run' is missing");
  refused("run = \"train\"\nlog = \"torchtitann\"", "did you mean 'torchtitan'?");
  refused("run = \"train\"\nsilence_limit = 3", "did you mean 'silence_limit_s'?");
  refused("run = \"  \"", "empty");
}

TEST_F(CommandCli, AFileAndTheShellsOwnNamesAndAKillInBetween) {
  write("file.toml",
        "purpose = \"x\"\n[command]\n"
        "run = \"for i in 1 2 3 4 5 6 7 8; do echo '{{\\\"step\\\":'$i',\\\"step_time_s\\\":0.5,\\\"loss\\\":2}}' >> "
        "{run_dir}/own.jsonl; done; test ${MBBENCH_RUN_DIR} = {run_dir}\"\n"
        "log = \"jsonl\"\nlog_file = \"{run_dir}/own.jsonl\"\n[[cell]]\nname = \"a\"\n");
  const Answer answer = run("suite ./file.toml --quiet");
  EXPECT_EQ(answer.status, 0) << answer.out;
  const baselines::Cell cell = stored();
  EXPECT_EQ(cell.launches[0].steps.size(), 8U);
  EXPECT_EQ(class_label(cell), "measured/unknown device") << "as an imported log";
  EXPECT_LT(metric(cell, "tokens_per_second"), 0) << "nothing says how many tokens a step has";
  fs::remove_all(folder_ / "mbbench-runs");
  write_suite("long.toml", "--iters 20; kill -TERM $PPID; sleep 60");
  const Answer stopped = run("suite ./long.toml --quiet");
  EXPECT_EQ(stopped.status, 75) << stopped.out;
  EXPECT_TRUE(stopped.has("missing")) << stopped.out;
}

TEST_F(CommandCli, AStoppedRunGoesOnWithTheCellThatWasLost) {
  write("two.toml", "purpose = \"x\"\n[[cell]]\nname = \"a\"\ncommand = { run = \"sh " + script_ +
                        " --iters 12\" }\n[[cell]]\nname = \"b\"\ncommand = { run = \"if [ -e marker ]; then sh " +
                        script_ + " --iters 12; else touch marker; kill -TERM $PPID; sleep 60; fi\" }\n");
  const Answer stopped = run("suite ./two.toml --quiet");
  ASSERT_EQ(stopped.status, 75) << stopped.out;
  const Answer resumed = run("suite ./two.toml --quiet --resume");
  EXPECT_EQ(resumed.status, 0) << resumed.out;
  EXPECT_TRUE(resumed.has("2 ok, 0 broken")) << resumed.out;
}

TEST_F(CommandCli, LaunchesOfAllCellsTakeTurns) {
  write("two.toml", "purpose = \"x\"\n[command]\nrun = \"sh " + script_ +
                        " --iters 12\"\n[[cell]]\nname = \"a\"\n[[cell]]\nname = \"b\"\n");
  const Answer answer = run("suite ./two.toml --quiet --launches 3 --interleave");
  ASSERT_EQ(answer.status, 0) << answer.out;
  const auto reader = baselines::BundleReader::open(fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path());
  ASSERT_TRUE(reader);
  const auto stored_run = reader->read_all();
  ASSERT_TRUE(stored_run);
  std::vector<std::pair<int64_t, std::string>> starts;
  for (const baselines::Cell& cell : stored_run->cells) {
    ASSERT_EQ(cell.launches.size(), 3U);
    for (const baselines::Launch& launch : cell.launches)
      starts.emplace_back(launch.started_unix_ns, cell.name + std::to_string(launch.index));
  }
  std::sort(starts.begin(), starts.end());
  std::string order;
  for (const auto& [when, name] : starts) order += name + " ";
  EXPECT_EQ(order, "a0 b0 b1 a1 a2 b2 ");
}

TEST_F(CommandCli, ALaunchEndsWhenItsTimesAreKnown) {
  const Answer answer = run("run train_iters=300 seq_length=8 gbs=2 mbs=2 layers=1 --steady-steps 20 --quiet");
  EXPECT_EQ(answer.status, 0) << answer.out;
  const baselines::Launch launch = stored().launches.at(0);
  int64_t profiled = 0;
  for (const baselines::Step& step : launch.steps)
    if ((step.flags & baselines::kStepProfiled) != 0) {
      ++profiled;
      EXPECT_GE(step.index, 20);
      EXPECT_LT(step.index, 25);
    }
  EXPECT_EQ(profiled, 5) << "steps are profiled before a run can end";
  bool told = false;
  for (const auto& count : launch.counts) told = told || count.name.starts_with("ended early");
  EXPECT_EQ(told, launch.steps.size() < 300) << "a machine that never settles runs them all";
  EXPECT_EQ(run("run --steady-steps 0").status, 64);
  EXPECT_EQ(run("run --interval -1").status, 64);
}

// What is timed around a command that trains on GPUs of this machine.
TEST_F(CommandCli, GpusAreTimedInAProcessOfTheirOwn) {
  const Answer none = run("time-gpus 0");
  EXPECT_EQ(none.status, 64) << none.out;
  const Answer first = run("time-gpus 1");
  if (first.status != 0) GTEST_SKIP() << first.out;
  std::istringstream words(first.out);
  int64_t ns = 0;
  int count = 0;
  for (; words >> ns; ++count) EXPECT_GE(ns, 0) << first.out;
  EXPECT_EQ(count, 6) << first.out;
}

TEST_F(CommandCli, OneCommandWithoutASuite) {
  const Answer answer = run("run --quiet --command 'sh " + script_ +
                            " --iters 20 --gpus {gpus}' --log megatron-bridge gpus=8 model=llama3-8b");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_EQ(stored().launches[0].steps.size(), 20U);
  const Answer bad = run("run --command 'x {nope}'");
  EXPECT_EQ(bad.status, 64) << bad.out;
  EXPECT_TRUE(bad.has("{nope}")) << bad.out;
}

}  // namespace
}  // namespace mbb::suites
