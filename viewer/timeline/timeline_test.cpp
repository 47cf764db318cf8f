// Lanes, summaries and bars of a timeline; the differences of two traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "viewer/timeline/canvas.h"
#include "viewer/timeline/diff.h"
#include "viewer/timeline/generate.h"
#include "viewer/timeline/model.h"
#include "viewer/timeline/paint.h"

namespace mbb::viewer {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;
using profiler::Trace;

const std::atomic<bool> kGoOn{false};

TimelineModel build(Trace trace, ColorBy color_by = ColorBy::kWork) {
  Result<TimelineModel> model = build_timeline(std::make_shared<const Trace>(std::move(trace)), color_by, kGoOn);
  EXPECT_TRUE(model.has_value());
  return std::move(*model);
}

Trace one_track(std::vector<std::pair<std::int64_t, std::int64_t>> times) {
  Trace trace;
  trace.tracks.push_back({0, StreamKind::kCompute, 0});
  for (const auto& [start, end] : times) trace.spans.push_back({.start_ns = start, .end_ns = end});
  return trace;
}

TEST(TimelineModel, NestsBecomeLanes) {
  const TimelineModel model = build(one_track({{0, 100}, {10, 20}, {12, 15}, {30, 40}, {100, 120}}));
  ASSERT_EQ(model.lanes.size(), 3U);
  EXPECT_EQ(model.lanes[0].size(), 2U);
  EXPECT_EQ(model.lanes[1].size(), 2U);
  EXPECT_EQ(model.lanes[2].size(), 1U);
}

TEST(TimelineModel, EverySpanIsInOneLaneAndNoneOverlap) {
  const Trace trace = generate_trace({.spans = 30'000, .ranks = 3, .steps = 2, .micro_batches = 4});
  const TimelineModel model = build(trace);
  std::vector<int> seen(trace.spans.size(), 0);
  for (const Lane& lane : model.lanes) {
    for (std::size_t i = 0; i < lane.size(); ++i) {
      if (!lane.exposed) ++seen[lane.spans[i]];
      if (i == 0) continue;
      ASSERT_LE(lane.times[i - 1].end_ns, lane.times[i].start_ns);
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size()));
  EXPECT_EQ(model.left_out, 0U);
}

TEST(TimelineModel, SummariesAddUp) {
  const TimelineModel model = build(generate_trace({.spans = 30'000, .ranks = 2, .steps = 2, .micro_batches = 4}));
  for (const Lane& lane : model.lanes) {
    std::int64_t busy = 0;
    for (const auto& time : lane.times) busy += time.end_ns - time.start_ns;
    for (const auto& level : lane.levels) {
      std::int64_t sum = 0;
      for (const LaneNode& node : level) sum += node.busy_ns;
      EXPECT_EQ(sum, busy);
    }
    EXPECT_LE(lane.levels.back().size(), kFan);
  }
}

TEST(TimelineModel, ImpossibleSpansAreCountedNotDrawn) {
  Trace trace = one_track({{0, 10}, {20, 15}});
  trace.spans.push_back({.start_ns = 0, .end_ns = 1, .track = 99});
  trace.spans.push_back({.start_ns = 0, .end_ns = 1, .name = 77});
  trace.spans.push_back({.start_ns = 0, .end_ns = 1, .op = 77});
  Span odd{.start_ns = 0, .end_ns = 1};
  odd.kind = static_cast<SpanKind>(200);
  trace.spans.push_back(odd);
  const TimelineModel model = build(std::move(trace));
  EXPECT_EQ(model.left_out, 5U);
  ASSERT_EQ(model.lanes.size(), 1U);
  EXPECT_EQ(model.lanes[0].size(), 1U);
}

TEST(TimelineModel, DeepOverlapsAreBounded) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  for (int i = 0; i < 100; ++i) times.emplace_back(i, 1000 - i);
  const TimelineModel model = build(one_track(times));
  EXPECT_EQ(model.lanes.size(), static_cast<std::size_t>(kMaxDepth));
  EXPECT_EQ(model.left_out, 100U - kMaxDepth);
}

TEST(TimelineModel, EmptyTrace) {
  const TimelineModel model = build(Trace{});
  EXPECT_TRUE(model.lanes.empty());
  EXPECT_TRUE(model.steps().empty());
}

TEST(TimelineModel, ExposedCommunicationIsWhatComputeDoesNotCover) {
  Trace trace;
  trace.tracks = {{0, StreamKind::kCompute, 0}, {0, StreamKind::kTp, 0}};
  trace.spans.push_back({.start_ns = 0, .end_ns = 50});
  Span comm{.start_ns = 30, .end_ns = 90, .track = 1};
  comm.kind = SpanKind::kCommTp;
  trace.spans.push_back(comm);
  const TimelineModel model = build(std::move(trace));
  ASSERT_EQ(model.lanes.size(), 3U);
  EXPECT_TRUE(model.lanes[2].exposed);
  ASSERT_EQ(model.lanes[2].times.size(), 1U);
  EXPECT_EQ(model.lanes[2].times[0], (analysis::TimeInterval{50, 90}));
}

TEST(TimelineModel, CollectivesAndLaunchesAreLinked) {
  const Trace trace = generate_trace({.spans = 20'000, .ranks = 4, .steps = 2, .micro_batches = 4});
  const TimelineModel model = build(trace);
  int checked = 0;
  for (const Span& span : trace.spans) {
    if (span.collective == 8'000'000'000'001ULL) {
      EXPECT_EQ(model.members(span.collective).size(), 4U);
      ++checked;
    }
    if (span.kind == SpanKind::kCompute && span.correlation != 0 && checked < 100) {
      const auto linked = find_linked(trace, static_cast<std::uint32_t>(&span - trace.spans.data()), kGoOn);
      ASSERT_TRUE(linked.has_value());
      EXPECT_EQ(linked->size(), 2U);
      ++checked;
    }
  }
  EXPECT_GT(checked, 50);
  EXPECT_TRUE(model.members(12345).empty());
}

TEST(TimelineModel, ItemAtAnInstant) {
  const TimelineModel model = build(one_track({{10, 20}, {30, 40}}));
  const Lane& lane = model.lanes[0];
  EXPECT_EQ(lane.item_at(15, 0), 0U);
  EXPECT_EQ(lane.item_at(25, 0), kNoItem);
  EXPECT_EQ(lane.item_at(28, 5), 1U);
  EXPECT_EQ(lane.item_at(21, 5), 0U);
  EXPECT_EQ(lane.item_at(500, 5), kNoItem);
}

TEST(TimelinePaint, BarsFollowPixelsNotEvents) {
  const TimelineModel model = build(generate_trace({.spans = 400'000, .ranks = 2, .steps = 8, .micro_batches = 8}));
  constexpr float kWidth = 1000;
  TimeView view;
  view.fit(0, static_cast<double>(model.end_ns - model.start_ns), kWidth);
  for (const Lane& lane : model.lanes) {
    std::vector<PaintBar> bars;
    const std::size_t looked = paint_lane(lane, view, model.start_ns, kWidth, bars);
    EXPECT_LE(bars.size(), static_cast<std::size_t>(kWidth) + 4);
    EXPECT_LE(looked, 40U * static_cast<std::size_t>(kWidth)) << lane.title << " of " << lane.size();
    for (std::size_t i = 1; i < bars.size(); ++i) EXPECT_LE(bars[i - 1].left, bars[i].left);
  }
}

TEST(TimelinePaint, ZoomedInEveryItemIsItself) {
  const TimelineModel model = build(one_track({{1000, 2000}, {2500, 2600}, {9000, 9100}}));
  TimeView view{0, 10};
  std::vector<PaintBar> bars;
  paint_lane(model.lanes[0], view, 0, 400, bars);
  ASSERT_EQ(bars.size(), 2U);
  EXPECT_EQ(bars[0].item, 0U);
  EXPECT_FLOAT_EQ(bars[0].left, 100);
  EXPECT_FLOAT_EQ(bars[0].right, 200);
  EXPECT_EQ(bars[1].item, 1U);
}

TEST(TimelinePaint, NothingVisibleIsLost) {
  // One short span in a long silence must still give a bar at any zoom.
  const TimelineModel model = build(one_track({{1'000'000'000, 1'000'000'001}}));
  for (const double per_px : {1.0, 1e3, 1e6, 1e9}) {
    TimeView view{1e9 - per_px * 50, per_px};
    std::vector<PaintBar> bars;
    paint_lane(model.lanes[0], view, 0, 100, bars);
    ASSERT_EQ(bars.size(), 1U) << per_px;
    EXPECT_NEAR(bars[0].left, 50, 1.01);
  }
}

TEST(TimelineView, ZoomKeepsThePointAndHasLimits) {
  TimeView view{500, 10};
  const double fixed = view.to_ns(120);
  view.zoom(0.5, 120);
  EXPECT_NEAR(view.to_ns(120), fixed, 1e-6);
  for (int i = 0; i < 1000; ++i) view.zoom(0.1, 0);
  EXPECT_GT(view.ns_per_px, 0);
  for (int i = 0; i < 1000; ++i) view.zoom(10, 0);
  EXPECT_TRUE(std::isfinite(view.ns_per_px));
  view.fit(0, 0, 100);
  EXPECT_GT(view.ns_per_px, 0);
  view.start_ns = 1e18;
  view.keep_inside(0, 1000, 100);
  EXPECT_LE(view.start_ns, 1000);
}

TEST(TimelineDiff, FindsTheOpsThatWereStretched) {
  const Trace a = generate_trace({.spans = 20'000, .ranks = 2, .steps = 2, .micro_batches = 4, .seed = 1});
  const Trace b =
      generate_trace({.spans = 20'000, .ranks = 2, .steps = 2, .micro_batches = 4, .seed = 1, .stretch = 1.2});
  const TraceDiff diff = diff_traces(a, 1, b, 1);
  ASSERT_GT(diff.ops.size(), 10U);
  EXPECT_NE(diff.ops[0].op.find("gemm"), std::string::npos);
  EXPECT_GT(diff.ops[0].delta_ns(), 0);
  for (std::size_t i = 0; i < b.strings.size(); ++i) {
    if (b.strings[i].find("fc1.gemm") != std::string::npos) {
      EXPECT_EQ(diff.marks_b[i], DeltaMark::kSlower) << b.strings[i];
    }
    if (b.strings[i].find("swiglu") != std::string::npos) {
      EXPECT_EQ(diff.marks_b[i], DeltaMark::kSame) << b.strings[i];
    }
  }
}

TEST(TimelineNames, Tails) {
  EXPECT_EQ(tail_of("layers.3.mlp.fc1.fwd", 2), "fc1.fwd");
  EXPECT_EQ(tail_of("fwd", 2), "fwd");
  EXPECT_EQ(tail_of("", 2), "");
}

}  // namespace
}  // namespace mbb::viewer
