// Tests of op rows: they sum to the steps of each rank class, replicas are averaged.
#include "analysis/exposure/op_rows.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

using profiler::Phase;
using profiler::Span;
using profiler::SpanKind;

TEST(OpRows, SumToTheStepsOfEachClass) {
  profiler::Trace trace;
  trace.strings = {"", "mlp.fwd", "grads"};
  for (int32_t rank = 0; rank < 3; ++rank) {
    trace.tracks.push_back({rank, profiler::StreamKind::kCompute, 0});
    for (int32_t step = 0; step < 2; ++step) {
      const int64_t at = step * 100;
      trace.steps.push_back({rank, step, at, at + 100});
      trace.spans.push_back({.start_ns = at,
                             .end_ns = at + 40 + rank,
                             .track = static_cast<uint32_t>(rank),
                             .name = 1,
                             .kind = SpanKind::kCompute,
                             .phase = Phase::kForward});
      trace.spans.push_back({.start_ns = at + 50,
                             .end_ns = at + 70,
                             .track = static_cast<uint32_t>(rank),
                             .name = 2,
                             .kind = SpanKind::kCommDp});
    }
  }
  baselines::Launch launch;
  launch.counts = {{"op_steps", 99}, {"dropped", 1}};
  fill_op_rows(launch, trace, break_down(trace), [](int32_t rank) { return rank < 2 ? "stage0" : "stage1"; });
  EXPECT_EQ(op_steps(launch), 2);
  EXPECT_EQ(launch.counts.size(), 2u);
  ASSERT_EQ(launch.ops.size(), 6u);
  for (const char* of : {"stage0", "stage1"}) {
    int64_t total = 0;
    for (const auto& row : launch.ops) total += row.rank_class == of ? row.total_ns : 0;
    EXPECT_NEAR(static_cast<double>(total), 200.0, 1.0) << of;
  }
  const auto& mlp = launch.ops[2];
  EXPECT_EQ(mlp.path, "mlp.fwd");
  EXPECT_EQ(mlp.phase, "forward");
  EXPECT_EQ(mlp.calls, 2);
  EXPECT_EQ(mlp.total_ns, 81);  // ranks 0 and 1: 80 and 82
  EXPECT_EQ(launch.ops[1].stream, "dp");
  EXPECT_EQ(launch.ops[0].kind, "idle");
}

TEST(OpRows, NothingTracedIsNothingCounted) {
  baselines::Launch launch;
  EXPECT_EQ(op_steps(launch), 0);
  fill_op_rows(launch, {}, {}, [](int32_t) { return ""; });
  EXPECT_TRUE(launch.ops.empty());
  EXPECT_EQ(op_steps(launch), 0);
}

}  // namespace
}  // namespace mbb::analysis
