// Drawing and input of a timeline.
#include "viewer/timeline/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "profiler/base/text.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/fit.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

constexpr float kLabelWidth = 118;
constexpr float kRulerHeight = 22;
constexpr float kHeaderHeight = 19;
constexpr float kLaneHeight = 18;
constexpr float kNestedHeight = 15;
constexpr float kExposedHeight = 9;
constexpr float kGap = 1;
constexpr float kLeastLabelPx = 26;
constexpr float kLeastCutPx = 40;
constexpr double kZoomStep = 1.25;
constexpr double kZoomPerSecond = 6;
constexpr float kPanPerSecond = 1400;

float row_height(const Lane& lane) {
  if (lane.exposed) return kExposedHeight;
  return lane.depth == 0 ? kLaneHeight : kNestedHeight;
}

}  // namespace

std::uint32_t shade_color(ColorBy color_by, int shade, int micro_batches) {
  if (color_by == ColorBy::kPhase) return ramp(static_cast<float>(shade) / (profiler::kPhases - 1));
  if (color_by == ColorBy::kMicroBatch) {
    if (shade == 0) return color(Ink::kHost);
    return ramp(static_cast<float>(shade - 1) /
                static_cast<float>(std::max(1, std::min(micro_batches, kMaxShades - 1) - 1)));
  }
  static constexpr std::array<Ink, kWorkShades> kInks = {Ink::kGemm,          Ink::kAttention,    Ink::kMemoryBound,
                                                         Ink::kCommunication, Ink::kCopy,         Ink::kOptimizer,
                                                         Ink::kHost,          Ink::kCommunication};
  return color(kInks[static_cast<std::size_t>(std::clamp(shade, 0, kWorkShades - 1))]);
}

std::string shade_name(ColorBy color_by, int shade) {
  if (color_by == ColorBy::kPhase)
    return profiler::name(static_cast<profiler::Phase>(std::clamp(shade, 0, profiler::kPhases - 1)));
  if (color_by == ColorBy::kMicroBatch) return shade == 0 ? "no micro-batch" : fmt::format("micro-batch {}", shade - 1);
  static constexpr std::array<const char*, kWorkShades> kNames = {
      "GEMM", "attention", "memory-bound", "communication", "copy", "optimizer", "host", "exposed communication"};
  return kNames[static_cast<std::size_t>(std::clamp(shade, 0, kWorkShades - 1))];
}

std::string_view tail_of(std::string_view path, int parts) {
  std::size_t at = path.size();
  while (parts-- > 0) {
    const std::size_t dot = at == 0 ? std::string_view::npos : path.rfind('.', at - 1);
    if (dot == std::string_view::npos) return path;
    at = dot;
  }
  return path.substr(at + 1);
}

float Canvas::time_width(float width) {
  return std::max(px(40), width - px(kLabelWidth));
}

void Canvas::layout(const TimelineModel& model) {
  if (!layout_dirty_ && rows_of_ == &model) return;
  rows_.clear();
  rows_of_ = &model;
  layout_dirty_ = false;
  float top = 0;
  std::int32_t rank = std::numeric_limits<std::int32_t>::min();
  for (std::uint32_t i = 0; i < model.lanes.size(); ++i) {
    const Lane& lane = model.lanes[i];
    if (rows_.empty() || lane.rank != rank) {
      rank = lane.rank;
      rows_.push_back({kNoItem, rank, top, px(kHeaderHeight)});
      top += px(kHeaderHeight + kGap);
    }
    if (folded_.contains(rank)) continue;
    const float height = px(row_height(lane));
    rows_.push_back({i, rank, top, height});
    top += height + px(kGap);
  }
  content_height_ = top + px(8);
}

CanvasEvents Canvas::draw(const char* id, const TimelineModel& model, ImVec2 size, TimeView& view,
                          const CanvasLook& look) {
  layout(model);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton(id, size);
  const bool hovered = ImGui::IsItemHovered();
  active_ = ImGui::IsItemActive();
  probe_item(id);
  draw_ = ImGui::GetWindowDrawList();
  const Area area{ImVec2(at.x, at.y + px(kRulerHeight)), ImVec2(at.x + size.x, at.y + size.y), at.x + px(kLabelWidth)};
  moved_ = false;
  const float before = scroll_;
  if (hovered || active_) input(model, area, view, look);
  if (reveal_ != kNoItem) {
    const std::optional<ImVec2> place = place_of(model, area, view, look, reveal_);
    if (place && (place->y < area.low.y || place->y > area.high.y - px(20)))
      scroll_ += place->y - (area.low.y + area.high.y) / 2;
    reveal_ = kNoItem;
  }
  scroll_ = std::clamp(scroll_, 0.0F, std::max(0.0F, content_height_ - (area.high.y - area.low.y)));
  scrolled_ = scroll_ != before;

  draw_->PushClipRect(at, area.high, true);
  draw_->AddRectFilled(at, area.high, color(Ink::kBackground));
  draw_ruler(model, area, view, look, at.y);
  draw_->PushClipRect(area.low, area.high, true);
  std::size_t drawn = 0;
  for (const Row& row : rows_) {
    const float y = area.low.y + row.top - scroll_;
    if (y + row.height < area.low.y || y > area.high.y) continue;
    if (row.lane == kNoItem)
      draw_header(row, area, y);
    else
      draw_lane(model, row, area, y, view, look);
    drawn += bars_.size();
    bars_.clear();
  }
  CanvasEvents events;
  if (hovered) events.hovered = span_under_mouse(model, area, view, look);
  if (look.selected_span != kNoItem)
    draw_links(model, area, view, look, look.selected_span);
  else if (events.hovered)
    draw_links(model, area, view, look, *events.hovered);
  draw_->PopClipRect();
  draw_->PopClipRect();
  if (hovered && ImGui::IsMouseReleased(ImGuiMouseButton_Left) && dragged_ < px(4)) {
    if (events.hovered)
      events.clicked = events.hovered;
    else
      events.cleared = true;
  }
  if (probe_recording()) {
    probe_value(fmt::format("{}.bars", id), static_cast<long long>(drawn));
    probe_value(fmt::format("{}.rows", id), static_cast<long long>(rows_.size()));
  }
  return events;
}

void Canvas::input(const TimelineModel& model, const Area& area, TimeView& view, const CanvasLook& look) {
  const ImGuiIO& io = ImGui::GetIO();
  const double pointer = std::max(0.0, static_cast<double>(io.MousePos.x - area.left));
  if (io.MouseWheel != 0) {
    if (io.KeyShift)
      scroll_ -= io.MouseWheel * px(48);
    else
      view.zoom(io.MouseWheel > 0 ? 1 / kZoomStep : kZoomStep, pointer);
  }
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    dragged_ = 0;
    // The header of a rank folds its lanes.
    for (const Row& row : rows_) {
      const float y = area.low.y + row.top - scroll_;
      if (row.lane != kNoItem || io.MousePos.y < y || io.MousePos.y > y + row.height || io.MousePos.y < area.low.y)
        continue;
      if (!folded_.erase(row.rank)) folded_.insert(row.rank);
      layout_dirty_ = true;
    }
  }
  if (active_ && ImGui::IsMouseDragging(ImGuiMouseButton_Left, 2)) {
    view.pan(static_cast<double>(io.MouseDelta.x));
    scroll_ -= io.MouseDelta.y;
    dragged_ += std::fabs(io.MouseDelta.x) + std::fabs(io.MouseDelta.y);
  }
  const double dt = std::min(0.1, static_cast<double>(io.DeltaTime));
  const double zoom = (held(kKeyS) ? 1.0 : 0.0) - (held(kKeyW) ? 1.0 : 0.0);
  const double pan = (held(kKeyA) ? 1.0 : 0.0) - (held(kKeyD) ? 1.0 : 0.0);
  if (zoom != 0) view.zoom(std::exp(zoom * dt * kZoomPerSecond), pointer);
  if (pan != 0) view.pan(pan * dt * static_cast<double>(px(kPanPerSecond)));
  moved_ = zoom != 0 || pan != 0;
  const double width = static_cast<double>(area.high.x - area.left);
  view.keep_inside(static_cast<double>(model.start_ns - look.origin_ns),
                   static_cast<double>(model.end_ns - look.origin_ns), width);
}

void Canvas::draw_ruler(const TimelineModel& model, const Area& area, const TimeView& view, const CanvasLook& look,
                        float top) {
  const float width = area.high.x - area.left;
  const float bottom = area.low.y;
  draw_->AddRectFilled(ImVec2(area.low.x, top), ImVec2(area.high.x, bottom), color(Ink::kSurface));
  ImGui::PushFont(fonts().small);
  if (look.letter_ink != 0) {
    draw_->AddRectFilled(ImVec2(area.low.x, top), ImVec2(area.low.x + px(20), bottom), look.letter_ink);
    draw_->AddText(fonts().bold, fonts().bold->FontSize, ImVec2(area.low.x + px(5), top + px(2)),
                   text_on(look.letter_ink), look.letter);
  }
  const Ticks ticks = axis_ticks({view.start_ns, view.to_ns(static_cast<double>(width))},
                                 std::max(2, static_cast<int>(width / px(110))), "ns");
  std::vector<std::pair<float, float>> taken;  // from left to right in the ruler
  float badge_end = area.low.x;
  for (const std::int32_t step : model.steps()) {
    analysis::TimeInterval window;
    if (!model.step_window(step, window)) continue;
    const float x =
        std::round(area.left + static_cast<float>(view.to_px(static_cast<double>(window.start_ns - look.origin_ns))));
    const float end = area.left + static_cast<float>(view.to_px(static_cast<double>(window.end_ns - look.origin_ns)));
    if (end < area.left || x > area.high.x || end - x < px(4)) continue;
    draw_->AddLine(ImVec2(x, top), ImVec2(x, area.high.y), color(Ink::kAccent, 0.55F));
    const std::string label = fmt::format("step {}", step);
    const float text_width = ImGui::CalcTextSize(label.c_str()).x + px(8);
    const float left = std::clamp(x, area.left, std::max(area.left, end - text_width));
    if (end - x < text_width * 2 || left < badge_end || left + text_width > area.high.x) continue;
    badge_end = left + text_width;
    taken.emplace_back(left, badge_end);
    draw_->AddRectFilled(ImVec2(left, top + px(2)), ImVec2(left + text_width, bottom - px(3)), color(Ink::kSelected),
                         px(3));
    draw_->AddText(ImVec2(left + px(4), top + px(3)), color(Ink::kText), label.c_str());
  }
  // A tick's number stands where it is whole and beside no step's name.
  for (const Tick& tick : ticks.ticks) {
    const float x = std::round(area.left + static_cast<float>(view.to_px(tick.at)));
    if (x < area.left) continue;
    draw_->AddLine(ImVec2(x, bottom - px(5)), ImVec2(x, bottom), color(Ink::kMuted));
    draw_->AddLine(ImVec2(x, bottom), ImVec2(x, area.high.y), color(Ink::kGrid));
    const std::string text = fmt::format("{} {}", tick.label, ticks.unit);
    const float from = x + px(3);
    const float to = from + ImGui::CalcTextSize(text.c_str()).x;
    const bool free = std::none_of(taken.begin(), taken.end(), [&](const auto& one) {
      return from < one.second + px(4) && to > one.first - px(4);
    });
    if (free && to <= area.high.x) draw_->AddText(ImVec2(from, top + px(4)), color(Ink::kMuted), text.c_str());
  }
  ImGui::PopFont();
  draw_->AddLine(ImVec2(area.low.x, bottom - 1), ImVec2(area.high.x, bottom - 1), color(Ink::kBorder));
}

void Canvas::draw_header(const Row& row, const Area& area, float y) {
  draw_->AddRectFilled(ImVec2(area.low.x, y), ImVec2(area.high.x, y + row.height), color(Ink::kRaised, 0.75F));
  const bool folded = folded_.contains(row.rank);
  const std::string title = fmt::format("{} rank {}", folded ? "\xE2\x96\xB8" : "\xE2\x96\xBE", row.rank);
  draw_->AddText(fonts().bold, fonts().small->FontSize, ImVec2(area.low.x + px(6), y + px(2)), color(Ink::kText),
                 title.c_str());
  if (probe_recording())
    probe_rect(fmt::format("timeline.rank.{}", row.rank), {area.low.x, y, area.left, y + row.height});
}

void Canvas::draw_lane(const TimelineModel& model, const Row& row, const Area& area, float y, const TimeView& view,
                       const CanvasLook& look) {
  const Lane& lane = model.lanes[row.lane];
  const float width = area.high.x - area.left;
  if (shade_colors_.size() != kMaxShades) shade_colors_.resize(kMaxShades);
  for (int i = 0; i < kMaxShades; ++i)
    shade_colors_[static_cast<std::size_t>(i)] = shade_color(model.color_by, i, model.micro_batches);
  draw_->AddLine(ImVec2(area.left, y + row.height), ImVec2(area.high.x, y + row.height), color(Ink::kGrid, 0.6F));
  bars_.clear();
  paint_lane(lane, view, look.origin_ns, width, bars_);
  draw_->PushClipRect(ImVec2(area.left, area.low.y), area.high, true);
  for (const PaintBar& bar : bars_) {
    draw_bar(model, lane, bar, ImVec2(area.left + bar.left, y), ImVec2(area.left + bar.right, y + row.height), look);
  }
  draw_->PopClipRect();
  draw_->AddRectFilled(ImVec2(area.low.x, y), ImVec2(area.left - px(2), y + row.height), color(Ink::kBackground));
  if (lane.depth > 0) return;
  const float size = lane.exposed ? fonts().small->FontSize * 0.85F : fonts().small->FontSize;
  const float from = area.low.x + px(16);
  const std::string title = fit_text(*fonts().small, size, clean(lane.title, 40), area.left - px(4) - from);
  draw_->AddText(fonts().small, size, ImVec2(from, y + (row.height - size) / 2 - px(1)), color(Ink::kMuted),
                 title.c_str());
}

void Canvas::draw_bar(const TimelineModel& model, const Lane& lane, const PaintBar& bar, ImVec2 low, ImVec2 high,
                      const CanvasLook& look) {
  const std::uint32_t full = shade_colors_[bar.shade];
  if (bar.item == kNoItem) {
    const std::uint32_t alpha = 60U + 13U * bar.fill;
    draw_->AddRectFilled(low, high, (full & 0x00FFFFFFU) | (alpha << 24U));
    return;
  }
  const float width = high.x - low.x;
  if (lane.exposed) {
    draw_->AddRectFilled(low, high, (full & 0x00FFFFFFU) | 0x50000000U);
    // Hatched, so that exposure is not told by colour alone.
    for (float x = low.x; x < high.x; x += px(5)) {
      draw_->AddLine(ImVec2(x, high.y), ImVec2(std::min(x + px(5), high.x), low.y), full, px(1));
    }
    return;
  }
  const std::uint32_t span_index = lane.spans[bar.item];
  const profiler::Span& span = model.trace->spans[span_index];
  const profiler::StringId op = span.op != 0 ? span.op : span.name;
  const bool searched = !look.found.empty();
  const bool hit = searched
                       ? look.found[span.name] != 0 || look.found[span.op] != 0
                       : look.selected_ops.empty() || look.selected_ops[op] != 0 || look.selected_ops[span.name] != 0;
  const float inset = width > 4 ? 0.5F : 0.0F;
  const ImVec2 inner_high(high.x - inset, high.y);
  draw_->AddRectFilled(low, inner_high, hit ? full : (full & 0x00FFFFFFU) | 0x60000000U);
  if (!look.marks.empty() && width > px(3)) {
    const DeltaMark mark = look.marks[op];
    if (mark != DeltaMark::kSame) {
      const std::uint32_t ink = color(mark == DeltaMark::kFaster   ? Ink::kFaster
                                      : mark == DeltaMark::kSlower ? Ink::kSlower
                                                                   : Ink::kWarning);
      draw_->AddRectFilled(ImVec2(low.x, high.y - px(3)), inner_high, ink);
    }
  }
  if (span_index == look.selected_span)
    draw_->AddRect(ImVec2(low.x - 1, low.y - 1), ImVec2(high.x + 1, high.y + 1), color(Ink::kText), 0, 0, px(2));
  if (width < px(kLeastLabelPx)) return;
  const std::string& text = model.trace->strings[span.name];
  std::string label =
      std::string(width > px(220) ? std::string_view(text).substr(0, 120) : tail_of(text, width > px(90) ? 3 : 2));
  if (!look.marks.empty() && look.marks[op] == DeltaMark::kSlower) label = "\xE2\x96\xB2 " + label;
  if (!look.marks.empty() && look.marks[op] == DeltaMark::kFaster) label = "\xE2\x96\xBC " + label;
  if (!look.marks.empty() && look.marks[op] == DeltaMark::kOnlyHere) label = "+ " + label;
  const float size = fonts().small->FontSize;
  // A bar that begins left of the screen keeps its name in sight.
  const float left = std::max(low.x, draw_->GetClipRectMin().x) + px(3);
  const float room = std::min(high.x, draw_->GetClipRectMax().x) - px(2) - left;
  const std::string whole = clean(label, 128);
  label = fit_text(*fonts().small, size, whole, room);
  // Two letters and an ellipsis name nothing.
  if (label != whole && room < px(kLeastCutPx)) return;
  draw_->AddText(fonts().small, size, ImVec2(left, low.y + (high.y - low.y - size) / 2 - px(0.5F)),
                 hit ? text_on(full) : color(Ink::kMuted), label.c_str());
}

std::optional<ImVec2> Canvas::place_of(const TimelineModel& model, const Area& area, const TimeView& view,
                                       const CanvasLook& look, std::uint32_t span) const {
  if (span >= model.trace->spans.size()) return std::nullopt;
  const profiler::Span& wanted = model.trace->spans[span];
  for (const Row& row : rows_) {
    if (row.lane == kNoItem) continue;
    const Lane& lane = model.lanes[row.lane];
    if (lane.exposed || lane.track != wanted.track) continue;
    const std::uint32_t item = lane.item_at(wanted.start_ns, 0);
    // A span without length may be hidden behind the next one's start.
    for (std::uint32_t near = item == kNoItem || item == 0 ? 0 : item - 1;
         item != kNoItem && near <= item && near < lane.size(); ++near) {
      if (lane.spans[near] != span) continue;
      const double middle = static_cast<double>(wanted.start_ns - look.origin_ns) +
                            static_cast<double>(wanted.end_ns - wanted.start_ns) / 2;
      const double x = std::clamp(view.to_px(middle), -1e5, 1e5);
      return ImVec2(area.left + static_cast<float>(x), area.low.y + row.top - scroll_ + row.height / 2);
    }
  }
  return std::nullopt;
}

void Canvas::draw_links(const TimelineModel& model, const Area& area, const TimeView& view, const CanvasLook& look,
                        std::uint32_t span) {
  if (span >= model.trace->spans.size()) return;
  const profiler::Span& from = model.trace->spans[span];
  std::vector<std::uint32_t> others;
  Ink ink = Ink::kCommunication;
  if (from.collective != 0) {
    others = model.members(from.collective);
  } else if (span == look.selected_span) {
    others.assign(look.linked.begin(), look.linked.end());
    ink = Ink::kAccent;
  }
  if (others.size() < 2) return;
  if (others.size() > 64) others.resize(64);
  draw_->PushClipRect(ImVec2(area.left, area.low.y), area.high, true);
  const std::optional<ImVec2> start = place_of(model, area, view, look, span);
  for (const std::uint32_t other : others) {
    if (other == span || !start) continue;
    const std::optional<ImVec2> end = place_of(model, area, view, look, other);
    if (!end) continue;
    const float bend = std::max(px(12), std::fabs(end->x - start->x) / 2);
    draw_->AddBezierCubic(*start, ImVec2(start->x + bend, start->y), ImVec2(end->x - bend, end->y), *end,
                          color(ink, 0.85F), px(1.5F));
    draw_->AddCircleFilled(*end, px(3), color(ink));
  }
  if (start) draw_->AddCircleFilled(*start, px(3), color(ink));
  draw_->PopClipRect();
}

std::optional<std::uint32_t> Canvas::span_under_mouse(const TimelineModel& model, const Area& area,
                                                      const TimeView& view, const CanvasLook& look) const {
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  if (mouse.x < area.left || mouse.y < area.low.y) return std::nullopt;
  for (const Row& row : rows_) {
    const float y = area.low.y + row.top - scroll_;
    if (row.lane == kNoItem || mouse.y < y || mouse.y > y + row.height) continue;
    const Lane& lane = model.lanes[row.lane];
    if (lane.exposed) return std::nullopt;
    const double at = view.to_ns(static_cast<double>(mouse.x - area.left)) + static_cast<double>(look.origin_ns);
    const std::uint32_t item =
        lane.item_at(static_cast<std::int64_t>(at), static_cast<std::int64_t>(view.ns_per_px * 2));
    if (item != kNoItem) return lane.spans[item];
  }
  return std::nullopt;
}

}  // namespace mbb::viewer
