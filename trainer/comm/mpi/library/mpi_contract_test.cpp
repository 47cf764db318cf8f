// The communicator contract on processes that mpirun started: this program starts itself again under it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdio>
#include <thread>

#include "profiler/host/library.h"
#include "trainer/comm/communicator_contract.h"
#include "trainer/comm/mpi/run_mpi_rank.h"

namespace mbb::trainer {
namespace {

struct Answer {
  int status = -1;
  std::string out;
};

// Runs the test `name` of this program in `ranks` processes.
Answer under_mpirun(int ranks, const std::string& name) {
  char own[PATH_MAX] = {};
  if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) return {};
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "timeout -s KILL 120 mpirun -q --oversubscribe -n {} {} --gtest_also_run_disabled_tests --gtest_filter={} 2>&1",
      ranks, own, name);
  Answer answer;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return answer;
}

std::vector<int> everyone(const World& world) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  return all;
}

class MpiRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (profiler::find_program("mpirun").empty()) GTEST_SKIP() << "no mpirun on PATH (openmpi-bin brings it)";
  }
};

// What a rank's process does, as a test of its own; DISABLED_ keeps it out of a plain run.
void as_rank(const std::function<Status(World&)>& rank_main, const std::string& expected = "",
             const ControlOptions& options = {}) {
  if (!place_if_any()) GTEST_SKIP() << "not started by a launcher";
  const Status status = run_mpi_rank(rank_main, options);
  const std::string said = status ? "" : format(status.error());
  if (expected.empty() ? !said.empty() : said.find(expected) == std::string::npos) {
    fmt::print("UNEXPECTED rank {}: '{}'\n", place_if_any()->rank, said);
  } else if (place_if_any()->rank == 0) {
    fmt::print("EXPECTED {}\n", said);
  }
  std::fflush(stdout);
  // Others may still be on their way: mpirun ends them all once one has left.
  if (!expected.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(place_if_any()->rank == 0 ? 300 : 3000));
  _exit(0);
}

TEST(MpiRank, DISABLED_KeepsTheContract) {
  as_rank([](World& world) -> Status {
    MB_ASSIGN(auto all, world.group(GroupKind::kWorld, everyone(world)));
    MB_TRY(contract::check_contract(*all, 21));
    // Groups side by side, in an order that is not the world's, and of one rank.
    const int rank = world.rank();
    if (rank < 3) {
      MB_ASSIGN(auto turned, world.group(GroupKind::kCp, {2, 0, 1}));
      MB_TRY(contract::check_contract(*turned, 22));
    }
    MB_ASSIGN(auto alone, world.group(GroupKind::kTp, {rank}));
    MB_TRY(contract::check_contract(*alone, 23));
    return all->barrier();
  });
}

TEST_F(MpiRanks, KeepTheContract) {
  const Answer answer = under_mpirun(4, "MpiRank.DISABLED_KeepsTheContract");
  EXPECT_EQ(answer.out.find("UNEXPECTED"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("EXPECTED"), std::string::npos) << answer.out;
}

Result<std::unique_ptr<Communicator>> begun(World& world) {
  MB_ASSIGN(auto comm, world.group(GroupKind::kWorld, everyone(world)));
  world.at(fmt::format("layers.{}.fwd", world.rank()), 7);
  MB_TRY(comm->barrier());
  return comm;
}

TEST(MpiRank, DISABLED_ReturnsEarly) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto comm, begun(world));
        if (world.rank() == 1) return {};
        return comm->barrier();
      },
      "rank 1 at layers.1.fwd (call 7): the rank returned while another waits for it in barrier on world {0,1,2}");
}
TEST(MpiRank, DISABLED_Disagrees) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto comm, begun(world));
        float in[8] = {}, out[8] = {};
        return world.rank() == 1 ? comm->all_reduce(in, out, 8, DType::kF32)
                                 : comm->all_reduce(in, out, 4, DType::kF32);
      },
      "all_reduce(sum, ");
}
TEST(MpiRank, DISABLED_IsKilled) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto comm, begun(world));
        if (world.rank() == 2) {
          // The others wait by now, and have said so.
          std::this_thread::sleep_for(std::chrono::milliseconds(5 * Control::kHeartbeatMs));
          fmt::print("killing\n");
          std::fflush(stdout);
          std::raise(SIGKILL);
        }
        return comm->barrier();
      },
      "rank 2 at layers.2.fwd (call 7): its process ended without a word");
}
TEST(MpiRank, DISABLED_Hangs) {
  ControlOptions options;
  options.no_progress_ms = 1'000;
  options.stuck_grace_ms = 500;
  options.on_stuck = [](const Error& error) {
    fmt::print("STUCK {}\n", format(error));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    _exit(0);
  };
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto comm, begun(world));
        while (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return comm->barrier();
      },
      "rank 1 at layers.1.fwd (call 7): no rank made progress for 1000 ms", options);
}

// rank 0's words: the world's first failure with its rank, and where all stood.
void expect_end(int ranks, const std::string& test, std::initializer_list<const char*> parts) {
  const Answer answer = under_mpirun(ranks, "MpiRank.DISABLED_" + test);
  EXPECT_EQ(answer.out.find("UNEXPECTED"), std::string::npos) << answer.out;
  const size_t at = answer.out.find("EXPECTED ");
  ASSERT_NE(at, std::string::npos) << answer.out;
  for (const char* part : parts) EXPECT_NE(answer.out.find(part, at), std::string::npos) << part << "\n" << answer.out;
}

TEST_F(MpiRanks, EarlyReturnEndsTheWaitOfOthers) {
  expect_end(3, "ReturnsEarly", {"rank 0 at layers.0.fwd (call 7)", "rank 1 at layers.1.fwd (call 7) has returned"});
}
TEST_F(MpiRanks, DisagreementIsNamed) {
  expect_end(3, "Disagrees", {"8 f32", "4 f32", "on world {0,1,2}"});
}
TEST_F(MpiRanks, AKilledRankEndsTheOthers) {
  expect_end(3, "IsKilled", {"rank 1 at layers.1.fwd (call 7) waits in barrier on world {0,1,2}"});
}
TEST_F(MpiRanks, AHangIsReportedAndTheStuckProcessEnded) {
  expect_end(3, "Hangs", {"rank 1 at layers.1.fwd (call 7) runs", "rank 2 at layers.2.fwd (call 7) waits in barrier"});
}

}  // namespace
}  // namespace mbb::trainer
