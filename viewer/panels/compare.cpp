// Panel "compare": run A against run B: cells, where the step's difference lies op by op, step times, memory, settings.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/report/compare.h"
#include "profiler/base/text.h"
#include "viewer/memory/shape.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/fit.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using analysis::CellPair;
using analysis::ChangedFact;
using analysis::OpChange;
using baselines::Cell;
using baselines::Launch;
using baselines::Run;
using baselines::Step;

constexpr std::size_t kWaterfallRows = 12;

// Whether a relative change of a lower-is-better time stands outside its interval.
Ink change_ink(const analysis::Estimate& relative) {
  if (!relative.has_interval()) return Ink::kMuted;
  if (relative.low > 0) return Ink::kSlower;
  if (relative.high < 0) return Ink::kFaster;
  return Ink::kMuted;
}

TableCell change_cell(const CellPair& pair) {
  if (pair.before == nullptr || pair.after == nullptr)
    return text_cell(pair.before == nullptr ? "new in B" : "only in A", Ink::kWarning);
  if (!pair.incomparable.empty()) {
    TableCell cell = text_cell("not comparable", Ink::kWarning);
    cell.hover = clean(pair.incomparable, 400);
    return cell;
  }
  const analysis::Difference difference = analysis::step_difference(*pair.before, *pair.after);
  if (!std::isfinite(difference.relative.value)) return number_cell("-", std::nan(""), Ink::kFaint);
  const Ink ink = change_ink(difference.relative);
  const char* sign = ink == Ink::kSlower ? "\xE2\x96\xB2 " : ink == Ink::kFaster ? "\xE2\x96\xBC " : "";
  TableCell cell = number_cell(sign + percent_text(difference.relative.value, true), difference.relative.value, ink);
  cell.hover = difference.relative.has_interval()
                   ? fmt::format("95 %: {} .. {}; {}", percent_text(difference.relative.low, true),
                                 percent_text(difference.relative.high, true),
                                 ink == Ink::kMuted ? "zero is inside: the same, as far as these launches can tell"
                                                    : "zero is outside")
                   : "no interval: not evidence. Two launches on each side are needed.";
  return cell;
}

TableData pairs_table(const std::vector<CellPair>& pairs) {
  TableData data;
  data.columns = {{"cell", "", Align::kLeft, 0, "Cells of equal names are pairs.", false},
                  {"A", "step", Align::kRight, 130, metric_meaning("step_time"), false},
                  {"B", "step", Align::kRight, 130, metric_meaning("step_time"), false},
                  {"B / A", "", Align::kRight, 104,
                   "Relative change of the step time. \xE2\x96\xB2 slower, \xE2\x96\xBC faster: only where the 95 % "
                   "interval excludes zero.",
                   false},
                  {"A", "peak", Align::kRight, 84, metric_meaning("peak_memory"), false},
                  {"B", "peak", Align::kRight, 84, metric_meaning("peak_memory"), false},
                  {"A", "exposed", Align::kRight, 84, metric_meaning("exposed_comm"), false},
                  {"B", "exposed", Align::kRight, 84, metric_meaning("exposed_comm"), false}};
  const auto of = [](const Cell* cell, const char* metric) {
    return metric_cell(cell == nullptr ? nullptr : analysis::find(*cell, metric));
  };
  for (const CellPair& pair : pairs) {
    const Cell* some = pair.before != nullptr ? pair.before : pair.after;
    std::vector<TableCell> row;
    row.push_back(text_cell(some->name));
    row.push_back(of(pair.before, "step_time"));
    row.push_back(of(pair.after, "step_time"));
    row.push_back(change_cell(pair));
    for (const char* metric : {"peak_memory", "exposed_comm"}) {
      row.push_back(of(pair.before, metric));
      row.push_back(of(pair.after, metric));
    }
    data.rows.push_back(std::move(row));
    data.keys.push_back(some->name);
  }
  return data;
}

TableData facts_table(const std::vector<ChangedFact>& facts) {
  TableData data;
  data.columns = {{"what differs", "", Align::kLeft, 0, "Knobs, host facts and work that are not equal.", false},
                  {"cell", "", Align::kLeft, 90, "Empty: of the run.", false},
                  {"A", "", Align::kLeft, 0, "", false},
                  {"B", "", Align::kLeft, 0, "", false}};
  for (const ChangedFact& fact : facts) {
    data.rows.push_back({text_cell(fact.what), text_cell(fact.cell, Ink::kMuted), text_cell(fact.before, Ink::kRunA),
                         text_cell(fact.after, Ink::kRunB)});
    for (TableCell& cell : data.rows.back()) cell.hover = cell.text;
    data.keys.push_back(fact.what + "|" + fact.cell);
  }
  return data;
}

// Better or worse only where both intervals are known and lie apart; else the change stands without a judgement.
TableCell metric_change(const baselines::Metric* a, const baselines::Metric* b) {
  if (a == nullptr || b == nullptr || !(std::fabs(a->value) > 0)) return number_cell("-", std::nan(""), Ink::kFaint);
  const double change = b->value / a->value - 1;
  const analysis::MetricInfo* info = analysis::find_metric(a->name);
  const bool apart = b->low > a->high || b->high < a->low;  // false without intervals
  if (!apart || info == nullptr || info->better == analysis::Better::kNeither)
    return number_cell(percent_text(change, true), change, Ink::kMuted);
  const bool worse = (change > 0) == (info->better == analysis::Better::kLower);
  return number_cell(
      fmt::format("{} {}", worse ? "\xE2\x9C\x97 worse" : "\xE2\x9C\x93 better", percent_text(change, true)), change,
      worse ? Ink::kSlower : Ink::kFaster);
}

TableData pair_metrics(const Cell& a, const Cell& b) {
  TableData data;
  data.columns = {
      {"metric", "", Align::kLeft, 0, "Every metric of the two cells; hover for its definition.", false},
      {"A", "", Align::kRight, 116, "", false},
      {"B", "", Align::kRight, 116, "", false},
      {"B / A", "", Align::kRight, 122, "Better or worse: only where both 95 % intervals lie apart.", false}};
  std::vector<std::string> names;
  for (const Cell* cell : {&a, &b}) {
    for (const baselines::Metric& metric : cell->metrics) {
      if (std::find(names.begin(), names.end(), metric.name) == names.end()) names.push_back(metric.name);
    }
  }
  for (const std::string& name : names) {
    const baselines::Metric* in_a = analysis::find(a, name);
    const baselines::Metric* in_b = analysis::find(b, name);
    data.rows.push_back(
        {text_cell(metric_title(name)), metric_cell(in_a), metric_cell(in_b), metric_change(in_a, in_b)});
    data.rows.back()[0].hover = metric_meaning(name);
    data.keys.push_back(name);
  }
  return data;
}

// Steady steps of all launches.
std::vector<double> steady_ns(const Cell& cell) {
  std::vector<double> out;
  for (const Launch& launch : cell.launches) {
    for (const Step& step : launch.steps) {
      if ((step.flags & (baselines::kStepWarmUp | baselines::kStepProfiled)) == 0 && step.wall_ns > 0)
        out.push_back(static_cast<double>(step.wall_ns));
    }
  }
  return out;
}

std::string change_tip(const OpChange& op) {
  std::string tip =
      fmt::format("{}\nA {}   B {}", clean(op.path, 160), format_ns(op.before_ns), format_ns(op.after_ns));
  if (!(op.low_ns <= op.high_ns)) return tip + "\nno interval: two traced launches on each side are needed";
  const auto signed_ns = [](double ns) { return (ns < 0 ? "-" : "+") + format_ns(std::fabs(ns)); };
  tip += fmt::format("\n95 %: {} .. {}", signed_ns(op.low_ns), signed_ns(op.high_ns));
  return op.low_ns <= 0 && op.high_ns >= 0 ? tip + ": not told from zero" : tip;
}

class ComparePanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.selection.other.empty())
      return draw_empty("Nothing to compare with",
                        "In the list of runs (key 1), Ctrl+click the run to compare with: it becomes B.");
    for (const Query<ViewedRun>* run : {&session.run_a, &session.run_b}) {
      if (run->error() != nullptr) return draw_error(*run->error());
    }
    if (session.run_a.value() == nullptr || session.run_b.value() == nullptr) return draw_loading("reading both runs");
    rebuild(session);
    draw_pairs(session);
    const Cell* a = session.cell_a();
    const Cell* b = session.cell_b();
    if (a == nullptr || b == nullptr)
      return draw_empty("No pair of cells", "The runs have no finished cells in common.");
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float left = room.x * 0.56F;
    ImGui::BeginChild("account", ImVec2(left, 0), false);
    draw_waterfall(session, *a, *b);
    draw_lists(session, *a, *b);
    ImGui::EndChild();
    ImGui::SameLine(0, px(12));
    ImGui::BeginChild("plots", ImVec2(0, 0), false, ImGuiWindowFlags_NoScrollbar);
    const float half = (ImGui::GetContentRegionAvail().y - px(8)) / 2;
    draw_distribution(*a, *b, half);
    draw_memory(session, *a, *b, ImGui::GetContentRegionAvail().y - px(4));
    ImGui::EndChild();
  }

 private:
  void rebuild(Session& session) {
    const std::string key = session.run_a.value_key() + "|" + session.run_b.value_key();
    if (key == built_) return;
    built_ = key;
    a_run_ = session.run_a.share();
    b_run_ = session.run_b.share();
    pairs_ = pairs_table(analysis::pair_cells(*a_run_, *b_run_));
    facts_ = facts_table(analysis::changed_facts(*a_run_, *b_run_));
    pairs_state_.dirty = facts_state_.dirty = true;
    ops_of_.clear();
    metrics_of_.clear();
  }

  void draw_pairs(Session& session) {
    TableLook look;
    const Cell* chosen = session.cell_a();
    look.selected = chosen != nullptr ? chosen->name : "";
    look.keyboard = true;
    look.height = std::min(table_height(std::min<std::size_t>(pairs_.rows.size(), 9)),
                           ImGui::GetContentRegionAvail().y / scale() * 0.4F);
    const TableEvents events = draw_table("pairs", pairs_, pairs_state_, look);
    if (events.clicked) session.select_cell(pairs_.keys[*events.clicked]);
    if (events.opened) session.panel = "timeline";
    ImGui::Dummy(ImVec2(0, px(2)));
  }

  // A bar from A's step to B's: each op's change begins where the one before it ended.
  void draw_waterfall(Session& session, const Cell& a, const Cell& b) {
    const std::string key = built_ + a.name + "|" + b.name;
    if (key != ops_of_) {
      ops_ = analysis::op_changes(a, b);
      ops_of_ = key;
    }
    heading("where the difference lies");
    ImGui::SameLine(0, px(10));
    muted(a.name == b.name ? fmt::format("{}, per step", clean(a.name, 60))
                           : fmt::format("{} against {}, per step", clean(a.name, 60), clean(b.name, 60)));
    probe_value("compare.ops", static_cast<long long>(ops_.size()));
    if (ops_.empty()) return muted("No op tables: the account needs a traced or replayed launch on both sides.");
    double total_a = 0;
    double total_b = 0;
    for (const OpChange& op : ops_) {
      total_a += op.before_ns;
      total_b += op.after_ns;
    }
    std::vector<OpChange> rows(ops_.begin(),
                               ops_.begin() + static_cast<std::ptrdiff_t>(std::min(ops_.size(), kWaterfallRows)));
    OpChange rest{"other ops", 0, 0};
    for (std::size_t i = rows.size(); i < ops_.size(); ++i) {
      rest.before_ns += ops_[i].before_ns;
      rest.after_ns += ops_[i].after_ns;
    }
    if (ops_.size() > rows.size()) rows.push_back(rest);
    Range range;
    double running = total_a;
    range.add(total_a);
    range.add(total_b);
    for (const OpChange& op : rows) range.add(running += op.change_ns());
    range = range.padded(0.06);
    // From zero where the changes are large enough to be seen so.
    if (range.high - range.low > 0.5 * range.high) range.low = 0;
    const ImVec2 top = ImGui::GetCursorScreenPos();
    draw_bars(session, rows, total_a, total_b, range);
    const ImVec2 end(top.x + ImGui::GetContentRegionAvail().x, ImGui::GetCursorScreenPos().y);
    copy_menu("waterfall", ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(top, end),
              [&] { return changes_table(rows, total_a, total_b); });
  }

  static TableData changes_table(const std::vector<OpChange>& rows, double total_a, double total_b) {
    TableData data;
    data.columns = {{"op", "", Align::kLeft, 0, "", true},
                    {"A", "a step", Align::kRight, 0, "", false},
                    {"B", "a step", Align::kRight, 0, "", false},
                    {"B - A", "", Align::kRight, 0, "", false}};
    const auto add = [&](const std::string& path, double a_ns, double b_ns) {
      const char* sign = b_ns < a_ns ? "-" : "+";
      data.rows.push_back({text_cell(path), number_cell(format_ns(a_ns), a_ns), number_cell(format_ns(b_ns), b_ns),
                           number_cell(sign + format_ns(std::fabs(b_ns - a_ns)), b_ns - a_ns)});
      data.keys.push_back(path);
    };
    for (const OpChange& op : rows) add(op.path, op.before_ns, op.after_ns);
    add("all", total_a, total_b);
    return data;
  }

  void draw_bars(Session& session, const std::vector<OpChange>& rows, double total_a, double total_b, Range range) {
    const float width = ImGui::GetContentRegionAvail().x;
    const float label = std::min(px(230), width * 0.42F);
    const float number = px(126);
    const float line = px(17);
    ImDrawList* draw = ImGui::GetWindowDrawList();
    const auto place = [&](double ns, float left) {
      return left + static_cast<float>((ns - range.low) / (range.high - range.low)) * (width - label - number);
    };
    double running = total_a;
    const auto row = [&](const std::string& text, double from, double to, Ink ink, const std::string& value,
                         bool strong) {
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float left = at.x + label;
      const float low = place(std::min(from, to), left);
      const float high = std::max(place(std::max(from, to), left), low + 1);
      ImFont* const font = strong ? fonts().bold : fonts().mono;
      const std::string fitted = fit_text(*font, fonts().small->FontSize, text, left - px(6) - at.x, Cut::kMiddle);
      draw->AddText(font, fonts().small->FontSize, ImVec2(at.x, at.y + px(1)), color(Ink::kText), fitted.c_str());
      draw->AddRectFilled(ImVec2(low, at.y + px(2)), ImVec2(high, at.y + line - px(2)),
                          color(ink, strong ? 0.9F : 0.8F), px(2));
      draw->AddLine(ImVec2(place(to, left), at.y + line - px(2)), ImVec2(place(to, left), at.y + line + px(2)),
                    color(Ink::kFaint));
      const float size = ImGui::CalcTextSize(value.c_str()).x;
      draw->AddText(ImVec2(at.x + width - size, at.y), color(strong ? Ink::kText : ink), value.c_str());
    };
    row("A", range.low, total_a, Ink::kRunA, format_ns(total_a), true);
    ImGui::Dummy(ImVec2(width, line));
    int shown = 0;
    for (const OpChange& op : rows) {
      const double change = op.change_ns();
      // Judged where launches tell; with fewer than two on a side the colour says the direction only, faintly.
      const bool known = op.low_ns <= op.high_ns;
      const bool inside = known && op.low_ns <= 0 && op.high_ns >= 0;
      const Ink ink = change == 0 || inside ? Ink::kMuted : change > 0 ? Ink::kSlower : Ink::kFaster;
      row(clean(op.path, 120), running, running + change, ink,
          fmt::format("{} {}{}", change > 0 ? "\xE2\x96\xB2" : "\xE2\x96\xBC", change > 0 ? "+" : "-",
                      format_ns(std::fabs(change))),
          false);
      if (ImGui::InvisibleButton(fmt::format("op{}", shown).c_str(), ImVec2(width, line)))
        session.selection.op = op.path;
      if (probe_recording()) probe_item(fmt::format("compare.op.{}", shown));
      hover_text(change_tip(op));
      running += change;
      ++shown;
    }
    row("B", range.low, total_b, Ink::kRunB,
        fmt::format("{}  {}", format_ns(total_b), percent_text(total_b / total_a - 1, true)), true);
    ImGui::Dummy(ImVec2(width, line));
    // A scale, since the bars need not begin at zero.
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImGui::PushFont(fonts().small);
    const Ticks ticks = axis_ticks(range, std::max(2, static_cast<int>((width - label - number) / px(80))), "ns");
    for (const Tick& tick : ticks.ticks) {
      const float x = place(tick.at, at.x + label);
      draw->AddLine(ImVec2(x, at.y - px(2)), ImVec2(x, at.y + px(2)), color(Ink::kMuted));
      const std::string text = tick.label + " " + ticks.unit;
      draw->AddText(ImVec2(x - ImGui::CalcTextSize(text.c_str()).x / 2, at.y + px(3)), color(Ink::kMuted),
                    text.c_str());
    }
    draw->AddLine(ImVec2(at.x + label, at.y - px(2)), ImVec2(at.x + width - number, at.y - px(2)), color(Ink::kBorder));
    ImGui::PopFont();
    ImGui::Dummy(ImVec2(width, px(24)));
  }

  // Below the account: every metric of the pair, and what else is not equal.
  void draw_lists(Session& session, const Cell& a, const Cell& b) {
    const std::string key = built_ + a.name + "|" + b.name;
    if (key != metrics_of_) {
      metrics_ = pair_metrics(a, b);
      metrics_state_.dirty = true;
      metrics_of_ = key;
    }
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float height = std::max(room.y, px(150));
    const bool beside = room.x > px(760);
    const float left = facts_.rows.empty() || !beside ? room.x : room.x * 0.5F - px(6);
    // Below each other the facts take what they need, at most half.
    const float line = ImGui::GetTextLineHeightWithSpacing();
    const float facts = std::min(height / 2, px(table_height(facts_.rows.size())) + line);
    const float above = height - facts - ImGui::GetStyle().ItemSpacing.y;
    ImGui::BeginChild("metrics.part", ImVec2(left, beside || facts_.rows.empty() ? height : above), false);
    heading("metrics");
    if (facts_.rows.empty()) {
      ImGui::SameLine(0, px(10));
      muted("nothing else differs: knobs, host and work are equal");
    }
    TableLook look;
    look.selected = session.selection.metric;
    const TableEvents events = draw_table("pair", metrics_, metrics_state_, look);
    if (events.clicked) session.selection.metric = metrics_.keys[*events.clicked];
    if (events.opened) session.panel = "history";
    ImGui::EndChild();
    probe_value("compare.facts", static_cast<long long>(facts_.rows.size()));
    if (facts_.rows.empty()) return;
    if (beside) ImGui::SameLine(0, px(12));
    ImGui::BeginChild("facts.part", ImVec2(0, beside ? height : facts), false);
    heading("what else differs");
    ImGui::SameLine(0, px(10));
    muted(fmt::format("{} facts", facts_.rows.size()));
    draw_table("facts", facts_, facts_state_, {});
    ImGui::EndChild();
  }

  static void draw_distribution(const Cell& a, const Cell& b, float height) {
    const std::vector<double> steps_a = steady_ns(a);
    const std::vector<double> steps_b = steady_ns(b);
    Range range;
    for (const double value : steps_a) range.add(value);
    for (const double value : steps_b) range.add(value);
    heading("step times");
    ImGui::SameLine(0, px(12));
    const std::vector<LegendItem> legend = {
        {fmt::format("A filled, {} steps", steps_a.size()), color(Ink::kRunA), Mark::kDot, true},
        {fmt::format("B outlined, {} steps", steps_b.size()), color(Ink::kRunB), Mark::kDiamond, true}};
    draw_legend(legend);
    if (range.empty()) return muted("no steps beside traced ones");
    range = range.padded(0.03);
    // About five steps a bin: more bins would draw the noise of few steps.
    const int count = std::clamp(static_cast<int>(std::max(steps_a.size(), steps_b.size()) / 5), 8, 48);
    const auto histogram = [&](const std::vector<double>& values) {
      std::vector<double> bins(static_cast<std::size_t>(count), 0);
      for (const double value : values) {
        const int bin =
            std::clamp(static_cast<int>((value - range.low) / (range.high - range.low) * count), 0, count - 1);
        bins[static_cast<std::size_t>(bin)] += 1 / static_cast<double>(values.size());
      }
      return bins;
    };
    const std::vector<double> bins_a = histogram(steps_a);
    const std::vector<double> bins_b = histogram(steps_b);
    double most = 0;
    for (const double value : bins_a) most = std::max(most, value);
    for (const double value : bins_b) most = std::max(most, value);
    Plot plot("compare.steps", ImVec2(0, height - px(28)), {range, "ns", "step time"},
              {Range{0, most * 1.15}, "fraction", "share of steps"});
    const double width = (range.high - range.low) / count;
    // One over the other: A filled, B an outline with a light fill, so that neither hides the other.
    std::vector<double> edges_x;
    std::vector<double> edges_y;
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (bins_a[at] > 0)
        plot.bar(range.low + i * width, range.low + (i + 1) * width, 0, bins_a[at], color(Ink::kRunA, 0.6F));
      if (bins_b[at] > 0)
        plot.bar(range.low + i * width, range.low + (i + 1) * width, 0, bins_b[at], color(Ink::kRunB, 0.18F));
      edges_x.push_back(range.low + i * width);
      edges_y.push_back(bins_b[at]);
    }
    edges_x.push_back(range.high);
    edges_y.push_back(0);
    if (!steps_b.empty()) plot.steps(edges_x, edges_y, color(Ink::kRunB), 1.5F);
    const baselines::Metric* step_a = analysis::find(a, "step_time");
    const baselines::Metric* step_b = analysis::find(b, "step_time");
    // Both lines first, then their numbers on the outer sides: neither lies over the other.
    if (step_a != nullptr) plot.cursor(step_a->value, color(Ink::kRunA));
    if (step_b != nullptr) plot.cursor(step_b->value, color(Ink::kRunB));
    const bool a_first = step_a == nullptr || step_b == nullptr || step_a->value <= step_b->value;
    const auto mark = [&](const baselines::Metric* metric, Ink ink, const char* letter, bool left) {
      if (metric == nullptr) return;
      plot.label(metric->value, most * 1.15, color(ink), fmt::format("{} {}", letter, format_ns(metric->value)), left);
    };
    mark(step_a, Ink::kRunA, "A", a_first);
    mark(step_b, Ink::kRunB, "B", !a_first);
  }

  void draw_memory(Session& session, const Cell& a, const Cell& b, float height) {
    heading("memory");
    ImGui::SameLine(0, px(12));
    const baselines::MemoryMap* map_a = pick_map(maps_of(a, session.launch_of(a)), "");
    const baselines::MemoryMap* map_b = pick_map(maps_of(b, session.launch_of(b)), "");
    if (map_a == nullptr && map_b == nullptr) return muted("no memory maps");
    const std::string key = built_ + a.name + "|" + b.name;
    if (memory_of_ != key) {
      curve_a_ = map_a != nullptr ? memory_curve(*map_a) : MemoryCurve{};
      curve_b_ = map_b != nullptr ? memory_curve(*map_b) : MemoryCurve{};
      memory_of_ = key;
    }
    const auto text = [](const char* letter, const baselines::MemoryMap* map) {
      return map == nullptr
                 ? fmt::format("{}: none", letter)
                 : fmt::format("{} {}, {}: peak {}", letter, letter[0] == 'A' ? "broad" : "thin",
                               clean(map->rank_class, 30), format_bytes(static_cast<double>(map->peak_bytes)));
    };
    const std::vector<LegendItem> legend = {{text("A", map_a), color(Ink::kRunA), Mark::kDot, true},
                                            {text("B", map_b), color(Ink::kRunB), Mark::kDiamond, true}};
    draw_legend(legend);
    if (curve_a_.at.empty() && curve_b_.at.empty()) return muted("no lifetimes were stored");
    // Steps of different length lie over each other by their share of the step.
    Range ys{0, 0};
    for (const double value : curve_a_.total) ys.add(value);
    for (const double value : curve_b_.total) ys.add(value);
    Plot plot("compare.memory", ImVec2(0, height - px(28)), {Range{0, 1}, "fraction", "share of the step"},
              {Range{0, ys.high * 1.1 + 1}, "bytes", "alive"});
    // A broad below B, so that equal curves show both.
    const auto draw_curve = [&](const MemoryCurve& curve, Ink ink, float width) {
      std::vector<double> xs;
      for (const double at : curve.at)
        xs.push_back(curve.high() > curve.low() ? (at - curve.low()) / (curve.high() - curve.low()) : 0);
      plot.steps(xs, curve.total, color(ink), width);
    };
    draw_curve(curve_a_, Ink::kRunA, 4);
    draw_curve(curve_b_, Ink::kRunB, 1.5F);
  }

  std::string built_;
  std::shared_ptr<const Run> a_run_;
  std::shared_ptr<const Run> b_run_;
  TableData pairs_;
  TableState pairs_state_;
  TableData facts_;
  TableState facts_state_;
  TableData metrics_;
  TableState metrics_state_;
  std::string metrics_of_;
  std::vector<OpChange> ops_;
  std::string ops_of_;
  MemoryCurve curve_a_;
  MemoryCurve curve_b_;
  std::string memory_of_;
};

}  // namespace

std::unique_ptr<Panel> make_compare_panel() {
  return std::make_unique<ComparePanel>();
}

}  // namespace mbb::viewer
