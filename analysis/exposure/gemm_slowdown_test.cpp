// Slow-downs of made-up GEMMs with made-up collectives beside them.
#include "analysis/exposure/gemm_slowdown.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;
using profiler::Trace;

struct Piece {
  int32_t rank;
  int64_t start, end;
  const char* op;
  bool communicates = false;
};

// Two ranks, step 4.
Trace trace_of(const std::vector<Piece>& pieces) {
  Trace trace;
  profiler::StringTable strings;
  for (int32_t rank = 0; rank < 2; ++rank) {
    trace.tracks.push_back({rank, StreamKind::kCompute, 0});
    trace.tracks.push_back({rank, StreamKind::kDp, 0});
    trace.steps.push_back({rank, 4, 0, 10'000});
  }
  for (const Piece& piece : pieces) {
    Span span{.start_ns = piece.start, .end_ns = piece.end};
    span.track = static_cast<uint32_t>(2 * piece.rank + (piece.communicates ? 1 : 0));
    span.op = strings.intern(piece.op);
    span.kind = piece.communicates ? SpanKind::kCommDp : SpanKind::kCompute;
    span.step = 4, span.micro_batch = 0;
    trace.spans.push_back(span);
  }
  trace.strings = strings.strings();
  return trace;
}

const std::set<std::string> kFc1{"layers.0.mlp.fc1.fwd", "layers.1.mlp.fc1.fwd", "layers.2.mlp.fc1.fwd"};

TEST(GemmSlowdown, CallsBesideACollectiveAreHeldAgainstThoseAlone) {
  const auto rows = gemm_slowdowns(trace_of({
                                       {0, 0, 100, "layers.0.mlp.fc1.fwd"},
                                       {0, 200, 320, "layers.1.mlp.fc1.fwd"},
                                       {0, 190, 300, "dp.all_gather", true},
                                       {0, 400, 500, "layers.1.mlp.activation.fwd"},
                                       {1, 0, 100, "layers.0.mlp.fc1.fwd"},
                                       {1, 200, 330, "layers.1.mlp.fc1.fwd"},
                                       {1, 190, 350, "dp.all_gather", true},
                                   }),
                                   kFc1);
  ASSERT_EQ(rows.size(), 1U) << "layers are one site, and an activation is no GEMM";
  EXPECT_EQ(rows[0].site, "layers.*.mlp.fc1.fwd");
  EXPECT_EQ(rows[0].alone, 2);
  EXPECT_EQ(rows[0].partly, 0);
  EXPECT_EQ(rows[0].beside, 2);
  EXPECT_DOUBLE_EQ(rows[0].alone_ns, 100);
  EXPECT_DOUBLE_EQ(rows[0].beside_ns, 125);
  EXPECT_DOUBLE_EQ(rows[0].slowdown, 0.25);
  EXPECT_DOUBLE_EQ(rows[0].cost_ns, 50.0 / 2);
  EXPECT_FALSE(rows[0].elsewhere);
}

// Its kernels are one call; a collective of the other rank is nobody's neighbour; up to half of it is neither alone nor
// beside, but costs what it costs; steps that have no window do not count.
TEST(GemmSlowdown, ACallIsAllItsKernelsAndOnlyItsOwnRanksCollectivesCount) {
  Trace trace = trace_of({
      {0, 0, 60, "layers.0.mlp.fc1.fwd"},
      {0, 70, 110, "layers.0.mlp.fc1.fwd"},
      {1, 0, 110, "dp.all_gather", true},
      {0, 200, 304, "layers.1.mlp.fc1.fwd"},
      {0, 290, 320, "dp.all_gather", true},
      {0, 400, 900, "layers.2.mlp.fc1.fwd"},
  });
  trace.spans.back().step = 5;
  const auto rows = gemm_slowdowns(trace, kFc1);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].alone, 1);
  EXPECT_EQ(rows[0].partly, 1);
  EXPECT_EQ(rows[0].beside, 0);
  EXPECT_DOUBLE_EQ(rows[0].alone_ns, 100);
  EXPECT_TRUE(std::isnan(rows[0].beside_ns));
  EXPECT_TRUE(std::isnan(rows[0].slowdown));
  EXPECT_DOUBLE_EQ(rows[0].cost_ns, 4.0 / 2);
}

TEST(GemmSlowdown, WhatOneTraceLacksTheOtherSays) {
  const Trace hidden = trace_of({{0, 0, 130, "layers.0.mlp.fc1.fwd"}, {0, 0, 130, "dp.all_gather", true}});
  const Trace exposed = trace_of({{0, 200, 300, "layers.0.mlp.fc1.fwd"}, {0, 0, 130, "dp.all_gather", true}});
  const auto unknown = gemm_slowdowns(hidden, kFc1);
  ASSERT_EQ(unknown.size(), 1U);
  EXPECT_TRUE(std::isnan(unknown[0].slowdown));
  EXPECT_TRUE(std::isnan(unknown[0].cost_ns));
  const auto known = gemm_slowdowns(hidden, kFc1, &exposed);
  EXPECT_TRUE(known[0].elsewhere);
  EXPECT_EQ(known[0].alone, 0);
  EXPECT_DOUBLE_EQ(known[0].alone_ns, 100);
  EXPECT_DOUBLE_EQ(known[0].slowdown, 0.3);
  EXPECT_DOUBLE_EQ(known[0].cost_ns, 30.0 / 2);
  const auto none = gemm_slowdowns(exposed, kFc1, &hidden);
  EXPECT_DOUBLE_EQ(none[0].slowdown, 0.3);
  EXPECT_DOUBLE_EQ(none[0].cost_ns, 0);
}

TEST(GemmSlowdown, SitesThatCostMostComeFirstAndUnknownOnesLast) {
  const auto rows = gemm_slowdowns(trace_of({{0, 0, 100, "a.fwd"},
                                             {0, 0, 100, "x", true},
                                             {0, 200, 300, "b.0.fwd"},
                                             {0, 400, 510, "b.1.fwd"},
                                             {0, 400, 510, "x", true},
                                             {0, 600, 700, "c.0.fwd"},
                                             {0, 800, 930, "c.1.fwd"},
                                             {0, 800, 930, "x", true}}),
                                   {"a.fwd", "b.0.fwd", "b.1.fwd", "c.0.fwd", "c.1.fwd"});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].site, "c.*.fwd");
  EXPECT_EQ(rows[1].site, "b.*.fwd");
  EXPECT_EQ(rows[2].site, "a.fwd");
}

TEST(GemmSlowdown, GemmsAreThoseOfTheLaunchesOps) {
  baselines::Launch launch;
  for (const char* kind : {"gemm", "rms_norm", "gemm_scaled_add", "grouped_gemm_wgrad"}) {
    baselines::OpRow row;
    row.path = std::string("op.") + kind, row.kind = kind;
    launch.ops.push_back(row);
  }
  EXPECT_EQ(gemm_paths(launch), (std::set<std::string>{"op.gemm", "op.gemm_scaled_add", "op.grouped_gemm_wgrad"}));
}

}  // namespace
}  // namespace mbb::analysis
