// How a world of rank threads ends: every failure names its rank, reaches the others, and nothing hangs.
#include "trainer/comm/local/run_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "profiler/base/clock.h"

namespace mbb::trainer {
namespace {

using Comm = std::unique_ptr<Communicator>;

std::vector<int> everyone(const World& world) {
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  return all;
}

Result<Comm> join_all(World& world) {
  return world.group(GroupKind::kWorld, everyone(world));
}

void expect_error(const Status& status, ErrorCode code, std::initializer_list<const char*> parts) {
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(name(status.error().code), std::string(name(code))) << status.error().what;
  for (const char* part : parts)
    EXPECT_NE(status.error().what.find(part), std::string::npos) << part << " is not in: " << status.error().what;
}

// Runs ranks that differ in one call, and expects every rank to end and the disagreement to be named.
void expect_mismatch(int ranks, const std::function<Status(World&, Communicator&)>& body,
                     std::initializer_list<const char*> parts) {
  const Status status = run_ranks(ranks, [&](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    world.at(fmt::format("layers.{}.fwd", world.rank()), 7);
    return body(world, *comm);
  });
  expect_error(status, ErrorCode::kMismatch, parts);
}

TEST(RunRanks, EveryRankRunsOnceWithItsNumber) {
  std::atomic<int> sum = 0;
  EXPECT_TRUE(run_ranks(9, [&](World& world) -> Status {
                sum += world.rank() + 100 * world.size();
                return {};
              }).has_value());
  EXPECT_EQ(sum, 36 + 9 * 900);
}

TEST(RunRanks, RefusesBadSizes) {
  const auto nothing = [](World&) { return Status{}; };
  expect_error(run_ranks(0, nothing), ErrorCode::kBadArgument, {"0 ranks"});
  expect_error(run_ranks(kMostLocalRanks + 1, nothing), ErrorCode::kBadArgument, {"1025 ranks"});
  expect_error(run_ranks(2, nothing, {.mailbox_messages = 0}), ErrorCode::kBadArgument, {"mailbox"});
}

TEST(RunRanks, TheFirstErrorIsReturnedAndTheOthersSeeIt) {
  std::atomic<int> told = 0;
  const Status status = run_ranks(4, [&](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    MB_TRY(comm->barrier());
    if (world.rank() == 2) {
      world.at("layers.3.mlp.fc1.fwd", 12);
      return fail(ErrorCode::kNumerics, "a NaN in the loss");
    }
    const Status waited = comm->barrier();
    if (!waited.has_value() && waited.error().code == ErrorCode::kRankFailed &&
        waited.error().what == "rank 2 at layers.3.mlp.fc1.fwd (call 12) failed: a NaN in the loss")
      ++told;
    return waited;
  });
  expect_error(status, ErrorCode::kNumerics, {"rank 2 at layers.3.mlp.fc1.fwd (call 12): a NaN in the loss"});
  EXPECT_EQ(told, 3);
}

TEST(RunRanks, ExceptionsBecomeErrors) {
  const auto thrower = [](auto exception) {
    return run_ranks(3, [=](World& world) -> Status {
      MB_ASSIGN(Comm comm, join_all(world));
      if (world.rank() == 1) throw exception;
      return comm->barrier();
    });
  };
  expect_error(thrower(std::runtime_error("boom")), ErrorCode::kRankFailed, {"rank 1: exception: boom"});
  expect_error(thrower(std::bad_alloc()), ErrorCode::kOutOfMemory, {"rank 1: "});
  expect_error(thrower(42), ErrorCode::kRankFailed, {"rank 1: an exception of unknown type"});
}

TEST(RunRanks, EarlyReturnEndsTheWaitOfOthers) {
  const Status status = run_ranks(3, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    if (world.rank() == 1) return {};
    return comm->barrier();
  });
  expect_error(status, ErrorCode::kRankFailed, {"rank 1: the rank returned while rank ", "barrier on world {0,1,2}"});
  const Status late = run_ranks(2, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    int value = 0;
    if (world.rank() == 0) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return comm->recv(&value, 1, DType::kI32, 0, PipeDirection::kBackward);
  });
  expect_error(late, ErrorCode::kRankFailed, {"rank 0: the rank returned", "recv(1 i32, backward) from rank 0"});
}

TEST(RunRanks, DisagreementOnACollectiveIsNamed) {
  const auto with = [](auto first, auto second) {
    return [=](World& world, Communicator& comm) -> Status {
      std::vector<float> in(64), out(64);
      return world.rank() == 0 ? first(comm, in.data(), out.data()) : second(comm, in.data(), out.data());
    };
  };
  using C = Communicator&;
  expect_mismatch(2,
                  with([](C c, float* in, float* out) { return c.all_gather(in, out, 4, DType::kF32); },
                       [](C c, float* in, float* out) { return c.all_reduce(in, out, 4, DType::kF32); }),
                  {"all_gather(4 f32)", "all_reduce(sum, 4 f32)", "rank 0 at layers.0.fwd (call 7)",
                   "rank 1 at layers.1.fwd (call 7)", "world {0,1}"});
  expect_mismatch(3,
                  with([](C c, float* in, float* out) { return c.all_gather(in, out, 4, DType::kF32); },
                       [](C c, float* in, float* out) { return c.all_gather(in, out, 5, DType::kF32); }),
                  {"all_gather(4 f32)", "all_gather(5 f32)"});
  expect_mismatch(2,
                  with([](C c, float* in, float* out) { return c.reduce_scatter(in, out, 4, DType::kF32); },
                       [](C c, float* in, float* out) { return c.reduce_scatter(in, out, 4, DType::kBf16); }),
                  {"(sum, 4 f32)", "(sum, 4 bf16)"});
  expect_mismatch(
      2,
      with([](C c, float* in, float* out) { return c.all_reduce(in, out, 4, DType::kF32); },
           [](C c, float* in, float* out) { return c.all_reduce(in, out, 4, DType::kF32, ReduceOp::kMax); }),
      {"(sum, 4 f32)", "(max, 4 f32)"});
  expect_mismatch(2,
                  with([](C c, float* in, float* out) { return c.broadcast(in, out, 4, DType::kF32, 0); },
                       [](C c, float* in, float* out) { return c.broadcast(in, out, 4, DType::kF32, 1); }),
                  {"from 0)", "from 1)"});
}

TEST(RunRanks, DisagreementOnCountsAndMessagesIsNamed) {
  expect_mismatch(3,
                  [](World& world, Communicator& comm) -> Status {
                    std::vector<int32_t> in(16), out(16);
                    const std::vector<size_t> sends = {1, 2, 3};
                    std::vector<size_t> receives(3, static_cast<size_t>(world.rank()) + 1);
                    if (world.rank() == 2) receives[1] = 4;
                    return comm.all_to_all_v(in.data(), sends, out.data(), receives, DType::kI32);
                  },
                  {"rank 2", "expects 4 elements from rank 1, which sends 3"});
  expect_mismatch(2,
                  [](World& world, Communicator& comm) -> Status {
                    std::vector<float> data(8);
                    if (world.rank() == 0) return comm.send(data.data(), 8, DType::kF32, 1, PipeDirection::kForward);
                    return comm.recv(data.data(), 8, DType::kBf16, 0, PipeDirection::kForward);
                  },
                  {"receives 8 bf16 forward from rank 0", "sent 8 f32"});
  expect_mismatch(2,
                  [](World& world, Communicator& comm) -> Status {
                    const int data = 3;
                    for (int i = 0; i < 3 && world.rank() == 0; ++i)
                      MB_TRY(comm.send(&data, 1, DType::kI32, 1, PipeDirection::kBackward));
                    return {};
                  },
                  {"rank 1 never received 3 of the backward messages that rank 0 sent on world {0,1}"});
}

TEST(RunRanks, RanksThatWaitForEachOtherEndAtOnce) {
  // Two groups of the same ranks in opposite order.
  const Status crossed = run_ranks(2, [](World& world) -> Status {
    MB_ASSIGN(Comm tp, world.group(GroupKind::kTp, {0, 1}));
    MB_ASSIGN(Comm dp, world.group(GroupKind::kDp, {0, 1}));
    MB_TRY((world.rank() == 0 ? tp : dp)->barrier());
    return (world.rank() == 0 ? dp : tp)->barrier();
  });
  expect_error(crossed, ErrorCode::kRankFailed,
               {"all ranks wait and none can go on", "rank 0 waits in barrier on tp {0,1} for rank 1",
                "rank 1 waits in barrier on dp {0,1} for rank 0"});
  // A pair waits for each other while a third rank still works and then returns.
  const Status pair = run_ranks(3, [](World& world) -> Status {
    if (world.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return {};
    }
    MB_ASSIGN(Comm comm, world.group(GroupKind::kPp, {0, 1}));
    int value = 0;
    return comm->recv(&value, 1, DType::kI32, 1 - comm->rank(), PipeDirection::kForward);
  });
  expect_error(pair, ErrorCode::kRankFailed, {"all ranks wait", "rank 2 has returned"});
  // Alone with an empty mailbox.
  const Status alone = run_ranks(1, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    int value = 0;
    return comm->recv(&value, 1, DType::kI32, 0, PipeDirection::kForward);
  });
  expect_error(alone, ErrorCode::kRankFailed, {"all ranks wait"});
}

TEST(RunRanks, AHangIsReportedWithEveryPlaceAndTheStuckRankIsNamed) {
  std::atomic<bool> release = false;
  std::string report;
  LocalOptions options;
  options.no_progress_ms = 400;
  options.stuck_grace_ms = 40;
  options.on_stuck = [&](const Error& error) {
    report = error.what;
    release = true;
    release.notify_all();
  };
  const Status status = run_ranks(
      3,
      [&](World& world) -> Status {
        MB_ASSIGN(Comm comm, join_all(world));
        world.at("layers.0.attention.core.fwd", 3);
        MB_TRY(comm->barrier());
        if (world.rank() == 1) release.wait(false);
        return comm->barrier();
      },
      options);
  expect_error(status, ErrorCode::kTimeout,
               {"rank 1 at layers.0.attention.core.fwd (call 3): no rank made progress for 400 ms",
                "rank 0 at layers.0.attention.core.fwd (call 3) waits in barrier on world {0,1,2} for rank 1",
                "rank 1 at layers.0.attention.core.fwd (call 3) runs"});
  EXPECT_NE(report.find("still running after 40 ms"), std::string::npos) << report;
  EXPECT_NE(report.find("rank 2 at layers.0.attention.core.fwd (call 3) has returned"), std::string::npos) << report;
}

TEST(RunRanks, AHangAfterTwoStepsEndsByTheirTime) {
  Patience patience({.first_ms = 60'000, .least_ms = 300, .steps = 20});
  std::atomic<bool> release = false;
  LocalOptions options;
  options.patience = &patience;
  options.stuck_grace_ms = 40;
  options.on_stuck = [&](const Error&) {
    release = true;
    release.notify_all();
  };
  const Status status = run_ranks(
      2,
      [&](World& world) -> Status {
        MB_ASSIGN(Comm comm, join_all(world));
        world.at("step", 0);
        MB_TRY(comm->barrier());
        for (int step = 0; step < 2 && world.rank() == 0; ++step) patience.step_took(1'000'000);
        if (world.rank() == 1) release.wait(false);
        return comm->barrier();
      },
      options);
  expect_error(status, ErrorCode::kTimeout, {"rank 1 at step (call 0): no rank made progress for 300 ms"});
}

TEST(RunRanks, SignsOfLifeKeepALongWaitAlive) {
  LocalOptions options;
  options.no_progress_ms = 200;
  const Status status = run_ranks(
      2,
      [](World& world) -> Status {
        MB_ASSIGN(Comm comm, join_all(world));
        for (int op = 0; op < 60 && world.rank() == 1; ++op) {
          world.at("layers.1.fwd", static_cast<uint64_t>(op));
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return comm->barrier();
      },
      options);
  EXPECT_TRUE(status.has_value()) << status.error().what;
}

TEST(RunRanks, WaitingCostsNoThreadTime) {
  const Status status = run_ranks(2, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const int64_t start_ns = thread_cpu_ns();
    MB_TRY(comm->barrier());
    if (thread_cpu_ns() - start_ns > 100'000'000) return fail(ErrorCode::kNumerics, "a wait spins");
    if (comm->last_own_ns() != 0) return fail(ErrorCode::kNumerics, "a barrier claims work");
    std::vector<float> data(1 << 16);
    MB_TRY(comm->all_reduce(data.data(), data.data(), data.size(), DType::kF32));
    if (comm->last_own_ns() == 0) return fail(ErrorCode::kNumerics, "an all_reduce claims no work");
    return {};
  });
  EXPECT_TRUE(status.has_value()) << status.error().what;
}

TEST(RunRanks, OneMessageMailboxesCarryAPipelineAndSlowAFlood) {
  constexpr int kMicroBatches = 12;
  // 1F1B: stage i runs p-1-i forwards ahead, then alternates.
  const auto stage = [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    const int next = world.rank() + 1 < world.size() ? world.rank() + 1 : -1;
    const int before = world.rank() - 1;
    const auto forward = [&](int micro_batch) -> Status {
      int value = micro_batch;
      if (before >= 0) MB_TRY(comm->recv(&value, 1, DType::kI32, before, PipeDirection::kForward));
      if (value != micro_batch) return fail(ErrorCode::kMismatch, "micro-batches out of order");
      return next < 0 ? Status{} : comm->send(&value, 1, DType::kI32, next, PipeDirection::kForward);
    };
    const auto backward = [&](int micro_batch) -> Status {
      int value = micro_batch;
      if (next >= 0) MB_TRY(comm->recv(&value, 1, DType::kI32, next, PipeDirection::kBackward));
      if (value != micro_batch) return fail(ErrorCode::kMismatch, "gradients out of order");
      return before < 0 ? Status{} : comm->send(&value, 1, DType::kI32, before, PipeDirection::kBackward);
    };
    const int ahead = world.size() - 1 - world.rank();
    for (int i = 0; i < ahead; ++i) MB_TRY(forward(i));
    for (int i = ahead; i < kMicroBatches; ++i) {
      MB_TRY(forward(i));
      MB_TRY(backward(i - ahead));
    }
    for (int i = kMicroBatches - ahead; i < kMicroBatches; ++i) MB_TRY(backward(i));
    return {};
  };
  const Status pipeline = run_ranks(4, stage, {.mailbox_messages = 1});
  EXPECT_TRUE(pipeline.has_value()) << pipeline.error().what;

  const Status flood = run_ranks(2,
                                 [](World& world) -> Status {
                                   MB_ASSIGN(Comm comm, join_all(world));
                                   for (int i = 0; i < 500; ++i) {
                                     const auto count = static_cast<size_t>(i % 7);
                                     std::vector<int> data(count, i);
                                     if (world.rank() == 0)
                                       MB_TRY(comm->send(data.data(), count, DType::kI32, 1, PipeDirection::kForward));
                                     if (world.rank() == 0) continue;
                                     MB_TRY(comm->recv(data.data(), count, DType::kI32, 0, PipeDirection::kForward));
                                     if (data != std::vector<int>(count, i))
                                       return fail(ErrorCode::kMismatch, "a message changed");
                                   }
                                   return {};
                                 },
                                 {.mailbox_messages = 3});
  EXPECT_TRUE(flood.has_value()) << flood.error().what;

  const Status full =
      run_ranks(2,
                [](World& world) -> Status {
                  MB_ASSIGN(Comm comm, join_all(world));
                  const int value = 1;
                  for (int i = 0; i < 2; ++i)
                    MB_TRY(comm->send(&value, 1, DType::kI32, 1 - world.rank(), PipeDirection::kForward));
                  return {};
                },
                {.mailbox_messages = 1});
  expect_error(full, ErrorCode::kRankFailed, {"all ranks wait", "whose mailbox holds 1 unread messages"});
}

TEST(RunRanks, BuffersOutliveTheCopiesOfAWorldThatEnds) {
  // Rank 3 fails while the others move memory that they free as soon as a call returns; sanitizers watch.
  for (int round = 0; round < 20; ++round) {
    const Status status = run_ranks(4, [&](World& world) -> Status {
      if (world.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        return fail(ErrorCode::kNumerics, "stop");
      }
      MB_ASSIGN(Comm comm, world.group(GroupKind::kTp, {0, 1, 2}));
      for (;;) {
        std::vector<double> in(5000, 1.0), out(15000);
        MB_TRY(comm->all_gather(in.data(), out.data(), in.size(), DType::kF64));
        MB_TRY(comm->all_reduce(out.data(), out.data(), out.size(), DType::kF64));
      }
    });
    expect_error(status, ErrorCode::kNumerics, {"rank 3: stop"});
  }
}

TEST(RunRanks, ArgumentErrorsLeaveTheGroupUsable) {
  const Status status = run_ranks(2, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    std::vector<float> data(8, 1.0f);
    const size_t counts[1] = {1};
    const auto refused = [](const Status& s) { return !s.has_value() && s.error().code == ErrorCode::kBadArgument; };
    const bool all_refused = refused(comm->all_reduce(data.data(), data.data() + 1, 4, DType::kF32)) &&
                             refused(comm->all_reduce(nullptr, data.data(), 4, DType::kF32)) &&
                             refused(comm->all_reduce(data.data(), data.data(), 4, DType::kF16)) &&
                             refused(comm->all_gather(data.data() + 3, data.data(), 2, DType::kF32)) &&
                             refused(comm->all_to_all(data.data(), data.data(), 2, DType::kF32)) &&
                             refused(comm->all_gather(data.data(), data.data() + 4, 1, DType::kE2M1)) &&
                             refused(comm->all_to_all_v(data.data(), counts, data.data() + 4, counts, DType::kF32)) &&
                             refused(comm->broadcast(data.data(), data.data(), 4, DType::kF32, 2)) &&
                             refused(comm->send(data.data(), 4, DType::kF32, 2, PipeDirection::kForward)) &&
                             refused(comm->recv(nullptr, 4, DType::kF32, 0, PipeDirection::kForward));
    if (!all_refused) return fail(ErrorCode::kNumerics, "a bad argument was accepted");
    if (comm->stats().total().calls != 0) return fail(ErrorCode::kNumerics, "a refused call was counted");
    for (const std::vector<int>& members : {std::vector<int>{}, {1 - world.rank()}, {0, 0, 1}, {0, 1, 2}, {-1, 0, 1}}) {
      const Result<Comm> group = world.group(GroupKind::kTp, members);
      if (group.has_value()) return fail(ErrorCode::kNumerics, "a bad group was accepted");
    }
    MB_TRY(comm->all_reduce(data.data(), data.data(), 8, DType::kF32));
    return data[7] == 2.0f ? Status{} : fail(ErrorCode::kNumerics, "the group is unusable");
  });
  EXPECT_TRUE(status.has_value()) << status.error().what;
}

TEST(CommStats, CountCallsAndBytesByTheFormulas) {
  const Status status = run_ranks(4, [](World& world) -> Status {
    MB_ASSIGN(Comm comm, join_all(world));
    std::vector<float> in(400), out(400);
    const std::vector<size_t> to_each = {10, 0, 20, 30};
    const std::vector<size_t> from_each(4, to_each[static_cast<size_t>(world.rank())]);
    MB_TRY(comm->all_gather(in.data(), out.data(), 100, DType::kF32));
    MB_TRY(comm->all_gather(in.data(), out.data(), 100, DType::kBf16));
    MB_TRY(comm->reduce_scatter(in.data(), out.data(), 100, DType::kF32));
    MB_TRY(comm->all_reduce(in.data(), out.data(), 400, DType::kF32));
    MB_TRY(comm->broadcast(in.data(), out.data(), 400, DType::kF32, 3));
    MB_TRY(comm->all_to_all(in.data(), out.data(), 100, DType::kF32));
    MB_TRY(comm->all_to_all_v(in.data(), to_each, out.data(), from_each, DType::kF32));
    MB_TRY(comm->send(in.data(), 50, DType::kF32, (world.rank() + 1) % 4, PipeDirection::kForward));
    MB_TRY(comm->recv(out.data(), 50, DType::kF32, (world.rank() + 3) % 4, PipeDirection::kForward));
    MB_TRY(comm->barrier());
    const auto is = [&](CommOp op, uint64_t calls, uint64_t algorithmic, uint64_t wire) {
      const CommTally& tally = comm->stats()[op];
      return tally.calls == calls && tally.algorithmic_bytes == algorithmic && tally.wire_bytes == wire;
    };
    const uint64_t own = 4 * to_each[static_cast<size_t>(world.rank())];
    const bool all = is(CommOp::kAllGather, 2, 1600 + 800, 1200 + 600) && is(CommOp::kReduceScatter, 1, 1600, 1200) &&
                     is(CommOp::kAllReduce, 1, 1600, 2400) && is(CommOp::kBroadcast, 1, 1600, 1600) &&
                     is(CommOp::kAllToAll, 1, 1600, 1200) && is(CommOp::kAllToAllV, 1, 240, 240 - own) &&
                     is(CommOp::kSend, 1, 200, 200) && is(CommOp::kRecv, 1, 200, 200) && is(CommOp::kBarrier, 1, 0, 0);
    if (!all) return fail(ErrorCode::kNumerics, "a count of calls or bytes is off");
    comm->reset_stats();
    return comm->stats().total().calls == 0 ? Status{} : fail(ErrorCode::kNumerics, "reset kept counts");
  });
  EXPECT_TRUE(status.has_value()) << status.error().what;
  EXPECT_EQ(wire_bytes(CommOp::kAllReduce, 1, DType::kF32, 100), 0u);
  EXPECT_EQ(wire_bytes(CommOp::kAllReduce, 3, DType::kF32, 1), 5u);  // 16/3 rounded down
}

}  // namespace
}  // namespace mbb::trainer
