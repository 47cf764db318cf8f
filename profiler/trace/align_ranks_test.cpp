// Made-up traces of ranks whose clocks differ, with collectives of which nobody has the result before the last came.
#include "profiler/trace/align_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace mbb::profiler {
namespace {

constexpr int kCalls = 41;

// A collective every 1000 ns, at which `rank` arrives at a time of its own; it ends 100 ns after the last of `ranks`
// arrived. The rank's clock reads `ahead` more than the true time, and ends jitter by up to `jitter` ns.
Trace of_rank(int32_t rank, int ranks, int64_t ahead, int64_t jitter, SpanKind kind = SpanKind::kCommDp,
              uint64_t first_id = 1) {
  Trace trace;
  trace.strings = {"", "stream 7", "nccl", "optimizer.bucket0.all_gather"};
  trace.tracks = {{rank, StreamKind::kDp, 1}};
  std::mt19937 random(static_cast<unsigned>(rank) * 77U + static_cast<unsigned>(first_id));
  for (int i = 0; i < kCalls; ++i) {
    const auto arrival = [&](int r) { return 10'000 + 1000 * i + (i * 37 + r * 211) % 400; };
    int64_t last = 0;
    for (int r = 0; r < ranks; ++r) last = std::max<int64_t>(last, arrival(r));
    Span span;
    span.start_ns = arrival(rank) + ahead;
    span.end_ns = last + 100 + ahead + static_cast<int64_t>(random() % static_cast<unsigned>(jitter + 1));
    span.collective = first_id + static_cast<uint64_t>(i);
    span.name = 2, span.op = 3, span.kind = kind;
    trace.spans.push_back(span);
  }
  trace.steps = {{rank, 0, 9'000 + ahead, 60'000 + ahead}};
  trace.dropped_spans = 1;
  return trace;
}

TEST(AlignRanks, EndsOfCollectivesMeetAndWaitsAreWhatTheyWere) {
  const auto joined = align_ranks({of_rank(0, 3, 0, 0), of_rank(1, 3, 123'456, 0), of_rank(2, 3, -98'765, 0)});
  ASSERT_TRUE(joined) << joined.error().what;
  EXPECT_EQ(joined->alignment.shift_ns, (std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {1, -123'456}, {2, 98'765}}));
  ASSERT_EQ(joined->alignment.spreads.size(), 1U);
  EXPECT_EQ(joined->alignment.spreads[0].kind, SpanKind::kCommDp);
  EXPECT_EQ(joined->alignment.spreads[0].members, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(joined->alignment.spreads[0].collectives, kCalls);
  EXPECT_EQ(joined->alignment.spreads[0].largest_ns, 0);
  EXPECT_TRUE(joined->alignment.unaligned.empty());
  // On the first rank's clock: spans are those of ranks whose clocks agree, and so is each one's wait for the last.
  const auto true_times = align_ranks({of_rank(0, 3, 0, 0), of_rank(1, 3, 0, 0), of_rank(2, 3, 0, 0)});
  EXPECT_EQ(joined->trace.spans, true_times->trace.spans);
  EXPECT_EQ(joined->trace.steps, true_times->trace.steps);
  EXPECT_EQ(joined->trace.steps[0].start_ns, 9'000);
  EXPECT_EQ(joined->trace.dropped_spans, 3U);
}

TEST(AlignRanks, TheResidualIsWhatTheEndsLack) {
  const auto joined = align_ranks({of_rank(0, 2, 0, 40), of_rank(1, 2, 5'000'000, 40)});
  ASSERT_TRUE(joined);
  EXPECT_NEAR(static_cast<double>(joined->alignment.shift_ns[1].second), -5'000'000.0, 40.0);
  ASSERT_EQ(joined->alignment.spreads.size(), 1U);
  EXPECT_GT(joined->alignment.spreads[0].largest_ns, 0);
  EXPECT_LE(joined->alignment.spreads[0].largest_ns, 80);
  EXPECT_LE(joined->alignment.spreads[0].median_ns, joined->alignment.spreads[0].largest_ns);
}

// Rank 0 speaks with rank 2 only through rank 1, over another communicator.
TEST(AlignRanks, AClockIsReachedOverOthers) {
  Trace middle = of_rank(1, 2, 700, 0);
  const Trace second = of_rank(1, 2, 700, 0, SpanKind::kCommTp, 1000);
  middle.spans.insert(middle.spans.end(), second.spans.begin(), second.spans.end());
  Trace far = of_rank(0, 2, -4'000, 0, SpanKind::kCommTp, 1000);
  far.tracks[0].rank = far.steps[0].rank = 2;
  const auto joined = align_ranks({of_rank(0, 2, 0, 0), far, middle});
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->alignment.shift_ns, (std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {2, 4'000}, {1, -700}}));
  EXPECT_EQ(joined->alignment.spreads.size(), 2U);
}

// Ranks 0 and 1 have a communicator, 1 and 2 another of the same kind, whose ends meet worse.
TEST(AlignRanks, EveryCommunicatorHasAResidualOfItsOwn) {
  Trace middle = of_rank(1, 2, 0, 0);
  const Trace second = of_rank(1, 2, 0, 0, SpanKind::kCommDp, 1000);
  middle.spans.insert(middle.spans.end(), second.spans.begin(), second.spans.end());
  Trace last = of_rank(0, 2, 0, 0, SpanKind::kCommDp, 1000);
  last.tracks[0].rank = last.steps[0].rank = 2;
  last.spans[7].end_ns += 30;
  const auto joined = align_ranks({of_rank(0, 2, 0, 0), middle, last});
  ASSERT_TRUE(joined);
  const auto& spreads = joined->alignment.spreads;
  ASSERT_EQ(spreads.size(), 2U);
  EXPECT_EQ(spreads[0].members, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(spreads[0].largest_ns, 0);
  EXPECT_EQ(spreads[1].members, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(spreads[1].largest_ns, 30);
  EXPECT_EQ(spreads[1].collectives, kCalls);
}

// A send may be over long before its receive: collectives decide where there are any.
TEST(AlignRanks, MessagesDecideOnlyAlone) {
  Trace sender = of_rank(0, 2, 0, 0, SpanKind::kCommPp, 500), receiver = of_rank(1, 2, 300, 0, SpanKind::kCommPp, 500);
  for (Span& span : sender.spans) span.end_ns -= 90;
  const auto alone = align_ranks({sender, receiver});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->alignment.shift_ns[1].second, -390);
  for (Trace* trace : {&sender, &receiver}) {
    const Span first = of_rank(trace->tracks[0].rank, 2, trace == &receiver ? 300 : 0, 0).spans[0];
    trace->spans.push_back(first);
  }
  const auto both = align_ranks({sender, receiver});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->alignment.shift_ns[1].second, -300);
}

TEST(AlignRanks, WhoSharesNothingKeepsItsClockAndIsNamed) {
  const auto joined = align_ranks({of_rank(0, 2, 0, 0), of_rank(1, 2, 50, 0, SpanKind::kCommDp, 9000)});
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->alignment.unaligned, std::vector<int32_t>{1});
  EXPECT_EQ(joined->alignment.shift_ns[1].second, 0);
}

TEST(AlignRanks, ATraceTravelsAsBytes) {
  const Trace trace = of_rank(3, 4, 17, 5);
  const std::string bytes = bytes_of_trace(trace);
  const auto back = trace_of_bytes(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->strings, trace.strings);
  EXPECT_EQ(back->spans, trace.spans);
  EXPECT_EQ(back->steps, trace.steps);
  EXPECT_EQ(back->tracks[0].rank, 3);
  EXPECT_EQ(back->dropped_spans, 1U);
  for (const size_t kept : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 1})
    EXPECT_FALSE(trace_of_bytes(std::string_view(bytes).substr(0, kept))) << kept;
  Trace wrong = trace;
  wrong.spans[0].name = 99;
  EXPECT_FALSE(trace_of_bytes(bytes_of_trace(wrong)));
}

}  // namespace
}  // namespace mbb::profiler
