// Panel "memory": where every tensor lies over a step, what is alive at the cursor and at the peak, plan beside seen.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/text.h"
#include "viewer/memory/shape.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/theme/work_ink.h"
#include "viewer/widgets/pill.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using baselines::MemoryMap;
using baselines::TensorBytes;

// Everything drawn of one map, made once beside the frames.
struct Arranged {
  MemoryMap map;
  MemoryCurve curve;
  Range offsets;
};

// An instant of a map: a position in the walk, or a time.
std::string instant_text(const MemoryMap& map, double at) {
  return map.unit == "ns" ? format_ns(at) : fmt::format("{} {:.0f}", clean(map.unit, 12), at);
}

std::string bytes_text(double bytes) {
  return bytes < 0 ? std::string("-") : format_bytes(bytes);
}

// Bytes of every category: planned and seen at the peak, and alive at `at`.
TableData categories_table(const Arranged& it, double at) {
  const bool seen = std::any_of(it.map.categories.begin(), it.map.categories.end(),
                                [](const baselines::CategoryBytes& one) { return one.measured_bytes >= 0; });
  TableData data;
  data.columns = {{"category", "", Align::kLeft, 0, "What memory is kept for.", false},
                  {"planned", "", Align::kRight, 76, "At the peak, as planned before anything ran.", false}};
  if (seen) data.columns.push_back({"seen", "", Align::kRight, 76, "At the peak, as recorded.", false});
  data.columns.push_back({"here", "", Align::kRight, 76, "Alive at the instant that the line marks.", false});
  const auto here = [&](const std::string& category) {
    for (std::size_t c = 0; c < it.curve.categories.size() && !it.curve.at.empty(); ++c) {
      if (it.curve.categories[c] == category) return it.curve.bytes[c][curve_index(it.curve, at)];
    }
    return -1.0;
  };
  const auto add = [&](const std::string& category, std::int64_t planned, std::int64_t measured) {
    std::vector<TableCell> row = {text_cell("\xE2\x96\xA0 " + clean(category, 40), category_ink(category)),
                                  number_cell(bytes_text(static_cast<double>(planned)), static_cast<double>(planned))};
    if (seen) row.push_back(number_cell(bytes_text(static_cast<double>(measured)), static_cast<double>(measured)));
    row.push_back(number_cell(bytes_text(here(category)), here(category)));
    data.rows.push_back(std::move(row));
    data.keys.push_back(category);
  };
  for (const baselines::CategoryBytes& one : it.map.categories)
    add(one.category, one.planned_bytes, one.measured_bytes);
  for (const std::string& category : it.curve.categories) {
    if (std::find(data.keys.begin(), data.keys.end(), category) == data.keys.end()) add(category, -1, -1);
  }
  return data;
}

TableData live_table(const MemoryMap& map, const std::vector<TensorBytes>& live) {
  TableData data;
  data.columns = {
      {"tensor", "", Align::kLeft, 0, "Dotted path of the tensor.", true},
      {"category", "", Align::kLeft, 96, "What it is kept for.", false},
      {"size", "", Align::kRight, 84, "Bytes in the arena.", false},
      {"share", "of peak", Align::kRight, 96, "Of the peak of this rank class.", false},
      {"alive", clean(map.unit, 12), Align::kRight, 124, "From its first writer to its last reader.", false},
      {"first writer", "", Align::kLeft, 0, "The op that writes it first.", true},
      {"last reader", "", Align::kLeft, 0, "The op that reads it last.", true}};
  for (const TensorBytes& tensor : live) {
    const auto bytes = static_cast<double>(tensor.bytes);
    const double share = map.peak_bytes > 0 ? bytes / static_cast<double>(map.peak_bytes) : std::nan("");
    std::vector<TableCell> row;
    row.push_back(text_cell(tensor.path));
    row.push_back(text_cell(tensor.category, category_ink(tensor.category)));
    row.push_back(number_cell(format_bytes(bytes), bytes));
    row.push_back(number_cell(percent_text(share), share));
    row.back().bar = std::isfinite(share) ? static_cast<float>(share) : -1;
    const bool ns = map.unit == "ns";
    row.push_back(number_cell(ns ? fmt::format("{} .. {}", format_ns(static_cast<double>(tensor.from)),
                                               format_ns(static_cast<double>(tensor.to)))
                                 : fmt::format("{} .. {}", tensor.from, tensor.to),
                              static_cast<double>(tensor.to - tensor.from), Ink::kMuted));
    row.push_back(text_cell(tensor.first_writer, Ink::kMuted));
    row.push_back(text_cell(tensor.last_reader, Ink::kMuted));
    data.rows.push_back(std::move(row));
    data.keys.push_back(tensor.path);
  }
  return data;
}

class MemoryPanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    const baselines::Cell* cell = session.cell_a();
    if (cell == nullptr) {
      if (session.run_a.loading() || session.runs.loading()) return draw_loading("reading the run");
      return draw_empty("No cell chosen", "Choose a run in the list of runs (key 1).");
    }
    const baselines::Launch* launch = session.launch_of(*cell);
    const std::vector<MemoryMap>& maps = maps_of(*cell, planned_ ? nullptr : launch);
    const MemoryMap* map = pick_map(maps, rank_class_);
    if (map == nullptr)
      return draw_empty("No memory map", "The run stored neither a plan nor a history: set record_memory_history.");
    arranged_.want(session.worker,
                   fmt::format("{}|{}|{}|{}|{}", session.run_a.value_key(), cell->name,
                               launch == nullptr ? -1 : launch->index, &maps == &cell->memory, map->rank_class),
                   [copy = *map](const std::atomic<bool>&) -> Result<Arranged> {
                     Arranged out{copy, memory_curve(copy), {}};
                     for (const TensorBytes& tensor : tensors_of(copy)) {
                       if (tensor.offset < 0) continue;
                       out.offsets.add(static_cast<double>(tensor.offset));
                       out.offsets.add(static_cast<double>(tensor.offset) + static_cast<double>(tensor.bytes));
                     }
                     return out;
                   });
    draw_head(*cell, launch, maps, *map);
    if (arranged_.error() != nullptr) return draw_error(*arranged_.error());
    if (arranged_.value() == nullptr) return draw_loading("arranging the map");
    draw_body(session, *arranged_.value());
  }

  bool loading() const override { return arranged_.loading(); }

 private:
  void draw_head(const baselines::Cell& cell, const baselines::Launch* launch, const std::vector<MemoryMap>& maps,
                 const MemoryMap& map) {
    heading(clean(cell.name, 80));
    ImGui::SameLine(0, px(12));
    const bool both = !cell.memory.empty() && &maps_of(cell, launch) != &cell.memory;
    if (both) {
      if (pill(planned_ ? "the plan" : "as seen")) planned_ = !planned_;
      probe_item("memory.plan");
      probe_value("memory.shows", planned_ ? "plan" : "seen");
      hover_text("The plan is made before anything runs; what was seen stands beside it.");
    } else {
      muted(&maps == &cell.memory ? "the plan" : "as seen");
    }
    for (const MemoryMap& one : maps) {
      ImGui::SameLine(0, px(6));
      const bool on = &one == &map;
      if (pill(fmt::format("{}##{}", clean(one.rank_class, 40), static_cast<const void*>(&one)), on))
        rank_class_ = one.rank_class;
      if (probe_recording()) probe_item(fmt::format("memory.class.{}", one.rank_class));
      if (&one - maps.data() > 14) break;
    }
    ImGui::SameLine(0, px(14));
    std::string text = (&maps == &cell.memory ? "arena " : "peak ") + format_bytes(static_cast<double>(map.peak_bytes));
    if (map.capacity_bytes > 0) {
      text += fmt::format(" of {} ({})", format_bytes(static_cast<double>(map.capacity_bytes)),
                          percent_text(static_cast<double>(map.peak_bytes) / static_cast<double>(map.capacity_bytes)));
    }
    ImGui::TextUnformatted(text.c_str());
    probe_value("memory.peak", text);
  }

  void draw_body(Session& session, const Arranged& it) {
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float side = room.x > px(900) ? px(340) : 0;
    const bool mapped = !it.offsets.empty();
    const float plots = room.y * 0.6F;
    ImGui::BeginChild("plots", ImVec2(room.x - (side > 0 ? side + px(10) : 0), plots), false,
                      ImGuiWindowFlags_NoScrollbar);
    const ImVec2 inner = ImGui::GetContentRegionAvail();
    if (mapped) draw_map(session, it, ImVec2(inner.x, inner.y * 0.56F));
    draw_curve(it, ImVec2(inner.x, mapped ? inner.y * 0.44F - px(6) : inner.y));
    ImGui::EndChild();
    if (side > 0) {
      ImGui::SameLine(0, px(10));
      ImGui::BeginChild("categories", ImVec2(side, plots), false);
      draw_categories(it);
      ImGui::EndChild();
    }
    draw_live(session, it);
  }

  Range times(const Arranged& it) const {
    Range range;
    range.add(it.curve.low());
    range.add(it.curve.high());
    for (const TensorBytes& tensor : tensors_of(it.map)) {
      range.add(static_cast<double>(tensor.from));
      range.add(static_cast<double>(tensor.to));
    }
    return range;
  }

  // The instant looked at: where it was clicked, else the peak.
  double instant(const Arranged& it) const {
    if (cursor_ >= 0 && cursor_of_ == arranged_.value_key()) return cursor_;
    return it.curve.at.empty() ? 0 : it.curve.at[it.curve.peak];
  }

  void take_click(const Plot& plot) {
    if (!plot.clicked()) return;
    cursor_ = std::max(0.0, plot.value_x(ImGui::GetIO().MousePos.x));
    cursor_of_ = arranged_.value_key();
  }

  void draw_map(Session& session, const Arranged& it, ImVec2 size) {
    Plot plot("memory.map", size, {times(it).padded(0.01), it.map.unit, it.map.unit},
              {Range{0, it.offsets.high * 1.03}, "bytes", "offset"});
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const TensorBytes* hovered = nullptr;
    const ImVec2 mouse = ImGui::GetIO().MousePos;
    for (const TensorBytes& tensor : tensors_of(it.map)) {
      if (tensor.offset < 0 || tensor.to < tensor.from) continue;
      const ImVec2 low(plot.x(static_cast<double>(tensor.from)),
                       plot.y(static_cast<double>(tensor.offset) + static_cast<double>(tensor.bytes)));
      const ImVec2 high(std::max(plot.x(static_cast<double>(tensor.to)), low.x + 1),
                        plot.y(static_cast<double>(tensor.offset)));
      if (high.y - low.y < 0.2F || high.x < plot.low().x || low.x > plot.high().x) continue;
      const bool chosen = !session.selection.op.empty() &&
                          (tensor.path == session.selection.op || tensor.first_writer == session.selection.op ||
                           tensor.last_reader == session.selection.op);
      draw->AddRectFilled(low, high, color(category_ink(tensor.category), chosen ? 1.0F : 0.72F));
      if (high.y - low.y > 3 && high.x - low.x > 3)
        draw->AddRect(low, high, color(chosen ? Ink::kText : Ink::kSurface));
      if (plot.hovered() && mouse.x >= low.x && mouse.x <= high.x && mouse.y >= low.y && mouse.y <= high.y)
        hovered = &tensor;
      if (high.x - low.x > px(60) && high.y - low.y > px(13)) {
        const ImVec4 clip(low.x, low.y, high.x - px(2), high.y);
        draw->AddText(fonts().small, fonts().small->FontSize,
                      ImVec2(std::max(low.x, plot.low().x) + px(4), low.y + px(1)),
                      text_on(color(category_ink(tensor.category))), clean(tensor.path, 80).c_str(), nullptr, 0, &clip);
      }
    }
    plot.cursor(instant(it), color(Ink::kAccent));
    if (hovered != nullptr) {
      ImGui::BeginTooltip();
      heading(clean(hovered->path, 160));
      ImGui::TextUnformatted(
          fmt::format("{}, {}", format_bytes(static_cast<double>(hovered->bytes)), clean(hovered->category, 60))
              .c_str());
      muted(fmt::format("{} to {}", instant_text(it.map, static_cast<double>(hovered->from)),
                        instant_text(it.map, static_cast<double>(hovered->to))));
      muted(fmt::format("written by {}, last read by {}", clean(hovered->first_writer, 100),
                        clean(hovered->last_reader, 100)));
      ImGui::EndTooltip();
      if (plot.clicked()) session.selection.op = hovered->first_writer.empty() ? hovered->path : hovered->first_writer;
    }
    take_click(plot);
  }

  void draw_curve(const Arranged& it, ImVec2 size) {
    const MemoryCurve& curve = it.curve;
    Range ys{0, 0};
    for (const double value : curve.total) ys.add(value);
    ys.add(static_cast<double>(it.map.peak_bytes));
    if (it.map.capacity_bytes > 0 && static_cast<double>(it.map.capacity_bytes) < ys.high * 3)
      ys.add(static_cast<double>(it.map.capacity_bytes));
    Plot plot("memory.curve", size, {times(it).padded(0.01), it.map.unit, it.map.unit},
              {Range{0, ys.high * 1.08 + 1}, "bytes", "alive"});
    // Stacked, drawn per pixel column: the fullest moment of each, so that a short peak is not lost between two.
    const int columns = std::max(1, static_cast<int>(plot.high().x - plot.low().x));
    ImDrawList* draw = ImGui::GetWindowDrawList();
    std::size_t at = 0;
    const double end = times(it).high;
    for (int column = 0; column < columns && !curve.at.empty(); ++column) {
      const float x = plot.low().x + static_cast<float>(column);
      const double value = plot.value_x(x + 1);
      if (value < curve.low() || plot.value_x(x) > end) continue;
      std::size_t fullest = at;
      while (at + 1 < curve.at.size() && curve.at[at + 1] <= value) {
        ++at;
        if (curve.total[at] > curve.total[fullest]) fullest = at;
      }
      double base = 0;
      for (std::size_t c = 0; c < curve.categories.size(); ++c) {
        const double top = base + curve.bytes[c][fullest];
        if (top > base)
          draw->AddRectFilled(ImVec2(x, plot.y(top)), ImVec2(x + 1, plot.y(base)),
                              color(category_ink(curve.categories[c]), 0.85F));
        base = top;
      }
    }
    if (it.map.capacity_bytes > 0)
      plot.level(static_cast<double>(it.map.capacity_bytes), color(Ink::kSlower),
                 "capacity " + format_bytes(static_cast<double>(it.map.capacity_bytes)));
    plot.level(static_cast<double>(it.map.peak_bytes), color(Ink::kText, 0.7F),
               (it.map.unit == "op" ? "arena " : "peak ") + format_bytes(static_cast<double>(it.map.peak_bytes)));
    plot.cursor(instant(it), color(Ink::kAccent));
    take_click(plot);
  }

  void draw_categories(const Arranged& it) {
    const std::string key = fmt::format("{}|{}", arranged_.value_key(), instant(it));
    if (key != categories_of_) {
      categories_ = categories_table(it, instant(it));
      categories_state_.dirty = true;
      categories_of_ = key;
    }
    draw_table("categories", categories_, categories_state_, {});
  }

  void draw_live(Session& session, const Arranged& it) {
    const double at = instant(it);
    const bool peak = cursor_ < 0 || cursor_of_ != arranged_.value_key();
    const std::string key = fmt::format("{}|{}", arranged_.value_key(), at);
    if (key != live_of_) {
      std::vector<TensorBytes> live;
      const std::vector<TensorBytes>& tensors = tensors_of(it.map);
      if (peak && !it.map.live_at_peak.empty()) {
        live = it.map.live_at_peak;  // as the run found it: persistent tensors are alive before their first writer
      } else {
        for (const std::uint32_t i : live_at(it.map, at)) live.push_back(tensors[i]);
      }
      live_ = live_table(it.map, live);
      live_of_ = key;
      live_state_.dirty = true;
    }
    heading(peak ? "alive at the peak" : "alive at " + instant_text(it.map, at));
    ImGui::SameLine(0, px(10));
    muted(fmt::format("{} tensors", live_.rows.size()));
    ImGui::SameLine(0, px(10));
    draw_search(session, "memory.search", "find a tensor", live_state_.filter, 200);
    probe_value("memory.live", static_cast<long long>(live_.rows.size()));
    if (it.map.tensors.empty()) {
      ImGui::SameLine(0, px(10));
      badge("only tensors alive at the peak were stored", color(Ink::kWarning));
    }
    if (!peak) {
      ImGui::SameLine(0, px(10));
      if (pill("back to the peak")) cursor_ = -1;
      probe_item("memory.peak.button");
    }
    TableLook look;
    look.selected = session.selection.op;
    const TableEvents events = draw_table("live", live_, live_state_, look);
    if (events.clicked) session.selection.op = live_.keys[*events.clicked];
  }

  Query<Arranged> arranged_;
  std::string rank_class_;
  bool planned_ = false;
  double cursor_ = -1;
  std::string cursor_of_;
  TableData categories_;
  TableState categories_state_;
  std::string categories_of_;
  TableData live_;
  TableState live_state_;
  std::string live_of_;
};

}  // namespace

std::unique_ptr<Panel> make_memory_panel() {
  return std::make_unique<MemoryPanel>();
}

}  // namespace mbb::viewer
