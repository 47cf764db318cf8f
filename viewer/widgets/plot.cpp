// Axes and marks of plots.
#include "viewer/widgets/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "viewer/theme/style.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

struct UnitScale {
  double factor;
  const char* unit;
};

UnitScale unit_scale(std::string_view unit, double size) {
  if (unit == "ns") {
    if (size >= 1e9) return {1e9, "s"};
    if (size >= 1e6) return {1e6, "ms"};
    if (size >= 1e3) return {1e3, "\xC2\xB5s"};
    return {1, "ns"};
  }
  if (unit == "bytes") {
    static constexpr std::array kBytes = {"B", "KiB", "MiB", "GiB", "TiB"};
    double factor = 1;
    std::size_t step = 0;
    while (size / factor >= 1024 && step + 1 < kBytes.size()) {
      factor *= 1024;
      ++step;
    }
    return {factor, kBytes[step]};
  }
  if (unit == "fraction" || unit == "ratio") return {0.01, "%"};
  if (size >= 1e6) return {1e6, "M"};
  if (size >= 1e5) return {1e3, "k"};
  return {1, ""};
}

double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  return (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10) * power;
}

void shape(ImDrawList* draw, ImVec2 at, float radius, std::uint32_t ink, Mark mark) {
  if (mark == Mark::kDot) {
    draw->AddCircleFilled(at, radius, ink, 10);
  } else if (mark == Mark::kDiamond) {
    const float r = radius * 1.25F;
    draw->AddQuadFilled(ImVec2(at.x, at.y - r), ImVec2(at.x + r, at.y), ImVec2(at.x, at.y + r), ImVec2(at.x - r, at.y),
                        ink);
  } else {
    draw->AddLine(ImVec2(at.x - radius, at.y - radius), ImVec2(at.x + radius, at.y + radius), ink, px(1.5F));
    draw->AddLine(ImVec2(at.x - radius, at.y + radius), ImVec2(at.x + radius, at.y - radius), ink, px(1.5F));
  }
}

}  // namespace

void Range::add(double value) {
  if (!std::isfinite(value)) return;
  low = std::min(low, value);
  high = std::max(high, value);
}

Range Range::padded(double share) const {
  if (empty()) return {0, 1};
  double length = high - low;
  if (!(length > 0)) length = std::max(std::fabs(high) * 0.1, 1e-9);
  Range out{low - length * share, high + length * share};
  if (!(out.high > out.low)) out.high = out.low + 1;
  return out;
}

Ticks axis_ticks(Range range, int count, std::string_view unit) {
  Ticks out;
  if (range.empty() || !(range.high > range.low) || !std::isfinite(range.high - range.low)) return out;
  const UnitScale by = unit_scale(unit, std::max(std::fabs(range.low), std::fabs(range.high)));
  out.unit = by.unit;
  if (out.unit.empty() && unit != "count" && unit != "1" && unit != "index") out.unit = unit;
  const double low = range.low / by.factor;
  const double high = range.high / by.factor;
  double step = round_step((high - low) / std::max(count, 1));
  if ((unit == "step" || unit == "op" || unit == "index") && step < 1) step = 1;
  const int places = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  for (int i = 0; i < 64; ++i) {
    const double at = (std::ceil(low / step - 1e-9) + i) * step;
    if (at > high + step * 1e-9) break;
    out.ticks.push_back({at * by.factor, fmt::format("{:.{}f}", at == 0 ? 0.0 : at, places)});
  }
  return out;
}

Plot::Plot(const char* id, ImVec2 size, Axis x, Axis y)
    : draw_(ImGui::GetWindowDrawList()), x_(std::move(x)), y_(std::move(y)) {
  if (x_.range.empty() || !(x_.range.high > x_.range.low)) x_.range = x_.range.padded(0.5);
  if (y_.range.empty() || !(y_.range.high > y_.range.low)) y_.range = y_.range.padded(0.5);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (size.x <= 0) size.x = room.x;
  if (size.y <= 0) size.y = room.y;
  size = ImVec2(std::max(size.x, px(120)), std::max(size.y, px(70)));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  low_ = ImVec2(at.x + px(58), at.y + px(18));
  high_ = ImVec2(at.x + size.x - px(8), at.y + size.y - px(22));
  ImGui::InvisibleButton(id, size);
  hovered_ = ImGui::IsItemHovered() && ImGui::GetIO().MousePos.x >= low_.x && ImGui::GetIO().MousePos.x <= high_.x;
  clicked_ = hovered_ && ImGui::IsMouseReleased(ImGuiMouseButton_Left);
  probe_rect(id, {low_.x, low_.y, high_.x, high_.y});
  draw_axes();
  draw_->PushClipRect(ImVec2(low_.x, low_.y - 1), ImVec2(high_.x + 1, high_.y + 1), true);
}

Plot::~Plot() {
  draw_->PopClipRect();
}

void Plot::draw_axes() {
  ImGui::PushFont(fonts().small);
  const float line = ImGui::GetTextLineHeight();
  const Ticks ys = axis_ticks(y_.range, std::max(2, static_cast<int>((high_.y - low_.y) / px(64))), y_.unit);
  for (const Tick& tick : ys.ticks) {
    const float at = std::round(y(tick.at));
    draw_->AddLine(ImVec2(low_.x, at), ImVec2(high_.x, at), color(Ink::kGrid));
    const float width = ImGui::CalcTextSize(tick.label.c_str()).x;
    draw_->AddText(ImVec2(low_.x - px(6) - width, at - line / 2), color(Ink::kMuted), tick.label.c_str());
  }
  const Ticks xs = axis_ticks(x_.range, std::max(2, static_cast<int>((high_.x - low_.x) / px(90))), x_.unit);
  for (const Tick& tick : xs.ticks) {
    const float at = std::round(x(tick.at));
    draw_->AddLine(ImVec2(at, high_.y), ImVec2(at, high_.y + px(4)), color(Ink::kBorder));
    const float width = ImGui::CalcTextSize(tick.label.c_str()).x;
    const float left = std::clamp(at - width / 2, low_.x - px(20), high_.x - width);
    draw_->AddText(ImVec2(left, high_.y + px(5)), color(Ink::kMuted), tick.label.c_str());
  }
  draw_->AddLine(ImVec2(low_.x, high_.y), high_, color(Ink::kBorder));
  const auto titled = [](const Plot::Axis& axis, const Ticks& ticks) {
    return ticks.unit.empty() || ticks.unit == axis.title ? axis.title : axis.title + "  " + ticks.unit;
  };
  const std::string y_title = titled(y_, ys);
  draw_->AddText(ImVec2(low_.x - px(52), low_.y - px(18)), color(Ink::kMuted), y_title.c_str());
  const std::string x_title = titled(x_, xs);
  const float width = ImGui::CalcTextSize(x_title.c_str()).x;
  draw_->AddText(ImVec2(high_.x - width, low_.y - px(18)), color(Ink::kFaint), x_title.c_str());
  ImGui::PopFont();
}

float Plot::x(double value) const {
  const double share = (value - x_.range.low) / (x_.range.high - x_.range.low);
  return low_.x + static_cast<float>(std::clamp(share, -4.0, 5.0)) * (high_.x - low_.x);
}

float Plot::y(double value) const {
  const double share = (value - y_.range.low) / (y_.range.high - y_.range.low);
  return high_.y - static_cast<float>(std::clamp(share, -4.0, 5.0)) * (high_.y - low_.y);
}

double Plot::value_x(float screen) const {
  return x_.range.low + static_cast<double>((screen - low_.x) / (high_.x - low_.x)) * (x_.range.high - x_.range.low);
}

double Plot::value_y(float screen) const {
  return y_.range.low + static_cast<double>((high_.y - screen) / (high_.y - low_.y)) * (y_.range.high - y_.range.low);
}

void Plot::line(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, float width) {
  std::vector<ImVec2> path;
  const std::size_t count = std::min(xs.size(), ys.size());
  // Segment by segment: a joined path would be mitred, which tears at the sharp corners of noisy series.
  const auto flush = [&] {
    for (std::size_t i = 1; i < path.size(); ++i) draw_->AddLine(path[i - 1], path[i], ink, width * scale());
    path.clear();
  };
  for (std::size_t i = 0; i < count;) {
    if (!std::isfinite(xs[i]) || !std::isfinite(ys[i])) {
      flush();
      ++i;
      continue;
    }
    const float column = x(xs[i]);
    const float first = y(ys[i]);
    float top = first;
    float bottom = first;
    float last = first;
    std::size_t next = i + 1;
    while (next < count && std::isfinite(ys[next]) && x(xs[next]) - column < 1.0F) {
      last = y(ys[next]);
      top = std::min(top, last);
      bottom = std::max(bottom, last);
      ++next;
    }
    path.emplace_back(column, first);
    if (top < std::min(first, last)) path.emplace_back(column, top);
    if (bottom > std::max(first, last)) path.emplace_back(column, bottom);
    if (next > i + 1) path.emplace_back(column, last);
    i = next;
  }
  flush();
}

void Plot::steps(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, float width) {
  std::vector<double> xx;
  std::vector<double> yy;
  const std::size_t count = std::min(xs.size(), ys.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) {
      xx.push_back(xs[i]);
      yy.push_back(ys[i - 1]);
    }
    xx.push_back(xs[i]);
    yy.push_back(ys[i]);
  }
  line(xx, yy, ink, width);
}

void Plot::points(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, Mark mark, float radius) {
  const std::size_t count = std::min(xs.size(), ys.size());
  ImVec2 last(-1e9F, -1e9F);
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(xs[i]) || !std::isfinite(ys[i])) continue;
    const ImVec2 at(x(xs[i]), y(ys[i]));
    if (std::fabs(at.x - last.x) < 0.75F && std::fabs(at.y - last.y) < 0.75F) continue;
    shape(draw_, at, radius * scale(), ink, mark);
    last = at;
  }
}

void Plot::bar(double from, double to, double base, double value, std::uint32_t ink) {
  const float left = x(from);
  const float right = std::max(x(to) - 1, left + 1);
  draw_->AddRectFilled(ImVec2(left, std::min(y(base), y(value))), ImVec2(right, std::max(y(base), y(value))), ink);
}

void Plot::band(double band_low, double band_high, std::uint32_t ink) {
  if (!std::isfinite(band_low) || !std::isfinite(band_high)) return;
  draw_->AddRectFilled(ImVec2(low_.x, y(band_high)), ImVec2(high_.x, std::max(y(band_low), y(band_high) + 1)), ink);
}

void Plot::level(double value, std::uint32_t ink, std::string_view text) {
  if (!std::isfinite(value)) return;
  const float at = std::round(y(value));
  for (float left = low_.x; left < high_.x; left += px(8)) {
    draw_->AddLine(ImVec2(left, at), ImVec2(std::min(left + px(4), high_.x), at), ink, px(1));
  }
  ImGui::PushFont(fonts().small);
  const float width = ImGui::CalcTextSize(text.data(), text.data() + text.size()).x;
  const float line = ImGui::GetTextLineHeight();
  // Below the line: the labels of points stand above theirs.
  const float top = at + px(1) + line > high_.y ? at - line - px(1) : at + px(1);
  draw_->AddRectFilled(ImVec2(high_.x - width - px(7), top), ImVec2(high_.x - px(1), top + line),
                       color(Ink::kSurface, 0.8F), px(2));
  draw_->AddText(ImVec2(high_.x - width - px(4), top), ink, text.data(), text.data() + text.size());
  ImGui::PopFont();
}

void Plot::cursor(double value, std::uint32_t ink) {
  const float at = std::round(x(value));
  draw_->AddLine(ImVec2(at, low_.y), ImVec2(at, high_.y), ink, px(1));
}

void Plot::label(double at_x, double at_y, std::uint32_t ink, std::string_view text, bool left) {
  ImGui::PushFont(fonts().small);
  const float width = ImGui::CalcTextSize(text.data(), text.data() + text.size()).x;
  const float line = ImGui::GetTextLineHeight();
  const float right_of = x(at_x) + px(4);
  const float left_of = x(at_x) - px(4) - width;
  const bool on_left = left ? left_of >= low_.x : right_of + width > high_.x;
  const ImVec2 at(on_left ? left_of : right_of, std::max(low_.y, std::min(y(at_y), high_.y) - line));
  draw_->AddRectFilled(ImVec2(at.x - px(1), at.y), ImVec2(at.x + width + px(1), at.y + line),
                       color(Ink::kSurface, 0.8F), px(2));
  draw_->AddText(at, ink, text.data(), text.data() + text.size());
  ImGui::PopFont();
}

void draw_legend(std::span<const LegendItem> items) {
  ImGui::PushFont(fonts().small);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      ImGui::SameLine(0, px(14));
      const float need = px(16) + ImGui::CalcTextSize(items[i].text.c_str()).x;
      if (ImGui::GetContentRegionAvail().x < need) ImGui::NewLine();
    }
    const float line = ImGui::GetTextLineHeight();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImDrawList* draw = ImGui::GetWindowDrawList();
    if (items[i].square) {
      draw->AddRectFilled(ImVec2(at.x, at.y + line * 0.2F), ImVec2(at.x + line * 0.7F, at.y + line * 0.9F),
                          items[i].ink, px(2));
    } else {
      shape(draw, ImVec2(at.x + line * 0.4F, at.y + line * 0.55F), px(3.5F), items[i].ink, items[i].mark);
    }
    ImGui::Dummy(ImVec2(line, line));
    ImGui::SameLine(0, px(2));
    ImGui::PushStyleColor(ImGuiCol_Text, color(Ink::kMuted));
    ImGui::TextUnformatted(items[i].text.c_str());
    ImGui::PopStyleColor();
  }
  ImGui::PopFont();
}

}  // namespace mbb::viewer
