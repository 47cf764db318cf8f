// A plot: frame, grid and axes in readable units, and the marks drawn into it.
#pragma once

#include <imgui.h>

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "viewer/theme/palette.h"

namespace mbb::viewer {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  // Grows to hold `value`; what is not finite is left out.
  void add(double value);
  bool empty() const { return !(low <= high); }
  // Widened by a share of its length on both ends; never empty after it.
  Range padded(double share) const;
};

struct Tick {
  double at = 0;
  std::string label;
};
struct Ticks {
  std::vector<Tick> ticks;
  std::string unit;  // of the labels: "ms" for an axis in ns
};
// About `count` round steps over `range`; unit "ns", "bytes", "fraction" pick their own scale, others print as they
// are.
Ticks axis_ticks(Range range, int count, std::string_view unit);

enum class Mark : std::uint8_t { kDot, kDiamond, kCross };

class Plot {
 public:
  struct Axis {
    Range range;
    std::string unit;
    std::string title;
  };
  // Takes `size` at the cursor (0 width: all that is left). The plot area is clipped until destruction.
  Plot(const char* id, ImVec2 size, Axis x, Axis y);
  ~Plot();
  Plot(const Plot&) = delete;
  Plot& operator=(const Plot&) = delete;

  float x(double value) const;
  float y(double value) const;
  double value_x(float screen) const;
  double value_y(float screen) const;
  ImVec2 low() const { return low_; }    // left, top
  ImVec2 high() const { return high_; }  // right, bottom
  bool hovered() const { return hovered_; }
  bool clicked() const { return clicked_; }

  // Many points for one pixel column become its span from least to greatest.
  void line(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, float width = 1.5F);
  // A step curve: each value holds until the next.
  void steps(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, float width = 1.5F);
  void points(std::span<const double> xs, std::span<const double> ys, std::uint32_t ink, Mark mark,
              float radius = 2.5F);
  void bar(double from, double to, double base, double value, std::uint32_t ink);
  void band(double low, double high, std::uint32_t ink);                // horizontal, between two y
  void level(double value, std::uint32_t ink, std::string_view label);  // dashed horizontal line
  void cursor(double value, std::uint32_t ink);                         // vertical line
  // Beside a point, on a ground of its own, kept inside the plot. `left`: on its left where there is room.
  void label(double at_x, double at_y, std::uint32_t ink, std::string_view text, bool left = false);

 private:
  void draw_axes();

  ImDrawList* draw_;
  Axis x_, y_;
  ImVec2 low_, high_;
  bool hovered_ = false;
  bool clicked_ = false;
};

// A swatch, a sign and a word for each series.
struct LegendItem {
  std::string text;
  std::uint32_t ink = 0;
  Mark mark = Mark::kDot;
  bool square = false;
};
void draw_legend(std::span<const LegendItem> items);

}  // namespace mbb::viewer
