// From a lane and a view to the bars that are drawn: at most one a pixel column, whatever the number of events.
#pragma once

#include <cstdint>
#include <vector>

#include "viewer/timeline/model.h"

namespace mbb::viewer {

// What part of time is on the screen. Times are relative to the trace's origin for this view (a step's start when two
// runs are aligned).
struct TimeView {
  double start_ns = 0;
  double ns_per_px = 1000;

  double to_px(double at_ns) const { return (at_ns - start_ns) / ns_per_px; }
  double to_ns(double at_px) const { return start_ns + at_px * ns_per_px; }
  // Zooms by `factor` (> 1: out) keeping what lies at `at_px`; within 0.01 ns and 1 hour a pixel.
  void zoom(double factor, double at_px);
  void pan(double by_px) { start_ns -= by_px * ns_per_px; }
  // Shows [from, to] in `width_px`, with a margin.
  void fit(double from_ns, double to_ns, double width_px);
  // Keeps at least a tenth of the width inside [from, to].
  void keep_inside(double from_ns, double to_ns, double width_px);
  bool operator==(const TimeView&) const = default;
};

struct PaintBar {
  float left = 0;
  float right = 0;
  std::uint8_t shade = 0;
  std::uint8_t fill = 15;        // 1..15: busy share of the columns
  std::uint32_t item = kNoItem;  // of a bar that is one item; kNoItem: several merged
};

// Appends the bars of [0, width_px) from left to right. `origin_ns`: the trace's instant that the view calls 0.
// Returns how many nodes and items it looked at.
std::size_t paint_lane(const Lane& lane, const TimeView& view, std::int64_t origin_ns, float width_px,
                       std::vector<PaintBar>& out);

}  // namespace mbb::viewer
