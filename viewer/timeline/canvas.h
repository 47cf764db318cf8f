// One timeline on the screen: ruler, ranks and lanes, hover, selection, links between ranks.
#pragma once

#include <imgui.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "viewer/timeline/diff.h"
#include "viewer/timeline/model.h"
#include "viewer/timeline/paint.h"

namespace mbb::viewer {

// What a canvas is told each frame.
struct CanvasLook {
  std::int64_t origin_ns = 0;           // the trace's instant the view calls 0
  std::span<const DeltaMark> marks;     // by string; may be empty
  std::span<const std::uint8_t> found;  // by string: 1 where the search matches; empty: no search
  std::uint32_t selected_span = kNoItem;
  std::span<const std::uint32_t> linked;       // spans that the selected one launched, or its launch
  std::span<const std::uint8_t> selected_ops;  // by string: 1 for the selected op; empty: none
  std::uint32_t letter_ink = 0;                // of A or B; 0: one run only
  const char* letter = "";
};

struct CanvasEvents {
  std::optional<std::uint32_t> clicked;  // span
  std::optional<std::uint32_t> hovered;  // span
  bool cleared = false;                  // clicked where nothing is
};

class Canvas {
 public:
  // Draws `model` into `size` and moves `view` by wheel, drag and keys.
  CanvasEvents draw(const char* id, const TimelineModel& model, ImVec2 size, TimeView& view, const CanvasLook& look);
  // Pixels that show time, of a canvas `width` wide.
  static float time_width(float width);
  // Scrolls so that the lane of `span` is visible.
  void reveal(std::uint32_t span) { reveal_ = span; }
  // How far the lanes are scrolled, in pixels; whether the last frame's input did it.
  float scroll() const { return scroll_; }
  void set_scroll(float to) { scroll_ = to; }
  bool scrolled() const { return scrolled_; }
  bool moved() const { return moved_; }  // by keys held down: the next frame goes on

 private:
  struct Row {
    std::uint32_t lane = kNoItem;  // kNoItem: the header of a rank
    std::int32_t rank = 0;
    float top = 0;
    float height = 0;
  };
  struct Area {
    ImVec2 low, high;  // of the lanes
    float left;        // where time begins
  };
  void layout(const TimelineModel& model);
  void input(const TimelineModel& model, const Area& area, TimeView& view, const CanvasLook& look);
  void draw_ruler(const TimelineModel& model, const Area& area, const TimeView& view, const CanvasLook& look,
                  float top);
  void draw_header(const Row& row, const Area& area, float y);
  void draw_lane(const TimelineModel& model, const Row& row, const Area& area, float y, const TimeView& view,
                 const CanvasLook& look);
  void draw_bar(const TimelineModel& model, const Lane& lane, const PaintBar& bar, ImVec2 low, ImVec2 high,
                const CanvasLook& look);
  void draw_links(const TimelineModel& model, const Area& area, const TimeView& view, const CanvasLook& look,
                  std::uint32_t span);
  std::optional<ImVec2> place_of(const TimelineModel& model, const Area& area, const TimeView& view,
                                 const CanvasLook& look, std::uint32_t span) const;
  std::optional<std::uint32_t> span_under_mouse(const TimelineModel& model, const Area& area, const TimeView& view,
                                                const CanvasLook& look) const;

  ImDrawList* draw_ = nullptr;
  std::vector<Row> rows_;
  const TimelineModel* rows_of_ = nullptr;
  std::set<std::int32_t> folded_;
  bool layout_dirty_ = true;
  float content_height_ = 0;
  float scroll_ = 0;
  float dragged_ = 0;
  bool moved_ = false;
  bool scrolled_ = false;
  bool active_ = false;
  std::uint32_t reveal_ = kNoItem;
  std::vector<PaintBar> bars_;
  std::vector<std::uint32_t> shade_colors_;
};

// The colour of a shade under a way of colouring.
std::uint32_t shade_color(ColorBy color_by, int shade, int micro_batches);
std::string shade_name(ColorBy color_by, int shade);
// "layers.3.mlp.fc1.fwd" shortened from the left to `parts` parts.
std::string_view tail_of(std::string_view path, int parts);

}  // namespace mbb::viewer
