// Descent through a lane's summaries.
#include "viewer/timeline/paint.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mbb::viewer {
namespace {

constexpr double kLeastNsPerPx = 0.01;
constexpr double kMostNsPerPx = 3.6e9;

class Painter {
 public:
  Painter(const Lane& lane, const TimeView& view, std::int64_t origin_ns, float width_px, std::vector<PaintBar>& out)
      : lane_(lane),
        out_(out),
        first_(out.size()),
        start_(view.start_ns + static_cast<double>(origin_ns)),
        px_per_ns_(1 / view.ns_per_px),
        width_(static_cast<double>(width_px)),
        end_(start_ + width_ * view.ns_per_px) {}

  std::size_t run() {
    if (!lane_.levels.empty()) {
      const std::size_t top = lane_.levels.size() - 1;
      for (std::size_t i = 0; i < lane_.levels[top].size(); ++i) node(top, i);
    }
    flush();
    return looked_;
  }

 private:
  void node(std::size_t level, std::size_t index) {
    ++looked_;
    const LaneNode& at = lane_.levels[level][index];
    if (static_cast<double>(at.end_ns) < start_ || static_cast<double>(at.start_ns) > end_) return;
    if (static_cast<double>(at.end_ns - at.start_ns) * px_per_ns_ < 1) {
      add(at.start_ns, at.busy_ns, at.shade);
      return;
    }
    const std::size_t below = level == 0 ? lane_.size() : lane_.levels[level - 1].size();
    const std::size_t last = std::min((index + 1) * kFan, below);
    for (std::size_t i = index * kFan; i < last; ++i) {
      if (level == 0)
        item(i);
      else
        node(level - 1, i);
    }
  }

  void item(std::size_t index) {
    ++looked_;
    const analysis::TimeInterval& time = lane_.times[index];
    if (static_cast<double>(time.end_ns) < start_ || static_cast<double>(time.start_ns) > end_) return;
    const double left = (static_cast<double>(time.start_ns) - start_) * px_per_ns_;
    const double right = (static_cast<double>(time.end_ns) - start_) * px_per_ns_;
    if (right - left < 1) {
      add(time.start_ns, time.end_ns - time.start_ns, lane_.shades[index]);
      return;
    }
    flush();
    PaintBar bar;
    bar.left = static_cast<float>(std::max(left, -2.0));
    bar.right = static_cast<float>(std::min(right, width_ + 2));
    bar.shade = lane_.shades[index];
    bar.item = static_cast<std::uint32_t>(index);
    out_.push_back(bar);
  }

  void add(std::int64_t start_ns, std::int64_t busy_ns, std::uint8_t shade) {
    const double at = std::floor((static_cast<double>(start_ns) - start_) * px_per_ns_);
    const int column = static_cast<int>(std::clamp(at, -2.0, width_ + 1));
    if (column != column_) {
      flush();
      column_ = column;
    }
    pending_ = true;
    busy_[shade] += busy_ns;
    total_ += busy_ns;
    touched_ |= 1ULL << shade;
  }

  void flush() {
    if (!pending_) return;
    pending_ = false;
    std::uint8_t best = 0;
    std::int64_t most = -1;
    for (std::uint64_t left = touched_; left != 0; left &= left - 1) {
      const auto shade = static_cast<std::uint8_t>(__builtin_ctzll(left));
      if (busy_[shade] > most) {
        most = busy_[shade];
        best = shade;
      }
      busy_[shade] = 0;
    }
    touched_ = 0;
    const double share = static_cast<double>(total_) * px_per_ns_;
    total_ = 0;
    const auto fill = static_cast<std::uint8_t>(std::clamp(std::lround(share * 15), 2L, 15L));
    const auto left = static_cast<float>(column_);
    if (out_.size() > first_) {
      PaintBar& last = out_.back();
      if (last.item == kNoItem && last.shade == best && last.fill == fill && last.right >= left) {
        last.right = left + 1;
        return;
      }
    }
    out_.push_back({left, left + 1, best, fill, kNoItem});
  }

  const Lane& lane_;
  std::vector<PaintBar>& out_;
  std::size_t first_;
  double start_;
  double px_per_ns_;
  double width_;
  double end_;
  std::size_t looked_ = 0;
  int column_ = -1000;
  bool pending_ = false;
  std::uint64_t touched_ = 0;
  std::int64_t total_ = 0;
  std::array<std::int64_t, kMaxShades> busy_{};
};

}  // namespace

void TimeView::zoom(double factor, double at_px) {
  const double fixed = to_ns(at_px);
  ns_per_px = std::clamp(ns_per_px * factor, kLeastNsPerPx, kMostNsPerPx);
  start_ns = fixed - at_px * ns_per_px;
}

void TimeView::fit(double from_ns, double to_ns_, double width_px) {
  const double width = std::max(width_px, 1.0);
  const double length = std::max(to_ns_ - from_ns, 1.0);
  ns_per_px = std::clamp(length * 1.04 / width, kLeastNsPerPx, kMostNsPerPx);
  start_ns = (from_ns + to_ns_) / 2 - ns_per_px * width / 2;
}

void TimeView::keep_inside(double from_ns, double to_ns_, double width_px) {
  const double margin = width_px * ns_per_px * 0.9;
  start_ns = std::clamp(start_ns, from_ns - margin, std::max(from_ns - margin, to_ns_ - width_px * ns_per_px * 0.1));
}

std::size_t paint_lane(const Lane& lane, const TimeView& view, std::int64_t origin_ns, float width_px,
                       std::vector<PaintBar>& out) {
  return Painter(lane, view, origin_ns, width_px, out).run();
}

}  // namespace mbb::viewer
