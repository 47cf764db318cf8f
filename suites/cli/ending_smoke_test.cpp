// How a run ends when a rank fails, whether ranks are threads or mpirun's processes; and that both train the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "profiler/host/library.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

// srun and torchrun by the variables that they set, on one of two processes.
std::string as_rank(const std::string& launcher, int rank) {
  const std::string variables =
      launcher == "srun" ? fmt::format("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID={0} SLURM_LOCALID={0} SLURM_JOB_ID=7", rank)
                         : fmt::format(
                               "WORLD_SIZE=2 RANK={0} LOCAL_WORLD_SIZE=2 LOCAL_RANK={0} MASTER_ADDR=localhost "
                               "MASTER_PORT=29500",
                               rank);
  return fmt::format("env {} MBBENCH_MEET_AT=file:{}.meet timeout -s KILL 100 ", variables, launcher);
}

class Ending : public ProgramTest {
 protected:
  // "" when mpirun can start this build's ranks, else why not.
  std::string no_mpi() const {
    if (profiler::find_program("mpirun").empty()) return "no mpirun on PATH (openmpi-bin brings it)";
    if (!fs::exists(fs::path(program_).parent_path() / "libmbbench_mpi.so"))
      return "libmbbench_mpi.so was not built (libopenmpi-dev brings what it needs)";
    return "";
  }

  Answer run(const std::string& arguments, int processes = 1) const {
    if (processes > 1) return mpirun(fmt::format("-n {} {} {}", processes, program_, arguments));
    return sh(fmt::format("timeout -s KILL 200 {} {}", program_, arguments));
  }

  Answer mpirun(const std::string& what) const {
    return sh(
        fmt::format("timeout -s KILL 200 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q "
                    "--oversubscribe {}",
                    what));
  }

  // Two ranks at once: rank 0's answer; the other is ended then.
  Answer both(const std::string& name, const std::string& first, const std::string& second) const {
    return sh(fmt::format("{{ {}{} > {}.txt 2>&1 & {}{}; s=$?; kill $!; wait; exit $s; }}", as_rank(name, 1), second,
                          name, as_rank(name, 0), first));
  }

  // The one cell of the run that the answer names.
  baselines::Cell cell(const Answer& answer) const {
    const size_t at = answer.out.rfind("run r-");
    if (at == std::string::npos) return {};
    const std::string run = answer.out.substr(at + 4, std::string_view("r-20261128-0910-4fd7").size());
    const auto reader = baselines::BundleReader::open(folder_ / "mbbench-runs" / "runs" / run);
    if (!reader) return {};
    const auto all = reader->read_all();
    return all && all->cells.size() == 1 ? all->cells[0] : baselines::Cell{};
  }

  void expect_broken(const Answer& answer, const std::vector<std::string>& parts) const {
    EXPECT_EQ(answer.status, 4) << answer.out;
    const baselines::Cell broken = cell(answer);
    EXPECT_EQ(broken.status, baselines::CellStatus::kBroken) << answer.out;
    for (const std::string& part : parts)
      EXPECT_NE(broken.reason.find(part), std::string::npos) << part << " is not in: " << broken.reason << "\n"
                                                             << answer.out;
  }
};

constexpr const char* kSmall = "run tp=2 pp=2 mbs=1 gbs=4 seq_length=16 train_iters=4 --quiet";

TEST_F(Ending, ThreadsEndWithTheFaultyRanksErrorAndEveryPlace) {
  const std::string small = kSmall;
  expect_broken(run(small + " inject_fault=error@2"),
                {"rank 2 at ", "debug.inject_fault = error@2", "rank 0 at ", "rank 1 at ", "rank 3 at "});
  expect_broken(run(small + " inject_fault=exception@1"), {"rank 1 at ", "exception: ", "rank 3 at "});
  expect_broken(run(small + " inject_fault=return@3"), {"rank 3 at ", "the rank returned while rank ", "rank 0 at "});
  expect_broken(run(small + " inject_fault=kill@1"),
                {"ended by signal 9", "rank 1 is killed", "rank 0 at ", "rank 1 at ", "rank 3 at "});
  EXPECT_EQ(run(small + " inject_fault=hang@4").status, 64);
  EXPECT_EQ(run(small + " inject_fault=sleep@1").status, 64);
  EXPECT_EQ(run(small + " inject_fault=trap@1").status, 64);  // no GPU to trap on
}

TEST_F(Ending, AThreadThatHangsEndsTheRun) {
  expect_broken(run(std::string(kSmall) + " inject_fault=hang@1 no_progress_limit_s=1"),
                {"rank 1 at ", "no rank made progress for 1000 ms", "rank 0 at ", "waits in ", "still running after"});
}

TEST_F(Ending, ABrokenCellsReplayNamesAllItIsComparedWith) {
  std::ofstream(folder_ / "s.toml") << R"(purpose = "A cell that breaks."
[base]
seq_length = 16
train_iters = 8
[cover.all]
total = 4
reference = { mapping = "one" }
[cover.all.axes.recipe]
fp32 = {}
bf16 = { recipe = "bf16" }
[cover.all.axes.mapping]
one = {}
tp2 = { tp = 2, inject_fault = "error@1" }
)";
  const Answer answer = run("suite ./s.toml --seed 5 gbs=4 --quiet");
  EXPECT_EQ(answer.status, 4) << answer.out;
  const std::string replay = "mbbench suite ./s.toml --seed 5 gbs=4 --only fp32-one --only bf16-one --only bf16-tp2\n";
  ASSERT_NE(answer.out.find("replay  " + replay), std::string::npos) << answer.out;
  const Answer again = run(replay.substr(8, replay.size() - 9) + " --quiet");
  EXPECT_EQ(again.status, 4) << again.out;
  EXPECT_NE(again.out.find("replay  mbbench suite ./s.toml"), std::string::npos) << again.out;
}

TEST_F(Ending, ProcessesTrainTheBitsOfThreads) {
  if (const std::string why = no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const std::string mapping =
      "run tp=2 pp=2 vpp=2 layers=4 gbs=8 seq_length=16 train_iters=5 overlap_grad_reduce=true "
      "overlap_param_gather=true "
      "record_gradients=true --quiet";
  const Answer threads = run(mapping + " gpus=8");
  ASSERT_EQ(threads.status, 0) << threads.out;
  const baselines::Cell one = cell(threads);
  const Answer processes = run(mapping, 8);
  ASSERT_EQ(processes.status, 0) << processes.out;
  const baselines::Cell other = cell(processes);
  ASSERT_EQ(one.launches.size(), 1U);
  ASSERT_EQ(other.launches.size(), 1U);
  EXPECT_EQ(other.ranks, 8);
  EXPECT_NE(other.run, one.run);
  EXPECT_FALSE(one.loss_checksum.empty());
  EXPECT_EQ(other.loss_checksum, one.loss_checksum);
  ASSERT_EQ(other.launches[0].steps.size(), one.launches[0].steps.size());
  for (size_t step = 0; step < one.launches[0].steps.size(); ++step) {
    EXPECT_EQ(other.launches[0].steps[step].loss, one.launches[0].steps[step].loss) << step;
    EXPECT_EQ(other.launches[0].steps[step].grad_norm, one.launches[0].steps[step].grad_norm) << step;
  }
  EXPECT_EQ(other.launches[0].trace_files, one.launches[0].trace_files);
}

TEST_F(Ending, LaunchersWithoutMpiTrainTheBitsOfThreads) {
  const std::string mapping = "run tp=2 gbs=4 seq_length=16 train_iters=4 --quiet";
  const baselines::Cell one = cell(run(mapping));
  ASSERT_FALSE(one.loss_checksum.empty());
  for (const std::string launcher : {"srun", "torchrun"}) {
    SCOPED_TRACE(launcher);
    const Answer both = sh(fmt::format("({}{} {} > one.txt 2>&1 &); {}{} {}", as_rank(launcher, 1), program_, mapping,
                                       as_rank(launcher, 0), program_, mapping));
    EXPECT_EQ(cell(both).loss_checksum, one.loss_checksum) << both.out << text_of(folder_ / "one.txt");
  }
  // Where a run broke no rank ends well; the others wait a little, since their status may end rank 0, which writes it.
  const std::string killed = mapping + " inject_fault=kill@1";
  const Answer first = sh(fmt::format("{{ ({}{} {} > two.txt 2>&1; echo ended with $? >> two.txt) & {}{} {}; wait; }}",
                                      as_rank("killed", 1), program_, killed, as_rank("killed", 0), program_, killed));
  EXPECT_NE(cell(first).reason.find("its process ended without a word"), std::string::npos) << first.out;
  const std::string second = text_of(folder_ / "two.txt");
  EXPECT_TRUE(second.starts_with("error: rank 1: its process ended by signal 9")) << second;
  EXPECT_TRUE(second.ends_with("ended with 4\n")) << second;
}

// Nobody else is left to tell.
TEST_F(Ending, TheOthersNameRankZeroWhereAllOfItWasKilled) {
  const auto start = [&](int rank) {
    return fmt::format(
        "env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID={0} SLURM_LOCALID={0} MBBENCH_MEET_AT=file:meet {1} run tp=2 gbs=4 "
        "seq_length=16 train_iters=1000000 --quiet > {0}.txt 2>&1 & p{0}=$!; ",
        rank, program_);
  };
  const Answer answer =
      sh("{ " + start(0) + start(1) +
         "for i in $(seq 600); do [ -z \"$(find mbbench-runs -name steps.live.csv -size +0)\" ] || break; sleep 0.1; "
         "done; sleep 2; kill -9 $p0; wait $p1; echo ended with $?; }");
  EXPECT_TRUE(answer.out.ends_with("ended with 4\n")) << answer.out;
  const std::string said = text_of(folder_ / "1.txt");
  EXPECT_TRUE(said.starts_with("error: rank 0 at ")) << said;
  EXPECT_NE(said.find(": its process ended without a word"), std::string::npos) << said;
  EXPECT_NE(said.find("\n  hint: "), std::string::npos) << said;
}

struct TwoMappings {
  const char *first, *second;
  std::vector<std::string> said;
};
// Groups of one rank have other members in each of these, so that opening them would wait for ever.
const TwoMappings kMappings[] = {
    {"tp=2",
     "pp=2",
     {"rank 1 has parallel.tensor_model_parallel_size=1, parallel.pipeline_model_parallel_size=2",
      " where rank 0 has parallel.tensor_model_parallel_size=2, parallel.pipeline_model_parallel_size=1"}},
    {"cp=2", "tp=2", {"rank 1 has ", "parallel.context_parallel_size=1", " where rank 0 has "}},
    {"gpus=2", "cp=2", {"rank 1 has ", "parallel.context_parallel_size=2", "parallel.context_parallel_size=1"}}};
constexpr const char* kAnyMapping = "gbs=4 seq_length=16 train_iters=3 --quiet";

TEST_F(Ending, RanksOfDifferentMappingsAreRefused) {
  for (const TwoMappings& m : kMappings) {
    SCOPED_TRACE(fmt::format("{} beside {}", m.first, m.second));
    const std::string name = replace_all(fmt::format("{}-{}", m.first, m.second), "=", "");
    expect_broken(both(name, fmt::format("{} run {} {}", program_, m.first, kAnyMapping),
                       fmt::format("{} run {} {}", program_, m.second, kAnyMapping)),
                  m.said);
  }
}

TEST_F(Ending, RanksOfDifferentMappingsAreRefusedUnderMpi) {
  if (const std::string why = no_mpi(); !why.empty()) GTEST_SKIP() << why;
  for (const TwoMappings& m : kMappings) {
    SCOPED_TRACE(fmt::format("{} beside {}", m.first, m.second));
    expect_broken(
        mpirun(fmt::format("-n 1 {0} run {1} {3} : -n 1 {0} run {2} {3}", program_, m.first, m.second, kAnyMapping)),
        m.said);
  }
}

// Ranks that were told different things, or are different programs, do not train together.
TEST_F(Ending, RanksThatDifferEndWithWhatDiffersAndBothValues) {
  const std::string run = "run tp=2 gbs=4 seq_length=16 train_iters=4 --quiet";
  expect_broken(both("seeds", fmt::format("{} {} seed=5", program_, run), fmt::format("{} {} seed=6", program_, run)),
                {"rank 1 has ", "train.seed=6", " where rank 0 has ", "train.seed=5"});

  // Another build: a copy of the program with another commit written over its own, of which eight letters stand
  // together.
  const auto commit_of = [&](const std::string& program) {
    const std::string version = sh(program + " --version").out, key = "build.commit = ";
    const size_t at = version.find(key);
    return at == std::string::npos ? version
                                   : version.substr(at + key.size(), version.find('\n', at) - at - key.size());
  };
  const std::string commit = commit_of(program_);
  ASSERT_EQ(sh(fmt::format("sed 's/{}/eeeeeeee/g' {} > other && chmod +x other", commit.substr(0, 8), program_)).status,
            0);
  const std::string other = commit_of("./other");
  if (other == commit) GTEST_SKIP() << "commit " << commit << " does not stand in the program as such";
  expect_broken(both("builds", fmt::format("{} {}", program_, run), fmt::format("./other {}", run)),
                {"rank 1 has ", "build.commit=" + other, " where rank 0 has ", "build.commit=" + commit});
}

TEST_F(Ending, ProcessesEndWithTheFaultyRanksErrorAndEveryPlace) {
  if (const std::string why = no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const std::string small = kSmall;
  expect_broken(run(small + " inject_fault=exception@2", 4), {"rank 2 at ", "exception: ", "rank 0 at ", "rank 3 at "});
  expect_broken(run(small + " inject_fault=return@3", 4), {"rank 3", "the rank returned while another waits for it"});
  expect_broken(run(small + " inject_fault=kill@1", 4),
                {"rank 1 at ", "its process ended without a word", "rank 0 at ", "rank 2 at "});
  expect_broken(run(small + " inject_fault=kill@0", 4),
                {"rank 0 at ", "): its process ended by signal 9", " [rank 0 at ", "rank 1 at "});
}

TEST_F(Ending, AProcessThatHangsEndsTheRun) {
  if (const std::string why = no_mpi(); !why.empty()) GTEST_SKIP() << why;
  expect_broken(run(std::string(kSmall) + " inject_fault=hang@1 no_progress_limit_s=2", 4),
                {"rank 1 at ", "no rank made progress for 2000 ms", "rank 0 at ", "waits in "});
}

TEST_F(Ending, ALaunchersProcessesAreOneLaunch) {
  if (const std::string why = no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const Answer suite = run("suite quickstart --quiet", 2);
  EXPECT_NE(suite.status, 0) << suite.out;
  EXPECT_NE(suite.out.find("are the ranks of one launch"), std::string::npos) << suite.out;
  const Answer fewer = run("run gpus=4 train_iters=1 --quiet", 2);
  EXPECT_NE(fewer.status, 0) << fewer.out;
  EXPECT_NE(fewer.out.find("the launcher started 2 processes"), std::string::npos) << fewer.out;
}

}  // namespace
}  // namespace mbb::suites
