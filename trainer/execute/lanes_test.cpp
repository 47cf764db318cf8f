// Waits between streams: who waits for whom, and who need not.
#include "trainer/execute/lanes.h"

#include <gtest/gtest.h>

#include <random>

namespace mbb::trainer {
namespace {

LaneOp op(Stream stream, std::vector<Access> accesses) {
  return {stream, std::move(accesses)};
}
Access reads(int64_t begin, int64_t end) {
  return {begin, end, false};
}
Access writes(int64_t begin, int64_t end) {
  return {begin, end, true};
}

TEST(Lanes, ReaderWaitsForWriterOfAnotherStream) {
  const std::vector<LaneOp> ops{op(Stream::kDp, {writes(0, 100)}), op(Stream::kCompute, {reads(200, 300)}),
                                op(Stream::kCompute, {reads(50, 60)}), op(Stream::kCompute, {reads(50, 60)})};
  const LanePlan plan = plan_lanes(ops);
  EXPECT_TRUE(plan.parallel);
  EXPECT_TRUE(plan.waits[1].empty());
  EXPECT_EQ(plan.waits[2], std::vector<int>{0});
  EXPECT_TRUE(plan.waits[3].empty()) << "the stream has waited already";
  EXPECT_TRUE(plan.signals[0]);
  EXPECT_TRUE(plan.beside[1]);
  EXPECT_FALSE(plan.beside[2]);
}

TEST(Lanes, WriterWaitsForReader) {
  const std::vector<LaneOp> ops{op(Stream::kDp, {reads(0, 100)}), op(Stream::kCompute, {writes(99, 120)}),
                                op(Stream::kCompute, {writes(100, 120)})};
  const LanePlan plan = plan_lanes(ops);
  EXPECT_EQ(plan.waits[1], std::vector<int>{0});
  EXPECT_TRUE(plan.waits[2].empty());
}

TEST(Lanes, ReadersDoNotWaitForReaders) {
  const std::vector<LaneOp> ops{op(Stream::kDp, {reads(0, 100)}), op(Stream::kCompute, {reads(0, 100)})};
  EXPECT_TRUE(plan_lanes(ops).waits[1].empty());
  EXPECT_TRUE(plan_lanes(ops).beside[1]);
}

TEST(Lanes, OneStreamIsNotParallel) {
  const std::vector<LaneOp> ops{op(Stream::kCompute, {writes(0, 4)}), op(Stream::kCompute, {reads(0, 4)})};
  const LanePlan plan = plan_lanes(ops);
  EXPECT_FALSE(plan.parallel);
  EXPECT_TRUE(plan.waits[1].empty());
}

// On random programs every conflicting pair is ordered by streams and waits, found by walking them to their closure.
TEST(Lanes, EveryConflictIsOrdered) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<LaneOp> ops;
    for (int i = 0; i < 60; ++i) {
      LaneOp next{static_cast<Stream>(random() % 4), {}};
      for (int a = 0; a < 2; ++a) {
        const auto begin = static_cast<int64_t>(random() % 40);
        next.accesses.push_back({begin, begin + 1 + static_cast<int64_t>(random() % 4), random() % 2 == 0});
      }
      ops.push_back(next);
    }
    const LanePlan plan = plan_lanes(ops);
    std::vector<std::vector<bool>> before(ops.size(), std::vector<bool>(ops.size(), false));
    const auto follows = [&](size_t i, size_t j) {
      before[i][j] = true;
      for (size_t k = 0; k < ops.size(); ++k)
        if (before[j][k]) before[i][k] = true;
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      for (size_t j = i; j-- > 0;)
        if (ops[j].stream == ops[i].stream) {
          follows(i, j);
          break;
        }
      for (const int j : plan.waits[i]) follows(i, static_cast<size_t>(j));
      for (size_t j = 0; j < i; ++j)
        for (const Access& x : ops[i].accesses)
          for (const Access& y : ops[j].accesses) {
            const bool conflict = (x.write || y.write) && x.begin < y.end && y.begin < x.end;
            EXPECT_TRUE(!conflict || before[i][j]) << "op " << i << " after op " << j;
          }
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
