// Sites of made-up traces.
#include "analysis/exposure/site_times.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;
using profiler::Trace;

struct Piece {
  int64_t start, end;
  const char* op;
  bool communicates = false;
  int32_t micro_batch = 0;
};

// One rank, step 4.
Trace trace_of(const std::vector<Piece>& pieces) {
  Trace trace;
  trace.tracks = {{0, StreamKind::kCompute, 0}, {0, StreamKind::kTp, 0}};
  trace.steps = {{0, 4, 0, 10'000}};
  for (const Piece& piece : pieces) {
    trace.strings.emplace_back(piece.op);
    Span span{.start_ns = piece.start, .end_ns = piece.end};
    span.track = piece.communicates ? 1 : 0;
    span.op = static_cast<profiler::StringId>(trace.strings.size() - 1);
    span.kind = piece.communicates ? SpanKind::kCommTp : SpanKind::kCompute;
    span.step = 4, span.micro_batch = piece.micro_batch;
    trace.spans.push_back(span);
  }
  return trace;
}

TEST(SiteTimes, ASiteLastsFromItsFirstOpToItsLastWhateverRunsBesideIt) {
  const auto sites = site_times(trace_of({
      {100, 200, "layers.0.mlp.fc2.fwd.split0"},
      {200, 300, "layers.0.mlp.fc2.fwd.split1"},
      {200, 260, "layers.0.mlp.fc2.reduce_scatter.fwd.split0", true},
      {300, 350, "layers.0.mlp.fc2.reduce_scatter.fwd.split1", true},
      {350, 380, "layers.0.mlp.residual.fwd"},
      {400, 450, "layers.1.mlp.fc2.fwd.split0"},
      {450, 500, "layers.1.mlp.fc2.reduce_scatter.fwd.split0", true},
  }));
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].site, "fc2_fprop");
  EXPECT_EQ(sites[0].calls, 2);
  EXPECT_DOUBLE_EQ(sites[0].ns, (250.0 + 100.0) / 2);
}

TEST(SiteTimes, ForwardAndBackwardAndMicroBatchesStandApart) {
  const auto sites = site_times(trace_of({
      {0, 10, "layers.0.attn.qkv.all_gather.fwd", true, 0},
      {10, 40, "layers.0.attn.qkv.fwd", false, 0},
      {50, 90, "layers.0.attn.qkv.fwd", false, 1},
      {100, 120, "layers.0.attn.qkv.all_gather.regather", true, 0},
      {120, 150, "layers.0.attn.qkv.dgrad", false, 0},
      {150, 170, "layers.0.attn.qkv.all_gather.bwd", true, 0},
      {170, 200, "layers.0.attn.qkv.wgrad", false, 0},
      {300, 900, "layers.0.attn.qkv.recompute.fwd", false, 0},
      {300, 900, "lm_head.fwd", false, 0},
  }));
  ASSERT_EQ(sites.size(), 2U);
  EXPECT_EQ(sites[0].site, "qkv_bprop");
  EXPECT_DOUBLE_EQ(sites[0].ns, 100);
  EXPECT_EQ(sites[1].site, "qkv_fprop");
  EXPECT_EQ(sites[1].calls, 2);
  EXPECT_DOUBLE_EQ(sites[1].ns, 40);
}

TEST(SiteTimes, AStepThatWasHeldUpChangesNothing) {
  Trace trace = trace_of({{0, 10, "layers.0.mlp.fc1.fwd"},
                          {100, 112, "layers.0.mlp.fc1.fwd"},
                          {200, 900, "layers.0.mlp.fc1.fwd"},
                          {20, 120, "layers.1.mlp.fc1.fwd"},
                          {120, 220, "layers.1.mlp.fc1.fwd"},
                          {220, 330, "layers.1.mlp.fc1.fwd"}});
  trace.steps = {{0, 4, 0, 100}, {0, 5, 100, 200}, {0, 6, 200, 1000}};
  for (size_t i = 0; i < trace.spans.size(); ++i) trace.spans[i].step = 4 + static_cast<int32_t>(i % 3);
  const auto sites = site_times(trace);
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].calls, 6);
  EXPECT_DOUBLE_EQ(sites[0].ns, (12.0 + 100.0) / 2);
}

TEST(SiteTimes, StepsWithoutAWindowDoNotCount) {
  Trace trace = trace_of({{0, 10, "layers.0.mlp.fc1.fwd"}});
  trace.spans[0].step = 3;
  EXPECT_TRUE(site_times(trace).empty());
}

}  // namespace
}  // namespace mbb::analysis
