// The text of a small made-up step.
#include "analysis/report/timeline.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

profiler::Trace sample() {
  using profiler::SpanKind;
  using profiler::StreamKind;
  profiler::StringTable strings;
  profiler::Trace t;
  t.tracks = {{0, StreamKind::kCompute, strings.intern("stream 7")},
              {0, StreamKind::kDp, strings.intern("stream 13")},
              {0, StreamKind::kHost, strings.intern("thread 1")},
              {1, StreamKind::kCompute, strings.intern("stream 7")}};
  const auto add = [&](uint32_t track, int64_t from, int64_t to, SpanKind kind) {
    profiler::Span s;
    s.track = track, s.start_ns = from, s.end_ns = to, s.kind = kind;
    t.spans.push_back(s);
  };
  t.steps = {{0, 3, 1000, 2000}, {1, 3, 1000, 3000}, {0, 4, 2000, 3000}};
  add(0, 1000, 1500, SpanKind::kCompute);
  add(0, 1500, 1560, SpanKind::kCopy);
  add(0, 1710, 1740, SpanKind::kCompute);  // a third of a slice
  add(1, 1400, 1800, SpanKind::kCommDp);
  add(2, 1000, 2000, SpanKind::kHost);
  add(3, 900, 1600, SpanKind::kCompute);  // began before the step
  t.strings = strings.strings();
  return t;
}

TEST(Timeline, ALineAStream) {
  const auto text = timeline_text(sample(), {.width = 10});
  ASSERT_TRUE(text) << text.error().what;
  EXPECT_EQ(*text,
            "rank 0  step 3  1.00 us\n"
            "  compute stream 7    |#####= .  |\n"
            "  dp stream 13        |    dddd  |\n"
            "rank 1  step 3  2.00 us\n"
            "  compute stream 7    |###       |\n"
            "# compute  t c e p d communication by kind  = copy  . less than half busy\n");
}

TEST(Timeline, OtherStepsAndTheirAbsence) {
  EXPECT_TRUE(timeline_text(sample(), {.step = 4}));
  const auto none = timeline_text(sample(), {.step = 9});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().hint, "traced steps are 3 to 4");
  EXPECT_FALSE(timeline_text({}));
  const auto one = timeline_text(sample(), {.width = 10, .max_ranks = 1});
  EXPECT_NE(one->find("... 2 ranks in all"), std::string::npos);
}

}  // namespace
}  // namespace mbb::analysis
