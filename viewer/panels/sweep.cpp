// Panel "sweep": the cells of run A as matrices over two knobs, coloured by a metric, the best of equal work marked.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/fit.h"
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

// What a step computes, which no choice of axes changes: times of unequal work are not set against each other.
using WorkKey = std::tuple<std::string, std::int64_t, double>;
WorkKey work_of(const Cell& cell) {
  return {cell.model, cell.work.tokens_per_step, cell.work.flops_per_token_causal};
}

// True for knobs that say what is computed: they may never hide behind another knob.
bool makes_work(const std::string& key) {
  const std::string_view section = std::string_view(key).substr(0, key.find('.'));
  return section == "model" || section == "train" || section == "data" || section == "packing";
}

// True where every value of `axis` comes with one value of `key`.
bool follows(const Run& run, const std::string& key, const std::string& axis) {
  std::map<std::string, std::string> seen;
  for (const Cell& cell : run.cells) {
    const std::string* at = knob_of(cell, axis);
    const std::string* value = knob_of(cell, key);
    const std::string text = value == nullptr ? "" : *value;
    if (at == nullptr || seen.try_emplace(*at, text).first->second != text) return false;
  }
  return true;
}

struct Axes {
  std::string x, y;                    // knobs; y may be empty
  std::vector<std::string> with;       // knobs that only ever change together with one of them
  std::vector<std::string> splitting;  // the others that vary: cells that differ in them stand in matrices of their own
};

Axes axes_of(const Run& run, const std::vector<std::string>& knobs, const std::string& x, const std::string& y) {
  Axes axes{x, y, {}, {}};
  for (const std::string& key : knobs) {
    if (key == x || key == y) continue;
    const bool together = !makes_work(key) && (follows(run, key, x) || (!y.empty() && follows(run, key, y)));
    (together ? axes.with : axes.splitting).push_back(key);
  }
  return axes;
}

// "model=llama3-8b", "bucket_size=0", ...: what puts a cell into its matrix.
std::vector<std::pair<std::string, std::string>> place_of(const Cell& cell, const Axes& axes) {
  std::vector<std::pair<std::string, std::string>> place;
  if (axes.x != "model.name" && axes.y != "model.name") place.emplace_back("model", cell.model);
  place.emplace_back("on", std::string(name(cell.result_class)) + (cell.device.empty() ? "" : "/" + cell.device));
  for (const std::string& key : axes.splitting) {
    if (key == "model.name") continue;  // said by the model
    const std::string* value = knob_of(cell, key);
    place.emplace_back(key.substr(key.rfind('.') + 1), value == nullptr ? "(unset)" : *value);
  }
  return place;
}

// Cells that differ in the two knobs of the axes, and in nothing else but what goes with them.
struct Matrix {
  std::string title;  // what sets it apart from the run's other matrices
  std::vector<std::string> xs, ys;
  std::vector<std::vector<std::vector<const Cell*>>> cells;  // [y][x]
  std::size_t count = 0;
};

std::string axis_value(const Cell& cell, const std::string& key) {
  const std::string* found = key.empty() ? nullptr : knob_of(cell, key);
  return found == nullptr ? std::string(key.empty() ? "all" : "(unset)") : *found;
}

Matrix matrix_of(const std::vector<const Cell*>& members, const Axes& axes) {
  Matrix matrix;
  matrix.count = members.size();
  for (const Cell* cell : members) {
    matrix.xs.push_back(axis_value(*cell, axes.x));
    matrix.ys.push_back(axis_value(*cell, axes.y));
  }
  for (std::vector<std::string>* list : {&matrix.xs, &matrix.ys}) {
    std::sort(list->begin(), list->end(), value_before);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  matrix.cells.assign(matrix.ys.size(), std::vector<std::vector<const Cell*>>(matrix.xs.size()));
  for (const Cell* cell : members) {
    const auto x = std::find(matrix.xs.begin(), matrix.xs.end(), axis_value(*cell, axes.x)) - matrix.xs.begin();
    const auto y = std::find(matrix.ys.begin(), matrix.ys.end(), axis_value(*cell, axes.y)) - matrix.ys.begin();
    matrix.cells[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)].push_back(cell);
  }
  return matrix;
}

// The cells of a run over two axes.
struct Layout {
  std::vector<Matrix> matrices;    // largest first
  std::vector<const Cell*> alone;  // no other cell differs from it in the axes only
};

Layout layout_of(const Run& run, const Axes& axes) {
  using Place = std::vector<std::pair<std::string, std::string>>;
  std::map<Place, std::vector<const Cell*>> members;
  for (const Cell& cell : run.cells) members[place_of(cell, axes)].push_back(&cell);
  Layout out;
  std::map<std::string, std::set<std::string>> values;
  for (const auto& [place, cells] : members) {
    if (cells.size() < 2) {
      out.alone.push_back(cells.front());
      continue;
    }
    for (const auto& [what, value] : place) values[what].insert(value);
  }
  for (const auto& [place, cells] : members) {
    if (cells.size() < 2) continue;
    Matrix matrix = matrix_of(cells, axes);
    for (const auto& [what, value] : place) {
      const bool apart = values[what].size() > 1;
      if (!apart && (what != "model" || out.alone.empty())) continue;
      if (!matrix.title.empty()) matrix.title += "   ";
      matrix.title += what == "model" || what == "on" ? value : what + " " + value;
    }
    out.matrices.push_back(std::move(matrix));
  }
  std::stable_sort(out.matrices.begin(), out.matrices.end(),
                   [](const Matrix& a, const Matrix& b) { return a.count > b.count; });
  std::stable_sort(out.alone.begin(), out.alone.end(),
                   [](const Cell* a, const Cell* b) { return a->index < b->index; });
  return out;
}

// The two knobs that explain most: fewest matrices, then fewest empty places.
std::pair<std::string, std::string> best_axes(const Run& run, const std::vector<std::string>& knobs) {
  constexpr std::size_t kMost = 16;
  std::pair<std::string, std::string> best{knobs.front(), knobs.size() > 1 ? knobs[1] : ""};
  std::pair<std::size_t, std::size_t> best_score{std::numeric_limits<std::size_t>::max(), 0};
  for (std::size_t i = 0; i < std::min(knobs.size(), kMost); ++i) {
    for (std::size_t j = i + 1; j < std::min(knobs.size(), kMost); ++j) {
      const Layout layout = layout_of(run, axes_of(run, knobs, knobs[i], knobs[j]));
      std::size_t places = 0;
      for (const Matrix& matrix : layout.matrices) places += matrix.xs.size() * matrix.ys.size();
      const std::pair<std::size_t, std::size_t> score{layout.matrices.size() + layout.alone.size(), places};
      if (score >= best_score) continue;
      best = {knobs[i], knobs[j]};
      best_score = score;
    }
  }
  return best;
}

double metric_value(const Cell& cell, const std::string& metric) {
  const baselines::Metric* found = cell.status == baselines::CellStatus::kOk ? analysis::find(cell, metric) : nullptr;
  return found == nullptr ? std::nan("") : found->value;
}

bool lower_is_better(const std::string& metric) {
  const analysis::MetricInfo* info = analysis::find_metric(metric);
  return info == nullptr || info->better != analysis::Better::kHigher;
}

// What is best among the cells of one matrix that do equal work, and how far their values reach.
struct Contest {
  const Cell* best = nullptr;  // none where a cell has no rival
  int rivals = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
};
using Contests = std::map<WorkKey, Contest>;

bool better(const std::string& metric, double value, double than) {
  return lower_is_better(metric) ? value < than : value > than;
}

// The best cell of one place; more than one stands there only where their knobs are equal.
const Cell* best_of(const std::vector<const Cell*>& cells, const std::string& metric) {
  const Cell* best = nullptr;
  for (const Cell* cell : cells) {
    const double value = metric_value(*cell, metric);
    if (!std::isfinite(value)) continue;
    if (best == nullptr || better(metric, value, metric_value(*best, metric))) best = cell;
  }
  return best;
}

Contests contests_of(const Matrix& matrix, const std::string& metric) {
  Contests contests;
  for (const auto& row : matrix.cells) {
    for (const auto& cells : row) {
      const Cell* here = best_of(cells, metric);
      if (here == nullptr) continue;
      const double value = metric_value(*here, metric);
      Contest& contest = contests[work_of(*here)];
      if (contest.best == nullptr || better(metric, value, metric_value(*contest.best, metric))) contest.best = here;
      contest.low = std::min(contest.low, value);
      contest.high = std::max(contest.high, value);
      ++contest.rivals;
    }
  }
  for (auto& [work, contest] : contests) {
    if (contest.rivals < 2) contest.best = nullptr;
  }
  return contests;
}

std::string metric_text(const std::string& metric, double value) {
  const analysis::MetricInfo* info = analysis::find_metric(metric);
  return info != nullptr ? analysis::format_value(*info, value) : count_text(value);
}

std::string short_name(const std::string& key) {
  return clean(key.substr(key.rfind('.') + 1), 60);
}

// Text at `at`, cut to `width`.
void put(ImFont* font, float size, ImVec2 at, std::uint32_t ink, std::string_view text, float width) {
  const std::string fitted = fit_text(*font, size, text, width);
  ImGui::GetWindowDrawList()->AddText(font, size, at, ink, fitted.c_str());
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
      best_axes_ = knobs_.empty() ? std::pair<std::string, std::string>() : best_axes(run, knobs_);
      metrics_ = metric_names(run);
      built_ = session.run_a.value_key();
      run_ = session.run_a.share();  // the layout points into it
      laid_out_ = false;
    }
    if (run.cells.size() < 2 || knobs_.empty())
      return draw_empty("No knob varies in this run",
                        "A sweep is a run with cells that differ in a knob: [sweep.NAME] in a suite file.");
    if (metrics_.empty()) return draw_empty("No metrics in this run", "None of its cells ended ok.");
    choose_axes(session.selection);
    draw_head(session);
    if (!laid_out_ || axes_.x != session.selection.knob_x || axes_.y != session.selection.knob_y) {
      axes_ = axes_of(*run_, knobs_, session.selection.knob_x, session.selection.knob_y);
      layout_ = layout_of(*run_, axes_);
      laid_out_ = true;
    }
    draw_matrices(session);
  }

 private:
  void choose_axes(Selection& selection) const {
    const auto known = [](const std::vector<std::string>& list, const std::string& item) {
      return std::find(list.begin(), list.end(), item) != list.end();
    };
    if (!known(knobs_, selection.knob_x)) std::tie(selection.knob_x, selection.knob_y) = best_axes_;
    if (!known(knobs_, selection.knob_y) || selection.knob_y == selection.knob_x) {
      selection.knob_y = best_axes_.second != selection.knob_x ? best_axes_.second : best_axes_.first;
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
    ImGui::AlignTextToFramePadding();
    combo("across", "sweep.x", session.selection.knob_x, knobs_, false);
    ImGui::SameLine(0, px(14));
    combo("down", "sweep.y", session.selection.knob_y, knobs_, false);
    ImGui::SameLine(0, px(14));
    combo("metric", "sweep.metric", session.selection.metric, metrics_, true);
    hover_text(metric_meaning(session.selection.metric));
    ImGui::Dummy(ImVec2(0, px(4)));
  }

  // Sizes that all matrices share, so that the eye compares them: as large as the room allows.
  struct Sizes {
    float head = 0;
    ImVec2 cell;
    float title = 0;
    float top = 0;  // the row of the values across
    float gap = 0;
  };

  Sizes sizes_in(ImVec2 room) const {
    Sizes sizes;
    sizes.title = layout_.matrices.empty() || layout_.matrices.front().title.empty() ? 0 : px(22);
    sizes.top = px(34);
    sizes.gap = px(14);
    std::size_t widest = 1;
    std::size_t rows = 0;
    float longest = ImGui::CalcTextSize(("\xE2\x86\x93 " + short_name(axes_.y)).c_str()).x;
    for (const Matrix& matrix : layout_.matrices) {
      widest = std::max(widest, matrix.xs.size());
      rows += matrix.ys.size();
      for (const std::string& y : matrix.ys) longest = std::max(longest, ImGui::CalcTextSize(clean(y, 40).c_str()).x);
    }
    sizes.head = std::clamp(longest + px(16), px(70), std::min(px(220), room.x * 0.3F));
    sizes.cell.x = std::clamp((room.x - sizes.head - px(12)) / static_cast<float>(widest), px(96), px(280));
    // The cells that stand alone take one line of cards below, as far as they can.
    const float cards = layout_.alone.empty() ? 0 : sizes.gap + px(22);
    rows += layout_.alone.empty() ? 0 : 1;
    const float other = (sizes.title + sizes.top + sizes.gap) * static_cast<float>(layout_.matrices.size()) + cards;
    sizes.cell.y = std::clamp((room.y - other) / static_cast<float>(std::max<std::size_t>(rows, 1)), px(40), px(88));
    return sizes;
  }

  void draw_matrices(Session& session) {
    const std::string& metric = session.selection.metric;
    std::vector<Contests> contests;
    for (const Matrix& matrix : layout_.matrices) contests.push_back(contests_of(matrix, metric));
    probe_value("sweep.matrices", static_cast<long long>(layout_.matrices.size()));
    probe_value("sweep.alone", static_cast<long long>(layout_.alone.size()));
    for (std::size_t i = 0; i < contests.size(); ++i) probe_best(i, contests[i]);
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float foot = ImGui::GetTextLineHeightWithSpacing() + px(4);
    ImGui::BeginChild("matrices", ImVec2(0, room.y - foot), false, ImGuiWindowFlags_HorizontalScrollbar);
    const Sizes sizes = sizes_in(ImGui::GetContentRegionAvail());
    for (std::size_t i = 0; i < contests.size(); ++i) draw_matrix(session, layout_.matrices[i], contests[i], sizes, i);
    draw_alone(session, sizes);
    copy_menu("sweep", ImGui::IsWindowHovered(ImGuiHoveredFlags_AllowWhenBlockedByPopup),
              [&] { return matrices_table(metric, contests); });
    ImGui::EndChild();
    draw_foot();
  }

  void probe_best(std::size_t number, const Contests& contests) const {
    std::string names;
    for (const auto& [work, contest] : contests) {
      if (contest.best != nullptr) names += (names.empty() ? "" : " ") + contest.best->name;
    }
    const Matrix& matrix = layout_.matrices[number];
    const std::string size = fmt::format("{}x{}", matrix.xs.size(), matrix.ys.size());
    probe_value(number == 0 ? "sweep.best" : fmt::format("sweep.best.{}", number), names);
    probe_value(number == 0 ? "sweep.size" : fmt::format("sweep.size.{}", number), size);
  }

  void draw_foot() const {
    std::string text = "\xE2\x98\x85 best of equal work (model, tokens, FLOPs); brighter is better";
    if (!axes_.with.empty()) {
      text += "   changing with the axes:";
      for (const std::string& key : axes_.with) text += " " + short_name(key);
    }
    const std::string fitted = fit_text(*fonts().text, fonts().text->FontSize, text, ImGui::GetContentRegionAvail().x);
    muted(fitted);
    if (fitted != text) hover_text(text);
  }

  void draw_matrix(Session& session, const Matrix& matrix, const Contests& contests, const Sizes& sizes,
                   std::size_t number) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float small = fonts().small->FontSize;
    const float right = at.x + ImGui::GetContentRegionAvail().x;
    if (sizes.title > 0)
      put(fonts().bold, fonts().text->FontSize, at, color(Ink::kText), clean(matrix.title, 400), right - at.x);
    const float top = at.y + sizes.title;
    // The knobs at the corner: down the left, across the top.
    put(fonts().small, small, ImVec2(at.x + sizes.head + px(8), top), color(Ink::kMuted),
        "\xE2\x86\x92 " + short_name(axes_.x), right - at.x - sizes.head - px(8));
    put(fonts().small, small, ImVec2(at.x, top + px(16)), color(Ink::kMuted),
        axes_.y.empty() ? "" : "\xE2\x86\x93 " + short_name(axes_.y), sizes.head - px(8));
    for (std::size_t x = 0; x < matrix.xs.size(); ++x) {
      put(fonts().text, fonts().text->FontSize,
          ImVec2(at.x + sizes.head + sizes.cell.x * static_cast<float>(x) + px(8), top + px(14)), color(Ink::kMuted),
          clean(matrix.xs[x], 60), sizes.cell.x - px(12));
    }
    for (std::size_t y = 0; y < matrix.ys.size(); ++y) {
      const float row = top + sizes.top + sizes.cell.y * static_cast<float>(y);
      put(fonts().text, fonts().text->FontSize, ImVec2(at.x, row + (sizes.cell.y - ImGui::GetTextLineHeight()) / 2),
          color(Ink::kMuted), clean(matrix.ys[y], 60), sizes.head - px(8));
      for (std::size_t x = 0; x < matrix.xs.size(); ++x) {
        const ImVec2 corner(at.x + sizes.head + sizes.cell.x * static_cast<float>(x), row);
        const std::string probe =
            number == 0 ? fmt::format("sweep.cell.{}.{}", x, y) : fmt::format("sweep.cell.{}.{}.{}", number, x, y);
        draw_place(session, matrix.cells[y][x], contests, corner, ImVec2(sizes.cell.x - px(3), sizes.cell.y - px(3)),
                   probe);
      }
    }
    ImGui::SetCursorScreenPos(at);
    ImGui::Dummy(ImVec2(sizes.head + sizes.cell.x * static_cast<float>(matrix.xs.size()),
                        sizes.title + sizes.top + sizes.cell.y * static_cast<float>(matrix.ys.size()) + sizes.gap -
                            ImGui::GetStyle().ItemSpacing.y));
  }

  // Cards without a scale of colours: nothing here is comparable.
  void draw_alone(Session& session, const Sizes& sizes) {
    if (layout_.alone.empty()) return;
    muted(layout_.matrices.empty() ? "No two cells differ in these knobs only."
                                   : "alone: no other cell differs from it in these knobs only");
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x;
    const auto across = static_cast<std::size_t>(std::max(1.0F, std::floor(width / sizes.cell.x)));
    for (std::size_t i = 0; i < layout_.alone.size(); ++i) {
      const ImVec2 corner(at.x + sizes.cell.x * static_cast<float>(i % across),
                          at.y + sizes.cell.y * static_cast<float>(i / across));
      draw_place(session, {layout_.alone[i]}, {}, corner, ImVec2(sizes.cell.x - px(3), sizes.cell.y - px(3)),
                 fmt::format("sweep.alone.{}", i));
    }
    ImGui::SetCursorScreenPos(at);
    const auto lines = static_cast<float>((layout_.alone.size() + across - 1) / across);
    ImGui::Dummy(ImVec2(width, sizes.cell.y * lines));
  }

  // One line a row of every matrix; what a matrix has not in common with the others leads it.
  TableData matrices_table(const std::string& metric, const std::vector<Contests>& contests) const {
    TableData data;
    std::vector<std::string> xs;
    for (const Matrix& matrix : layout_.matrices) xs.insert(xs.end(), matrix.xs.begin(), matrix.xs.end());
    for (const Cell* cell : layout_.alone) xs.push_back(axis_value(*cell, axes_.x));
    std::sort(xs.begin(), xs.end(), value_before);
    xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
    const bool many = layout_.matrices.size() + layout_.alone.size() > 1;
    if (many) data.columns.push_back({"matrix", "", Align::kLeft, 0, "", false});
    data.columns.push_back({clean(axes_.y, 60) + " \\ " + clean(axes_.x, 60), "", Align::kLeft, 0, "", false});
    for (const std::string& x : xs) data.columns.push_back({clean(x, 60), "", Align::kRight, 0, "", false});
    for (std::size_t i = 0; i < layout_.matrices.size(); ++i) {
      const Matrix& matrix = layout_.matrices[i];
      for (std::size_t y = 0; y < matrix.ys.size(); ++y) {
        std::vector<TableCell> row;
        if (many) row.push_back(text_cell(matrix.title));
        row.push_back(text_cell(matrix.ys[y]));
        for (const std::string& x : xs) {
          const auto found = std::find(matrix.xs.begin(), matrix.xs.end(), x);
          row.push_back(found == matrix.xs.end()
                            ? text_cell("")
                            : place_cell(matrix.cells[y][static_cast<std::size_t>(found - matrix.xs.begin())], metric,
                                         contests[i]));
        }
        data.rows.push_back(std::move(row));
        data.keys.push_back(matrix.title + "|" + matrix.ys[y]);
      }
    }
    for (const Cell* cell : layout_.alone) {
      std::vector<TableCell> row;
      if (many) row.push_back(text_cell("alone: " + cell->name));
      row.push_back(text_cell(axis_value(*cell, axes_.y)));
      for (const std::string& x : xs)
        row.push_back(axis_value(*cell, axes_.x) == x ? place_cell({cell}, metric, {}) : text_cell(""));
      data.rows.push_back(std::move(row));
      data.keys.push_back("alone|" + cell->name);
    }
    return data;
  }

  static TableCell place_cell(const std::vector<const Cell*>& cells, const std::string& metric,
                              const Contests& contests) {
    const Cell* shown = best_of(cells, metric);
    if (shown == nullptr) return text_cell(cells.empty() ? "" : name(cells.front()->status));
    const double value = metric_value(*shown, metric);
    const auto contest = contests.find(work_of(*shown));
    const bool best = contest != contests.end() && contest->second.best == shown;
    return number_cell((best ? "\xE2\x98\x85 " : "") + metric_text(metric, value), value);
  }

  void draw_place(Session& session, const std::vector<const Cell*>& cells, const Contests& contests, ImVec2 at,
                  ImVec2 size, const std::string& probe) {
    if (cells.empty()) return;
    const std::string& metric = session.selection.metric;
    const Cell* shown = best_of(cells, metric);
    const Cell* any = shown != nullptr ? shown : cells.front();
    ImGui::SetCursorScreenPos(at);
    ImGui::PushID(any);
    if (ImGui::InvisibleButton("cell", size)) session.select_cell(any->name);
    if (probe_recording()) probe_item(probe);
    const bool hovered = ImGui::IsItemHovered();
    if (hovered) hover_text(tip_of(*any));
    ImGui::PopID();
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const ImVec2 end(at.x + size.x, at.y + size.y);
    std::uint32_t ground = color(Ink::kRaised);
    std::string text = status_text(any->status);
    std::string third = any->reason.empty() ? "" : clean(any->reason, 200);
    if (shown != nullptr) {
      const double value = metric_value(*shown, metric);
      text = metric_text(metric, value);
      third = fmt::format("{} {}", short_name(axes_.x), clean(axis_value(*shown, axes_.x), 40));
      if (!axes_.y.empty())
        third += fmt::format(", {} {}", short_name(axes_.y), clean(axis_value(*shown, axes_.y), 40));
    }
    const auto place = shown == nullptr ? contests.end() : contests.find(work_of(*shown));
    const bool judged = place != contests.end();
    if (judged) {
      const double value = metric_value(*shown, metric);
      const Contest& contest = place->second;
      const double share = contest.high > contest.low ? (value - contest.low) / (contest.high - contest.low) : 0.5;
      ground = ramp(static_cast<float>(0.12 + 0.8 * (lower_is_better(metric) ? 1 - share : share)));
      text = (shown == contest.best ? "\xE2\x98\x85 " : "") + metric_text(metric, value);
      third.clear();
      if (contest.best != nullptr && contest.best != shown && metric_value(*contest.best, metric) != 0)
        third = percent_text(value / metric_value(*contest.best, metric) - 1, true) + " to \xE2\x98\x85";
    }
    draw->AddRectFilled(at, end, ground, px(3));
    if (hovered || any == session.cell_a())
      draw->AddRect(at, end, color(any == session.cell_a() ? Ink::kText : Ink::kMuted), px(3), 0, px(2));
    const std::uint32_t ink = judged ? text_on(ground) : color(shown != nullptr ? Ink::kText : status_ink(any->status));
    const float width = size.x - px(14);
    const float small = fonts().small->FontSize;
    put(fonts().bold, fonts().text->FontSize, ImVec2(at.x + px(8), at.y + px(4)), ink, text, width);
    const std::string second =
        cells.size() > 1 ? fmt::format("{}  (best of {})", clean(any->name, 80), cells.size()) : clean(any->name, 80);
    put(fonts().small, small, ImVec2(at.x + px(8), at.y + px(20)), ink, second, width);
    if (size.y >= px(52)) put(fonts().small, small, ImVec2(at.x + px(8), at.y + px(35)), ink, third, width);
  }

  std::string tip_of(const Cell& cell) const {
    std::string tip = clean(cell.name, 80) + "\n" + status_text(cell.status);
    if (!cell.reason.empty()) tip += ": " + clean(cell.reason, 300);
    for (const std::string& name : metrics_) {
      if (const baselines::Metric* found = analysis::find(cell, name))
        tip += fmt::format("\n{}  {}", metric_title(name), metric_cell(found).text);
    }
    return tip;
  }

  std::vector<std::string> knobs_;
  std::pair<std::string, std::string> best_axes_;
  std::vector<std::string> metrics_;
  std::string built_;
  std::shared_ptr<const Run> run_;
  Axes axes_;
  Layout layout_;
  bool laid_out_ = false;
};

}  // namespace

std::unique_ptr<Panel> make_sweep_panel() {
  return std::make_unique<SweepPanel>();
}

}  // namespace mbb::viewer
