// Two ranks' captures come together at rank 0, on its clock.
#include "trainer/run/join_captures.h"

#include <gtest/gtest.h>

#include "trainer/comm/local/run_ranks.h"

namespace mbb::trainer {
namespace {

// One collective that both end together by the true time; rank 1's clock is 5000 ns ahead.
profiler::DeviceTrace captured(int rank) {
  profiler::DeviceTrace out;
  const int64_t ahead = rank == 1 ? 5000 : 0;
  out.trace.strings = {"", "stream 7", "nccl kernel", rank == 0 ? "zero" : "one"};
  out.trace.tracks = {{rank, profiler::StreamKind::kTp, 1}};
  profiler::Span span;
  span.start_ns = 100 + 50 * rank + ahead, span.end_ns = 400 + ahead;
  span.collective = 9, span.kind = profiler::SpanKind::kCommTp, span.name = 2, span.op = 3, span.step = 7;
  out.trace.spans = {span};
  out.trace.steps = {{rank, 7, 0 + ahead, 1000 + ahead}};
  out.attribution = {300, 1, 20, 2, {{"stray, kernel", 20}}};
  return out;
}

TEST(JoinCaptures, RankZeroHasAllOnItsClock) {
  JoinedCapture at_first, elsewhere;
  const Status ran = run_ranks(2, [&](World& world) -> Status {
    MB_ASSIGN(const auto everyone, world.group(GroupKind::kWorld, {0, 1}));
    MB_ASSIGN(JoinedCapture joined, join_captures(*everyone, captured(world.rank())));
    (world.rank() == 0 ? at_first : elsewhere) = std::move(joined);
    return {};
  });
  ASSERT_TRUE(ran.has_value()) << ran.error().what;
  EXPECT_TRUE(elsewhere.device.trace.spans.empty());
  const profiler::Trace& trace = at_first.device.trace;
  ASSERT_EQ(trace.spans.size(), 2U);
  for (const profiler::Span& span : trace.spans) {
    const int32_t rank = trace.rank_of(span);
    EXPECT_EQ(span.start_ns, 100 + 50 * rank);
    EXPECT_EQ(span.end_ns, 400);
    EXPECT_EQ(span.collective, 9U) << "one call on both";
    EXPECT_EQ(trace.text(span.op), rank == 0 ? "zero" : "one");
  }
  ASSERT_EQ(trace.steps.size(), 2U);
  EXPECT_EQ(trace.steps[1].end_ns, 1000);
  EXPECT_EQ(at_first.alignment.shift_ns[1].second, -5000);
  const profiler::Attribution& a = at_first.device.attribution;
  EXPECT_EQ(a.device_ns, 600);
  EXPECT_EQ(a.unattributed_events, 4);
  EXPECT_EQ(a.unattributed_by_name, (std::vector<std::pair<std::string, int64_t>>{{"stray, kernel", 40}}));
}

}  // namespace
}  // namespace mbb::trainer
