// Tests of the trace model: names cover every kind, strings are numbered once, ordering.
#include "profiler/trace/trace.h"

#include <gtest/gtest.h>

#include <set>

namespace mbb::profiler {
namespace {

TEST(Trace, EveryKindHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kSpanKinds; ++i) names.insert(name(static_cast<SpanKind>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kSpanKinds));
  names.clear();
  for (int i = 0; i < kStreamKinds; ++i) names.insert(name(static_cast<StreamKind>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kStreamKinds));
  names.clear();
  for (int i = 0; i < kPhases; ++i) names.insert(name(static_cast<Phase>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kPhases));
  EXPECT_STREQ(name(SpanKind::kCopy), "copy");
  EXPECT_STREQ(name(SpanKind::kHost), "host");
}

TEST(Trace, CommKindsAreExactlyTheCommunicators) {
  for (int i = 0; i < kSpanKinds; ++i) {
    const auto kind = static_cast<SpanKind>(i);
    EXPECT_EQ(is_comm(kind), std::string(name(kind)).starts_with("comm.")) << name(kind);
  }
}

TEST(Trace, StringsAreNumberedOnce) {
  StringTable table;
  EXPECT_EQ(table.intern(""), 0u);
  EXPECT_EQ(table.intern("a"), 1u);
  EXPECT_EQ(table.intern("b"), 2u);
  EXPECT_EQ(table.intern("a"), 1u);
  EXPECT_EQ(table.strings(), (std::vector<std::string>{"", "a", "b"}));
}

TEST(Trace, SortsByTrackThenTimeAndListsRanksOnce) {
  Trace trace;
  trace.tracks = {{3, StreamKind::kCompute, 0}, {1, StreamKind::kCompute, 0}, {3, StreamKind::kTp, 0}};
  trace.spans = {Span{.start_ns = 5, .end_ns = 6, .track = 1}, Span{.start_ns = 9, .end_ns = 10, .track = 0},
                 Span{.start_ns = 2, .end_ns = 3, .track = 1}};
  sort_spans(trace);
  EXPECT_EQ(trace.spans[0].start_ns, 9);
  EXPECT_EQ(trace.spans[1].start_ns, 2);
  EXPECT_EQ(trace.spans[2].start_ns, 5);
  EXPECT_EQ(ranks(trace), (std::vector<int32_t>{1, 3}));
}

}  // namespace
}  // namespace mbb::profiler
