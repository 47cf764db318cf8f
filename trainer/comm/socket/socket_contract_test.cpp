// The communicator contract on processes that no MPI started: this program starts itself again, a process a rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <thread>

#include "trainer/comm/communicator_contract.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/comm/socket/rank_of_this_program_test.h"

namespace mbb::trainer {
namespace {

std::vector<int> everyone(const World& world) {
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// What a rank's process does, as a test of its own; DISABLED_ keeps it out of a plain run.
void as_rank(const std::function<Status(World&)>& rank_main, const std::string& expected = "",
             const ControlOptions& options = {}) {
  const auto place = place_if_any();
  if (!place) GTEST_SKIP() << "not started as a rank";
  const Status status = run_mpi_rank(rank_main, options);
  const std::string said = status ? "" : format(status.error());
  if (expected.empty() ? !said.empty() : said.find(expected) == std::string::npos)
    fmt::print("UNEXPECTED rank {}: '{}'\n", place->rank, said);
  else
    fmt::print("EXPECTED of rank {}\n", place->rank);
  std::fflush(stdout);
  _exit(0);
}

TEST(SocketRank, DISABLED_KeepsTheContract) {
  as_rank([](World& world) -> Status {
    MB_ASSIGN(auto all, world.group(GroupKind::kWorld, everyone(world)));
    MB_TRY(contract::check_contract(*all, 31));
    if (world.rank() < 3) {
      MB_ASSIGN(auto turned, world.group(GroupKind::kCp, {2, 0, 1}));
      MB_TRY(contract::check_contract(*turned, 32));
    }
    // More than a socket holds, both ways at once.
    std::vector<float> mine(1'000'000, static_cast<float>(world.rank())), sum(mine.size());
    MB_TRY(all->all_reduce(mine.data(), sum.data(), mine.size(), DType::kF32));
    if (sum.back() != 6.0F) return fail(ErrorCode::kMismatch, fmt::format("a sum of {}", sum.back()));
    return all->barrier();
  });
}

TEST(SocketRank, DISABLED_IsKilled) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto all, world.group(GroupKind::kWorld, everyone(world)));
        world.at(fmt::format("layers.{}.fwd", world.rank()), 7);
        MB_TRY(all->barrier());
        if (world.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5 * Control::kHeartbeatMs));
          std::raise(SIGKILL);
        }
        return all->barrier();
      },
      "rank 2 at layers.2.fwd (call 7): its process ended without a word");
}

// Rank 1 hangs; the others wait for it, on the host and on the device.
TEST(SocketRank, DISABLED_WaitsForItsDevice) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto all, world.group(GroupKind::kWorld, everyone(world)));
        world.at("step", 3);
        if (world.rank() == 2) return all->barrier();
        if (world.rank() == 0) world.waits_for_device(true);
        while (world.check()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return world.check();
      },
      "rank 1 at step (call 3): no rank made progress for 1000 ms", {.no_progress_ms = 1000});
}

// Its connections stay open; the other ends it when it has seen that.
TEST(SocketRank, DISABLED_IsStopped) {
  as_rank(
      [](World& world) -> Status {
        MB_ASSIGN(auto all, world.group(GroupKind::kWorld, everyone(world)));
        world.at("step", 3);
        int64_t first = getpid();
        MB_TRY(all->broadcast(&first, &first, 1, DType::kI64, 0));
        if (world.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2 * Control::kFirstTellsMs));
          std::raise(SIGSTOP);
        }
        while (world.check()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        kill(static_cast<pid_t>(first), SIGKILL);
        return world.check();
      },
      "rank 0 at step (call 3): its process has said nothing for 3000 ms", {.no_progress_ms = 0, .silent_ms = 3000});
}

void expect_all(int ranks, const std::string& said, const std::vector<int>& silent = {}) {
  EXPECT_EQ(said.find("UNEXPECTED"), std::string::npos) << said;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool silent_rank = std::find(silent.begin(), silent.end(), rank) != silent.end();
    EXPECT_EQ(said.find(fmt::format("EXPECTED of rank {}", rank)) == std::string::npos, silent_rank) << said;
  }
}

TEST(SocketRanks, KeepTheContract) {
  expect_all(4, in_processes(4, "SocketRank.DISABLED_KeepsTheContract"));
}
TEST(SocketRanks, ARankThatHangsIsNamedWhereOthersWaitForTheirDevices) {
  expect_all(3, in_processes(3, "SocketRank.DISABLED_WaitsForItsDevice"));
}
TEST(SocketRanks, AFirstRankThatIsStoppedEndsTheOthersWithItsName) {
  expect_all(2, in_processes(2, "SocketRank.DISABLED_IsStopped"), {0});
}
TEST(SocketRanks, AKilledRankEndsTheOthersWithItsName) {
  expect_all(3, in_processes(3, "SocketRank.DISABLED_IsKilled"), {2});
}

}  // namespace
}  // namespace mbb::trainer
