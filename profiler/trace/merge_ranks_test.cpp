// Two ranks' traces on one clock.
#include "profiler/trace/merge_ranks.h"

#include <gtest/gtest.h>

namespace mbb::profiler {
namespace {

// One kernel from 0 to 100.
Trace of_rank(int32_t rank, const char* kernel) {
  Trace trace;
  trace.strings = {"", "stream 7", kernel};
  trace.tracks = {{rank, StreamKind::kCompute, 1}};
  Span span;
  span.end_ns = 100;
  span.name = 2;
  span.collective = 1;
  trace.spans = {span};
  trace.steps = {{rank, 0, 0, 100}};
  trace.dropped_spans = 1;
  return trace;
}

TEST(MergeRanks, EachKeepsItsPlaceOnTheSharedClock) {
  const Trace zero = of_rank(0, "gemm"), one = of_rank(1, "norm");
  const std::vector<RankTrace> parts{{&zero, 5000}, {&one, 4950}};
  const auto merged = merge_ranks(parts);
  ASSERT_TRUE(merged);
  EXPECT_EQ(ranks(*merged), (std::vector<int32_t>{0, 1}));
  ASSERT_EQ(merged->spans.size(), 2U);
  for (const Span& span : merged->spans) {
    const bool first = merged->rank_of(span) == 0;
    EXPECT_EQ(span.start_ns, first ? 50 : 0);
    EXPECT_EQ(merged->text(span.name), first ? "gemm" : "norm");
    EXPECT_EQ(merged->text(merged->tracks[span.track].name), "stream 7");
  }
  EXPECT_NE(merged->spans[0].collective, merged->spans[1].collective) << "nothing says that these are one call";
  ASSERT_EQ(merged->steps.size(), 2U);
  EXPECT_EQ(merged->steps[0].start_ns, 50);
  EXPECT_EQ(merged->dropped_spans, 2U);
}

TEST(MergeRanks, ARankIsThereOnce) {
  const Trace zero = of_rank(0, "gemm");
  const std::vector<RankTrace> parts{{&zero, 0}, {&zero, 10}};
  const auto merged = merge_ranks(parts);
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, ErrorCode::kMismatch);
}

}  // namespace
}  // namespace mbb::profiler
