// Ranks that come, ranks that do not, and doors that are taken.
#include "trainer/comm/socket/rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/comm/mpi/wire.h"

namespace mbb::trainer {
namespace {

class MeetingPlace : public testing::Test {
 protected:
  void SetUp() override {
    file_ = testing::TempDir() +
            fmt::format("meet-{}-{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove(file_);
  }
  void TearDown() override { std::filesystem::remove(file_); }

  ProcessPlace place(int rank, int size, const std::string& job = "test") const {
    ProcessPlace p;
    p.launcher = Launcher::kOwn;
    p.rank = p.local_rank = rank;
    p.size = p.local_size = size;
    p.one_host = true;
    p.rendezvous = "file:" + file_;
    p.job = job;
    return p;
  }

  // Calls the roll of these places at once.
  static std::vector<Result<Roll>> call(const std::vector<ProcessPlace>& places, int64_t limit_ms) {
    std::vector<Result<Roll>> rolls(places.size(), Result<Roll>(Roll{}));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < places.size(); ++i)
      threads.emplace_back(
          [&, i] { rolls[i] = call_roll(places[i], fmt::format("address {}", places[i].rank), limit_ms); });
    threads.clear();
    return rolls;
  }

  // A port that nobody has at the moment.
  static int free_port() {
    const auto door = Listener::open(true);
    return static_cast<int>(*parse_int(split((*door)->address(), ' ')[1]));
  }

  std::string file_;
};

constexpr int64_t kLongMs = 20'000;

TEST_F(MeetingPlace, EveryoneGetsEverybodysAddress) {
  for (const bool by_port : {false, true}) {
    std::vector<ProcessPlace> places{place(0, 3), place(1, 3), place(2, 3)};
    const std::string port = fmt::format("localhost:{}", free_port());
    if (by_port)
      for (ProcessPlace& p : places) p.rendezvous = port;
    const auto rolls = call(places, kLongMs);
    for (const auto& roll : rolls) {
      ASSERT_TRUE(roll.has_value()) << roll.error().what;
      EXPECT_EQ(roll->addresses, (std::vector<std::string>{"address 0", "address 1", "address 2"}));
      EXPECT_EQ(roll->secret, rolls[0]->secret);
      EXPECT_EQ(roll->secret.size(), 32U);
    }
  }
}

TEST_F(MeetingPlace, NamesTheRanksThatDoNotCome) {
  const auto rolls = call({place(0, 4), place(2, 4)}, 300);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_EQ(rolls[0].error().code, ErrorCode::kTimeout);
  EXPECT_EQ(rolls[0].error().what, "ranks 1, 3 of 4 did not come within 0.3 s");
  ASSERT_FALSE(rolls[1].has_value());
  EXPECT_EQ(rolls[1].error().what, rolls[0].error().what);
  EXPECT_EQ(rolls[1].error().hint, rolls[0].error().hint);
}

TEST_F(MeetingPlace, SaysWhereRankZeroWasLookedFor) {
  const auto rolls = call({place(1, 2)}, 100);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_NE(rolls[0].error().what.find("rank 1 did not meet rank 0 at file:" + file_), std::string::npos)
      << rolls[0].error().what;
}

TEST_F(MeetingPlace, SeesThatRankZeroEndsBeforeAllHaveMet) {
  auto door = *Listener::open(true);
  ASSERT_TRUE(write_file(file_, door->address()));
  const std::jthread first([&] {
    auto wire = door->accept(kLongMs);
    (void)(*wire)->receive_one(kLongMs);
  });
  const auto rolls = call({place(1, 3)}, kLongMs);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_EQ(rolls[0].error().code, ErrorCode::kRankFailed);
  EXPECT_EQ(rolls[0].error().what,
            "rank 0 was at file:" + file_ + " and ended before all ranks had met: it closed the connection to rank 1");
}

TEST_F(MeetingPlace, SeesThatRankZeroEndedBeforeItCame) {
  ASSERT_TRUE(write_file(file_, (*Listener::open(true))->address()));
  const auto rolls = call({place(1, 2)}, 2'000);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_EQ(rolls[0].error().code, ErrorCode::kRankFailed);
  EXPECT_NE(rolls[0].error().what.find("ended before all ranks had met: nobody listens there any more"),
            std::string::npos)
      << rolls[0].error().what;
}

TEST_F(MeetingPlace, AnAddressOfARunBeforeIsReplaced) {
  ASSERT_TRUE(write_file(file_, (*Listener::open(true))->address()));
  const std::jthread first([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    (void)call_roll(place(0, 2), "address 0", kLongMs);
  });
  const auto rolls = call({place(1, 2)}, kLongMs);
  ASSERT_TRUE(rolls[0].has_value()) << rolls[0].error().what;
  EXPECT_EQ(rolls[0]->addresses[0], "address 0");
}

TEST_F(MeetingPlace, RefusesAPortThatIsTaken) {
  const auto taken = Listener::open(true);
  ASSERT_TRUE(taken.has_value());
  ProcessPlace p = place(0, 2);
  p.rendezvous = fmt::format("127.0.0.1:{}", split((*taken)->address(), ' ')[1]);
  const auto rolls = call({p}, kLongMs);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_NE(rolls[0].error().what.find("rank 0 cannot wait for the others at port"), std::string::npos);
  EXPECT_NE(rolls[0].error().hint.find("MBBENCH_MEET_AT"), std::string::npos);
}

TEST_F(MeetingPlace, RefusesTwoProcessesOfOneRankAndWorldsOfOtherSizes) {
  const auto twice = call({place(0, 3), place(1, 3), place(1, 3)}, kLongMs);
  ASSERT_FALSE(twice[0].has_value());
  EXPECT_EQ(twice[0].error().what, "two processes say that they are rank 1");
  std::filesystem::remove(file_);
  const auto sizes = call({place(0, 2), place(1, 3)}, kLongMs);
  for (const auto& roll : sizes) {
    ASSERT_FALSE(roll.has_value());
    EXPECT_EQ(roll.error().what, "rank 1 says there are 3 ranks, and rank 0 has 2");
  }
}

TEST_F(MeetingPlace, OverlooksStrangers) {
  const auto rolls = call({place(0, 2), place(1, 2, "another job")}, 400);
  ASSERT_FALSE(rolls[0].has_value());
  EXPECT_EQ(rolls[0].error().what, "rank 1 of 2 did not come within 0.4 s");
}

TEST_F(MeetingPlace, EndsWithWhatHappensMeanwhile) {
  const auto roll = call_roll(place(0, 2), "address 0", kLongMs,
                              [] { return fail(ErrorCode::kRankFailed, "rank 1 ended with status 71"); });
  ASSERT_FALSE(roll.has_value());
  EXPECT_EQ(roll.error().what, "rank 1 ended with status 71");
}

TEST_F(MeetingPlace, RefusesAPlaceThatIsNone) {
  ProcessPlace p = place(0, 2);
  p.rendezvous = "somewhere";
  EXPECT_EQ(call_roll(p, "", 100).error().what, "'somewhere' is no place to meet at");
  for (p.rank = 0; p.rank < 2; ++p.rank) {
    p.rendezvous = "file:" + file_ + "/none/meet";
    EXPECT_EQ(call_roll(p, "", kLongMs).error().what,
              fmt::format("rank {} sees no folder {}/none to meet in", p.rank, file_));
  }
}

}  // namespace
}  // namespace mbb::trainer
