// Panel "sweep": the cells of run A as a matrix over two knobs, coloured by a metric, with the best one marked.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using baselines::Cell;
using baselines::Run;

const std::string* knob_of(const Cell& cell, const std::string& key) {
  for (const baselines::KnobValue& knob : cell.knobs) {
    if (knob.key == key) return &knob.value;
  }
  return nullptr;
}

// Knobs with more than one value among the cells, those with most values first.
std::vector<std::string> varying_knobs(const Run& run) {
  std::map<std::string, std::map<std::string, int>> values;
  for (const Cell& cell : run.cells) {
    for (const baselines::KnobValue& knob : cell.knobs) ++values[knob.key][knob.value];
  }
  std::vector<std::string> keys;
  for (const auto& [key, counts] : values) {
    if (counts.size() > 1) keys.push_back(key);
  }
  std::stable_sort(keys.begin(), keys.end(),
                   [&](const std::string& a, const std::string& b) { return values[a].size() > values[b].size(); });
  return keys;
}

// Numbers in their order, then texts in theirs.
bool value_before(const std::string& a, const std::string& b) {
  const std::optional<double> x = parse_double(a);
  const std::optional<double> y = parse_double(b);
  if (x.has_value() != y.has_value()) return x.has_value();
  return x ? *x < *y : a < b;
}

// The two knobs that lay the cells out best: most cells at a place of their own, then fewest empty places.
std::pair<std::string, std::string> best_axes(const Run& run, const std::vector<std::string>& knobs) {
  constexpr std::size_t kMost = 16;
  std::pair<std::string, std::string> best{knobs.front(), knobs.size() > 1 ? knobs[1] : ""};
  std::size_t best_filled = 0;
  std::size_t best_size = 0;
  for (std::size_t i = 0; i < std::min(knobs.size(), kMost); ++i) {
    for (std::size_t j = i + 1; j < std::min(knobs.size(), kMost); ++j) {
      std::set<std::string> xs;
      std::set<std::string> ys;
      std::set<std::pair<std::string, std::string>> filled;
      for (const Cell& cell : run.cells) {
        const std::string* x = knob_of(cell, knobs[i]);
        const std::string* y = knob_of(cell, knobs[j]);
        if (x == nullptr || y == nullptr) continue;
        xs.insert(*x);
        ys.insert(*y);
        filled.emplace(*x, *y);
      }
      const std::size_t size = xs.size() * ys.size();
      if (filled.size() < best_filled || (filled.size() == best_filled && size >= best_size)) continue;
      best = {knobs[i], knobs[j]};
      best_filled = filled.size();
      best_size = size;
    }
  }
  return best;
}

struct Matrix {
  std::vector<std::string> xs, ys;
  std::vector<std::vector<std::vector<const Cell*>>> cells;  // [y][x]
};

Matrix matrix_of(const Run& run, const std::string& key_x, const std::string& key_y) {
  Matrix matrix;
  const auto value = [](const Cell& cell, const std::string& key) {
    const std::string* found = key.empty() ? nullptr : knob_of(cell, key);
    return found == nullptr ? std::string(key.empty() ? "all" : "(unset)") : *found;
  };
  for (const Cell& cell : run.cells) {
    matrix.xs.push_back(value(cell, key_x));
    matrix.ys.push_back(value(cell, key_y));
  }
  for (std::vector<std::string>* list : {&matrix.xs, &matrix.ys}) {
    std::sort(list->begin(), list->end(), value_before);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  matrix.cells.assign(matrix.ys.size(), std::vector<std::vector<const Cell*>>(matrix.xs.size()));
  for (const Cell& cell : run.cells) {
    const auto x = std::find(matrix.xs.begin(), matrix.xs.end(), value(cell, key_x)) - matrix.xs.begin();
    const auto y = std::find(matrix.ys.begin(), matrix.ys.end(), value(cell, key_y)) - matrix.ys.begin();
    matrix.cells[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)].push_back(&cell);
  }
  return matrix;
}

double metric_value(const Cell& cell, const std::string& metric) {
  const baselines::Metric* found = cell.status == baselines::CellStatus::kOk ? analysis::find(cell, metric) : nullptr;
  return found == nullptr ? std::nan("") : found->value;
}

bool lower_is_better(const std::string& metric) {
  const analysis::MetricInfo* info = analysis::find_metric(metric);
  return info == nullptr || info->better != analysis::Better::kHigher;
}

class SweepPanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    if (session.selection.run.empty() && !session.runs.loading())
      return draw_empty("No run chosen", "Choose a sweep in the list of runs (key 1).");
    if (session.run_a.value() == nullptr) return draw_loading("reading the run");
    const Run& run = *session.run_a.value();
    if (built_ != session.run_a.value_key()) {
      knobs_ = varying_knobs(run);
      axes_ = knobs_.empty() ? std::pair<std::string, std::string>() : best_axes(run, knobs_);
      metrics_ = metric_names(run);
      built_ = session.run_a.value_key();
    }
    if (run.cells.size() < 2 || knobs_.empty())
      return draw_empty("No knob varies in this run",
                        "A sweep is a run with cells that differ in a knob: [sweep.NAME] in a suite file.");
    if (metrics_.empty()) return draw_empty("No metrics in this run", "None of its cells ended ok.");
    choose_axes(session.selection);
    draw_head(session);
    draw_matrix(session, matrix_of(run, session.selection.knob_x, session.selection.knob_y));
  }

 private:
  void choose_axes(Selection& selection) const {
    const auto known = [](const std::vector<std::string>& list, const std::string& item) {
      return std::find(list.begin(), list.end(), item) != list.end();
    };
    if (!known(knobs_, selection.knob_x)) std::tie(selection.knob_x, selection.knob_y) = axes_;
    if (!known(knobs_, selection.knob_y) || selection.knob_y == selection.knob_x) {
      selection.knob_y = axes_.second != selection.knob_x ? axes_.second : axes_.first;
      if (selection.knob_y == selection.knob_x) selection.knob_y.clear();
    }
    if (!known(metrics_, selection.metric))
      selection.metric = known(metrics_, "step_time") ? "step_time" : metrics_.front();
  }

  void combo(const char* label, const char* probe, std::string& value, const std::vector<std::string>& choices,
             bool metric) {
    muted(label);
    ImGui::SameLine(0, px(6));
    ImGui::SetNextItemWidth(px(230));
    const std::string shown = metric ? metric_title(value) : clean(value, 60);
    const bool open = ImGui::BeginCombo(fmt::format("##{}", probe).c_str(), shown.c_str());
    probe_item(probe);
    if (!open) return;
    for (const std::string& choice : choices) {
      const std::string text = metric ? metric_title(choice) : clean(choice, 60);
      if (ImGui::Selectable(fmt::format("{}##{}", text, choice).c_str(), choice == value)) value = choice;
      if (probe_recording()) probe_item(fmt::format("{}.{}", probe, choice));
    }
    ImGui::EndCombo();
  }

  void draw_head(Session& session) {
    combo("across", "sweep.x", session.selection.knob_x, knobs_, false);
    ImGui::SameLine(0, px(14));
    combo("down", "sweep.y", session.selection.knob_y, knobs_, false);
    ImGui::SameLine(0, px(14));
    combo("metric", "sweep.metric", session.selection.metric, metrics_, true);
    hover_text(metric_meaning(session.selection.metric));
    ImGui::Dummy(ImVec2(0, px(4)));
  }

  // The best cell of one place; others of the same place differ in further knobs.
  const Cell* best_of(const std::vector<const Cell*>& cells, const std::string& metric) const {
    const Cell* best = nullptr;
    for (const Cell* cell : cells) {
      const double value = metric_value(*cell, metric);
      if (!std::isfinite(value)) continue;
      if (best == nullptr ||
          (lower_is_better(metric) ? value < metric_value(*best, metric) : value > metric_value(*best, metric)))
        best = cell;
    }
    return best;
  }

  void draw_matrix(Session& session, const Matrix& matrix) {
    const std::string& metric = session.selection.metric;
    const Cell* best = nullptr;
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const auto& row : matrix.cells) {
      for (const auto& cells : row) {
        const Cell* here = best_of(cells, metric);
        if (here == nullptr) continue;
        low = std::min(low, metric_value(*here, metric));
        high = std::max(high, metric_value(*here, metric));
        best = best == nullptr ? here : best_of({best, here}, metric);
      }
    }
    probe_value("sweep.best", best == nullptr ? "" : best->name);
    probe_value("sweep.size", fmt::format("{}x{}", matrix.xs.size(), matrix.ys.size()));
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float head = px(170);
    const float width = std::clamp((room.x - head) / static_cast<float>(matrix.xs.size()), px(86), px(190));
    const float height = std::clamp((room.y - px(60)) / static_cast<float>(matrix.ys.size()), px(34), px(64));
    ImGui::BeginChild("matrix", ImVec2(0, room.y - px(28)), false, ImGuiWindowFlags_HorizontalScrollbar);
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImDrawList* draw = ImGui::GetWindowDrawList();
    // Short names of the knobs at the corner: down the left, across the top.
    const auto short_name = [](const std::string& key) { return clean(key.substr(key.rfind('.') + 1), 60); };
    const ImVec4 corner(at.x, at.y, at.x + head - px(6), at.y + px(18));
    draw->AddText(fonts().small, fonts().small->FontSize, at, color(Ink::kFaint),
                  ("\xE2\x86\x93 " + short_name(session.selection.knob_y)).c_str(), nullptr, 0, &corner);
    for (std::size_t x = 0; x < matrix.xs.size(); ++x) {
      draw->AddText(ImVec2(at.x + head + width * static_cast<float>(x) + px(8), at.y), color(Ink::kMuted),
                    clean(matrix.xs[x], 24).c_str());
    }
    for (std::size_t y = 0; y < matrix.ys.size(); ++y) {
      const float top = at.y + px(20) + height * static_cast<float>(y);
      draw->AddText(ImVec2(at.x, top + height / 2 - ImGui::GetTextLineHeight() / 2), color(Ink::kMuted),
                    clean(matrix.ys[y], 16).c_str());
      for (std::size_t x = 0; x < matrix.xs.size(); ++x) {
        const ImVec2 low_corner(at.x + head + width * static_cast<float>(x), top);
        draw_place(session, matrix.cells[y][x], low_corner, ImVec2(width - px(3), height - px(3)), best, low, high, x,
                   y);
      }
    }
    ImGui::SetCursorScreenPos(ImVec2(at.x, at.y));
    ImGui::Dummy(ImVec2(head + width * static_cast<float>(matrix.xs.size()),
                        px(24) + height * static_cast<float>(matrix.ys.size())));
    copy_menu("sweep", ImGui::IsWindowHovered(ImGuiHoveredFlags_AllowWhenBlockedByPopup),
              [&] { return matrix_table(session.selection, matrix, best); });
    ImGui::EndChild();
    muted(fmt::format("\xE2\x98\x85 best   across: {}   down: {}   brighter is better",
                      clean(session.selection.knob_x, 60), clean(session.selection.knob_y, 60)));
  }

  TableData matrix_table(const Selection& selection, const Matrix& matrix, const Cell* best) const {
    TableData data;
    data.columns.push_back(
        {clean(selection.knob_y, 60) + " \\ " + clean(selection.knob_x, 60), "", Align::kLeft, 0, "", false});
    for (const std::string& x : matrix.xs) data.columns.push_back({clean(x, 24), "", Align::kRight, 0, "", false});
    for (std::size_t y = 0; y < matrix.ys.size(); ++y) {
      std::vector<TableCell> row = {text_cell(matrix.ys[y])};
      for (const std::vector<const Cell*>& cells : matrix.cells[y]) {
        const Cell* shown = best_of(cells, selection.metric);
        const double value = shown == nullptr ? std::nan("") : metric_value(*shown, selection.metric);
        row.push_back(number_cell(shown != nullptr
                                      ? (shown == best ? "\xE2\x98\x85 " : "") + metric_text(selection.metric, value)
                                  : cells.empty() ? ""
                                                  : std::string(name(cells.front()->status)),
                                  value));
      }
      data.rows.push_back(std::move(row));
      data.keys.push_back(matrix.ys[y]);
    }
    return data;
  }

  void draw_place(Session& session, const std::vector<const Cell*>& cells, ImVec2 at, ImVec2 size, const Cell* best,
                  double low, double high, std::size_t x, std::size_t y) {
    if (cells.empty()) return;
    const std::string& metric = session.selection.metric;
    const Cell* shown = best_of(cells, metric);
    const Cell* any = shown != nullptr ? shown : cells.front();
    ImGui::SetCursorScreenPos(at);
    ImGui::PushID(any);
    if (ImGui::InvisibleButton("cell", size)) session.select_cell(any->name);
    if (probe_recording()) probe_item(fmt::format("sweep.cell.{}.{}", x, y));
    const bool hovered = ImGui::IsItemHovered();
    std::string tip = clean(any->name, 80) + "\n" + status_text(any->status);
    if (!any->reason.empty()) tip += ": " + clean(any->reason, 300);
    for (const std::string& name : metrics_) {
      if (const baselines::Metric* found = analysis::find(*any, name))
        tip += fmt::format("\n{}  {}", metric_title(name), metric_cell(found).text);
    }
    hover_text(tip);
    ImGui::PopID();
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const ImVec2 end(at.x + size.x, at.y + size.y);
    std::uint32_t ground = color(Ink::kRaised);
    std::string text = status_text(any->status);
    if (shown != nullptr) {
      const double value = metric_value(*shown, metric);
      const double share = high > low ? (value - low) / (high - low) : 1;
      ground = ramp(static_cast<float>(0.12 + 0.8 * (lower_is_better(metric) ? 1 - share : share)));
      text = (shown == best ? "\xE2\x98\x85 " : "") + metric_text(metric, value);
    }
    draw->AddRectFilled(at, end, ground, px(3));
    if (hovered || any == session.cell_a())
      draw->AddRect(at, end, color(any == session.cell_a() ? Ink::kText : Ink::kMuted), px(3), 0, px(2));
    const std::uint32_t ink = shown != nullptr ? text_on(ground) : color(status_ink(any->status));
    const ImVec4 clip(at.x, at.y, end.x - px(4), end.y);
    draw->AddText(fonts().bold, fonts().text->FontSize, ImVec2(at.x + px(8), at.y + px(4)), ink, text.c_str(), nullptr,
                  0, &clip);
    const std::string second =
        cells.size() > 1 ? fmt::format("{}  (best of {})", clean(any->name, 40), cells.size()) : clean(any->name, 40);
    draw->AddText(fonts().small, fonts().small->FontSize, ImVec2(at.x + px(8), at.y + px(20)), ink, second.c_str(),
                  nullptr, 0, &clip);
  }

  static std::string metric_text(const std::string& metric, double value) {
    const analysis::MetricInfo* info = analysis::find_metric(metric);
    return info != nullptr ? analysis::format_value(*info, value) : count_text(value);
  }

  std::vector<std::string> knobs_;
  std::pair<std::string, std::string> axes_;
  std::vector<std::string> metrics_;
  std::string built_;
};

}  // namespace

std::unique_ptr<Panel> make_sweep_panel() {
  return std::make_unique<SweepPanel>();
}

}  // namespace mbb::viewer
