// Waits and transfers of made-up collectives.
#include "analysis/exposure/collectives.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;
using profiler::Trace;

// Ranks 0 and 1, a compute track and a communication track each.
Trace two_ranks() {
  Trace trace;
  trace.strings = {"",
                   "layers.3.mlp.fc2.reduce_scatter",
                   "layers.12.mlp.fc2.reduce_scatter",
                   "gemm",
                   "layers.3.out.send",
                   "layers.3.in.recv"};
  for (int32_t rank = 0; rank < 2; ++rank) {
    trace.tracks.push_back({rank, StreamKind::kCompute, 0});
    trace.tracks.push_back({rank, StreamKind::kTp, 0});
  }
  trace.steps = {{0, 4, 0, 1000}, {1, 4, 0, 1000}};
  return trace;
}

Span of(int32_t rank, int64_t start, int64_t end, SpanKind kind, profiler::StringId op, uint64_t collective) {
  Span span{.start_ns = start, .end_ns = end, .collective = collective};
  span.track = static_cast<uint32_t>(2 * rank + (kind == SpanKind::kCompute ? 0 : 1));
  span.name = span.op = op, span.kind = kind, span.step = 4;
  return span;
}

TEST(Collectives, TheWaitForTheLastMemberIsNoTransfer) {
  Trace trace = two_ranks();
  trace.spans = {
      of(0, 100, 200, SpanKind::kCommTp, 1, 7),  of(1, 160, 200, SpanKind::kCommTp, 1, 7),
      of(0, 300, 380, SpanKind::kCommTp, 2, 8),  of(1, 300, 380, SpanKind::kCommTp, 2, 8),
      of(0, 150, 180, SpanKind::kCompute, 3, 0),  // hides 20 of the 40 that rank 0 transferred
  };
  const auto rows = collectives(trace);
  ASSERT_EQ(rows.size(), 1U) << "layers are one site";
  const CollectiveRow& row = rows[0];
  EXPECT_EQ(row.site, "layers.*.mlp.fc2.reduce_scatter");
  EXPECT_EQ(row.kind, SpanKind::kCommTp);
  EXPECT_EQ(row.calls, 2);
  EXPECT_EQ(row.members, 2);
  EXPECT_EQ(row.parts, 4);
  EXPECT_DOUBLE_EQ(row.wait_ns, 60.0 / 4);
  EXPECT_EQ(row.largest_wait_ns, 60);
  EXPECT_DOUBLE_EQ(row.transfer_ns, (40.0 + 40 + 80 + 80) / 4);
  EXPECT_DOUBLE_EQ(row.hidden_ns, 20.0 / 4);
}

TEST(Collectives, KernelsOfOneCallAreOnePart) {
  Trace trace = two_ranks();
  trace.spans = {of(0, 100, 120, SpanKind::kCommTp, 1, 7), of(0, 130, 200, SpanKind::kCommTp, 1, 7),
                 of(1, 110, 200, SpanKind::kCommTp, 1, 7)};
  const auto rows = collectives(trace);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].calls, 1);
  EXPECT_EQ(rows[0].parts, 2);
  EXPECT_EQ(rows[0].largest_wait_ns, 10);
}

// A send that was over before its receiver came; a collective whose id the trace does not have; one outside of steps.
TEST(Collectives, MessagesHaveARowAtEitherEnd) {
  Trace trace = two_ranks();
  trace.spans = {of(0, 100, 130, SpanKind::kCommPp, 4, 9), of(1, 180, 220, SpanKind::kCommPp, 5, 9),
                 of(0, 500, 510, SpanKind::kCommTp, 1, 0), of(0, 600, 900, SpanKind::kCommTp, 1, 11)};
  trace.spans.back().step = profiler::kNoStep;
  const auto rows = collectives(trace);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].site, "layers.*.in.recv");
  EXPECT_DOUBLE_EQ(rows[0].wait_ns, 0);
  EXPECT_DOUBLE_EQ(rows[0].transfer_ns, 40);
  EXPECT_EQ(rows[1].site, "layers.*.out.send");
  EXPECT_DOUBLE_EQ(rows[1].wait_ns, 30);
  EXPECT_DOUBLE_EQ(rows[1].transfer_ns, 0);
  EXPECT_EQ(rows[2].members, 1);
  EXPECT_DOUBLE_EQ(rows[2].transfer_ns, 10);
}

}  // namespace
}  // namespace mbb::analysis
