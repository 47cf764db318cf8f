// The program as a user meets it: a small suite end to end, kills and resume, bad input with message and exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "baselines/store/bundle.h"
#include "profiler/trace/trace_file.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

struct Answer {
  int status = -1;
  std::string out;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("mbbench_cli_" + std::to_string(getpid()) + "_" +
                                              testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    program_ = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
    write("small.toml", R"(purpose = "Two mappings, a few steps."
[base]
micro_batch_size = 2
global_batch_size = 4
seq_length = 16
train_iters = 12
[[cell]]
name = "one"
[[cell]]
name = "tp2"
set = { tp = 2 }
[[cell]]
name = "pp2"
set = { pp = 2 }
)");
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  Answer run(const std::string& arguments) const {
    Answer answer;
    const std::string command = "cd " + folder_.string() + " && " + program_ + " " + arguments + " 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer{};
    for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.out.append(buffer.data(), n);
    const int status = pclose(pipe);
    answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return answer;
  }

  void expect_refused(const std::string& arguments, int status, const std::string& part) const {
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
    EXPECT_NE(answer.out.find(part), std::string::npos) << arguments << "\n" << answer.out;
  }

  fs::path folder_;
  std::string program_;
};

TEST_F(Cli, ASuiteTrainsStoresShowsAndCompares) {
  const Answer first = run("suite ./small.toml --quiet --tag a");
  ASSERT_EQ(first.status, 0) << first.out;
  for (const char* cell : {"one", "tp2", "pp2"}) EXPECT_NE(first.out.find(cell), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("functional/cpu"), std::string::npos) << first.out;
  ASSERT_EQ(run("suite ./small.toml --quiet --tag b lr=0.001").status, 0);
  const Answer show = run("show @a");
  EXPECT_EQ(show.status, 0);
  EXPECT_NE(show.out.find("losses equal one"), std::string::npos) << show.out;
  EXPECT_EQ(run("show @latest --cell tp2").status, 0);
  const Answer compare = run("compare @a @b");
  EXPECT_EQ(compare.status, 0);
  EXPECT_NE(compare.out.find("optimizer.lr"), std::string::npos) << compare.out;
  EXPECT_NE(run("list runs").out.find("3 ok"), std::string::npos);
  fs::remove(folder_ / "mbbench-runs" / "mbbench.sqlite");
  const Answer index = run("index");
  EXPECT_EQ(index.status, 0) << index.out;
  EXPECT_EQ(run("show @a").out, show.out) << "the store is rebuilt from bundles";
}

TEST_F(Cli, TheProfiledWindowIsTheUsers) {
  ASSERT_EQ(run("run tp=2 mbs=2 gbs=4 seq_length=16 train_iters=12 profile_step_start=4 profile_step_end=6 "
                "profile_ranks=1 --quiet")
                .status,
            0);
  const auto bundle = fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path();
  const auto reader = baselines::BundleReader::open(bundle);
  ASSERT_TRUE(reader);
  const auto stored = reader->read_all();
  ASSERT_TRUE(stored) << stored.error().what;
  const baselines::Launch& launch = stored->cells[0].launches[0];
  for (const baselines::Step& step : launch.steps)
    EXPECT_EQ((step.flags & baselines::kStepProfiled) != 0, step.index == 4 || step.index == 5) << step.index;
  const auto trace = profiler::read_trace(reader->launch_file(stored->cells[0].name, 0, launch.trace_files.at(0)));
  ASSERT_TRUE(trace);
  EXPECT_EQ(profiler::ranks(*trace), std::vector<int32_t>{1});
  ASSERT_EQ(trace->steps.size(), 2U);
  EXPECT_EQ(trace->steps[0].step, 4);
  expect_refused("run train_iters=12 profile_step_end=13", 64, "profiling.profile_step_end");
  expect_refused("run train_iters=12 profile_ranks=3", 64, "profiling.profile_ranks");
  expect_refused("run use_nsys_profiler=true", 64, "use_nsys_profiler");
}

TEST_F(Cli, BadInputSaysWhatAndWhereAndLeavesNothing) {
  expect_refused("list runs", 4, "no runs yet");
  expect_refused("suite quickstrat", 4, "did you mean 'quickstart'");
  expect_refused("suite quickstart tpp=2", 64, "tpp");
  expect_refused("suite quickstart seq_length=abc", 64, "seq_length");
  expect_refused("run tp=3", 64, "does not divide");
  expect_refused("run pp=3", 64, "parallel.pipeline_model_parallel_size");
  expect_refused("run --model llama9", 4, "llama9");
  expect_refused("run data.path=/no/such/file train_iters=1", 4, "/no/such/file");
  expect_refused("list nothing", 64, "nothing is listed");
  expect_refused("nonsense", 64, "nonsense");
  write("bad.toml", "purpose = \"x\"\n[base]\nmicro_batch_sise = 2\n[[cell]]\nname = \"a\"\n");
  expect_refused("suite ./bad.toml", 4, "bad.toml:3");
  write("type.toml", "purpose = \"x\"\n[base]\nmicro_batch_size = \"two\"\n[[cell]]\nname = \"a\"\n");
  expect_refused("suite ./type.toml", 4, "type.toml:3");
  expect_refused("suite ./missing.toml", 4, "missing.toml");
}

// On a machine with GPUs this would train on one, so it is asked for more than any has.
TEST_F(Cli, MissingGpusSkipTheCellAndSayWhy) {
  const Answer answer = run("run --device cuda gpus=512 gbs=512 train_iters=1 --quiet");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_NE(answer.out.find("skipped"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("needs 512 GPUs"), std::string::npos) << answer.out;
  EXPECT_EQ(run("run --device cuda gpus=512 gbs=512 train_iters=1 --quiet --require measured").status, 4);
}

TEST_F(Cli, AStoreThatIsNoDatabaseIsRefusedAndTheBundleKept) {
  fs::create_directories(folder_ / "mbbench-runs");
  write("mbbench-runs/mbbench.sqlite", "this is no database, and it is long enough to be looked at as one. ");
  const Answer answer = run("suite ./small.toml --quiet --only one");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_NE(answer.out.find("the store was not updated"), std::string::npos) << answer.out;
  EXPECT_EQ(run("list runs").status, 4);
}

// Kills the whole process group at a random moment, resumes, and expects what an undisturbed run gives.
TEST_F(Cli, AKilledSuiteResumesToTheSameResult) {
  std::mt19937 random{std::random_device{}()};
  ASSERT_EQ(run("suite ./small.toml --quiet --tag whole").status, 0);
  std::map<std::string, std::string> expected;
  const auto read = [&](const fs::path& bundle) {
    std::map<std::string, std::string> sums;
    const auto reader = baselines::BundleReader::open(bundle);
    const auto all = reader->read_all();
    for (const auto& cell : all->cells)
      sums[cell.name] = std::string(baselines::name(cell.status)) + cell.loss_checksum;
    return sums;
  };
  for (const auto& entry : fs::directory_iterator(folder_ / "mbbench-runs" / "runs")) expected = read(entry.path());
  ASSERT_EQ(expected.size(), 3U);
  for (int round = 0; round < 3; ++round) {
    fs::remove_all(folder_ / "mbbench-runs");
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      if (chdir(folder_.c_str()) != 0) _exit(1);
      execl(program_.c_str(), "mbbench", "suite", "./small.toml", "--quiet", nullptr);
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(5, 900)(random)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Answer resumed = run("suite ./small.toml --quiet --resume");
    if (resumed.status == 4 && resumed.out.find("no unfinished run") != std::string::npos) {
      ASSERT_EQ(run("suite ./small.toml --quiet").status, 0);
    } else {
      ASSERT_EQ(resumed.status, 0) << resumed.out;
    }
    for (const auto& entry : fs::directory_iterator(folder_ / "mbbench-runs" / "runs")) {
      // A process killed while it made the folder leaves one without run.json: no bundle.
      if (!baselines::looks_like_bundle(entry.path())) continue;
      EXPECT_EQ(read(entry.path()), expected);
    }
  }
}

}  // namespace
}  // namespace mbb::suites
