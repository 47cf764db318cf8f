// Sharing the width of a table.
#include "viewer/widgets/columns.h"

#include <algorithm>
#include <cmath>

namespace mbb::viewer {
namespace {

bool tells_nothing(std::string_view text) {
  return text.empty() || text == "-";
}

bool folded(const TableData& data, std::size_t column) {
  const Fold fold = data.columns[column].fold;
  if (fold == Fold::kNever || data.rows.empty()) return false;
  const std::string& first = data.rows.front()[column].text;
  const bool equal =
      std::all_of(data.rows.begin(), data.rows.end(), [&](const auto& row) { return row[column].text == first; });
  return equal && (tells_nothing(first) || fold == Fold::kWhenEqual);
}

// Lowers the widest of the columns to one common level until `excess` is gone or all are at their floor; returns what
// is left of it. A negative floor leaves a column alone.
float give(std::vector<float>& widths, std::span<const float> floors, float excess) {
  float low = 0;
  float high = 0;
  const auto taken_at = [&](float level) {
    float taken = 0;
    for (std::size_t i = 0; i < floors.size(); ++i) {
      if (floors[i] >= 0) taken += widths[i] - std::min(widths[i], std::max(level, floors[i]));
    }
    return taken;
  };
  for (const float width : widths) high = std::max(high, width);
  for (int round = 0; round < 24; ++round) {
    const float middle = (low + high) / 2;
    (taken_at(middle) >= excess ? low : high) = middle;
  }
  const float taken = taken_at(low);
  for (std::size_t i = 0; i < floors.size(); ++i) {
    if (floors[i] >= 0) widths[i] = std::min(widths[i], std::max(low, floors[i]));
  }
  return std::max(0.0F, excess - taken);
}

}  // namespace

std::vector<std::size_t> shown_columns(const TableData& data) {
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    if (!folded(data, c)) columns.push_back(c);
  }
  return columns;
}

std::vector<float> column_widths(std::span<const ColumnNeed> needs, float room) {
  std::vector<float> widths;
  float sum = 0;
  float flexible = 0;
  for (const ColumnNeed& need : needs) {
    widths.push_back(std::ceil(need.whole));
    sum += widths.back();
    flexible += need.flexible ? 1.0F : 0.0F;
  }
  if (sum <= room) {
    for (std::size_t i = 0; i < needs.size(); ++i) {
      if (needs[i].flexible) widths[i] += std::floor((room - sum) / flexible);
    }
    return widths;
  }
  const auto floors = [&](auto&& floor_of) {
    std::vector<float> out;
    for (const ColumnNeed& need : needs) out.push_back(floor_of(need));
    return out;
  };
  float excess = give(widths, floors([](const ColumnNeed& one) { return one.flexible ? one.least : -1; }), sum - room);
  if (excess > 0)
    excess = give(widths, floors([](const ColumnNeed& one) { return one.flexible ? -1 : one.least; }), excess);
  if (excess > 0) give(widths, floors([](const ColumnNeed&) { return 1.0F; }), excess);
  for (float& width : widths) width = std::max(1.0F, std::floor(width));
  return widths;
}

}  // namespace mbb::viewer
