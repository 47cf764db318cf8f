// Panel "ops": every op or kernel of a launch with time, rate and share, A against B, and the spread of the chosen one.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/exposure/op_rows.h"
#include "analysis/report/op_groups.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"
#include "viewer/load/kernels.h"
#include "viewer/load/traces.h"
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

using baselines::Launch;
using baselines::OpRow;

// One op of a launch, its rank classes added up; per call where rates are meant.
struct OpSum {
  OpRow row;
  double other_ns = std::nan("");  // in B
  double mean_ns() const {
    return row.calls > 0 ? static_cast<double>(row.total_ns) / static_cast<double>(row.calls) : std::nan("");
  }
};

// Of one rank class: its rows sum to its step. Times are per step where the launch says how many it sums over.
std::map<std::string, OpSum> sums_of(const Launch& launch, const std::string& rank_class, bool grouped) {
  std::map<std::string, OpSum> sums;
  for (const OpRow& row : launch.ops) {
    if (row.rank_class != rank_class) continue;
    const std::string path = grouped ? analysis::grouped_path(row.path) : row.path;
    OpSum& sum = sums[path];
    if (sum.row.path.empty()) {
      sum.row = row;
      sum.row.path = path;
      continue;
    }
    sum.row.calls += row.calls;
    sum.row.total_ns += row.total_ns;
    sum.row.flops += row.flops;
    sum.row.bytes += row.bytes;
  }
  return sums;
}

struct OpsTable {
  TableData data;
  double total_ns = 0;
};

double steps_of(const Launch& launch) {
  return static_cast<double>(std::max<std::int64_t>(1, analysis::op_steps(launch)));
}

// Rank classes in the order of their op rows.
std::vector<std::string> rank_classes(const Launch& launch) {
  std::vector<std::string> out;
  for (const OpRow& row : launch.ops) {
    if (std::find(out.begin(), out.end(), row.rank_class) == out.end()) out.push_back(row.rank_class);
  }
  return out;
}

std::vector<TableColumn> op_columns(bool two) {
  std::vector<TableColumn> columns = {
      {"op", "", Align::kLeft, 0, "Dotted path; * stands for every layer.", true},
      {"kind", "", Align::kLeft, 92, "Op kind.", false},
      {"role", "", Align::kLeft, 50, "fprop, dgrad or wgrad of a GEMM.", false},
      {"stream", "", Align::kLeft, 62, "", false},
      {"calls", "", Align::kRight, 56, "In the steps that were summed.", false},
      {"time", "a step", Align::kRight, 84, "Exclusive time a step, of one rank of the class.", false},
      {"share", "", Align::kRight, 66, "Of the time of all ops.", false},
      {"mean", "", Align::kRight, 76, "A call.", false},
      {"TFLOP/s", "", Align::kRight, 62, "FLOPs over time while it ran.", false},
      {"GB/s", "", Align::kRight, 62, "Bytes read and written over time, decimal.", false}};
  if (two) {
    columns.push_back({"B", "a step", Align::kRight, 84, "The same op in run B.", false});
    columns.push_back({"B \xE2\x88\x92 A", "", Align::kRight, 92, "Sorting by this finds what changed.", false});
  }
  return columns;
}

// B's time and its difference from A's, both a step; NaN where B has none.
void add_other(std::vector<TableCell>& row, double a_ns, double b_ns) {
  const double delta = b_ns - a_ns;
  const bool known = std::isfinite(delta);
  const Ink ink = !known || std::fabs(delta) < a_ns * 0.01 ? Ink::kMuted : delta > 0 ? Ink::kSlower : Ink::kFaster;
  const char* sign = ink == Ink::kSlower ? "\xE2\x96\xB2 " : ink == Ink::kFaster ? "\xE2\x96\xBC " : "";
  row.push_back(number_cell(std::isfinite(b_ns) ? format_ns(b_ns) : "-", b_ns));
  row.push_back(number_cell(
      known ? fmt::format("{}{}{}", sign, delta < 0 ? "-" : "+", format_ns(std::fabs(delta))) : "-", delta, ink));
}

OpsTable ops_table(const Launch& a, const Launch* b, const std::string& rank_class, bool grouped) {
  OpsTable out;
  std::map<std::string, OpSum> sums = sums_of(a, rank_class, grouped);
  if (b != nullptr) {
    for (auto& [path, sum] : sums_of(*b, rank_class, grouped)) {
      const auto [at, added] = sums.try_emplace(path);
      if (added) {
        at->second.row = sum.row;
        at->second.row.calls = 0;
        at->second.row.total_ns = 0;
      }
      at->second.other_ns = static_cast<double>(sum.row.total_ns) / steps_of(*b);
    }
  }
  double most = 0;
  const double steps = steps_of(a);
  for (const auto& [path, sum] : sums) {
    out.total_ns += static_cast<double>(sum.row.total_ns) / steps;
    most = std::max(most, static_cast<double>(sum.row.total_ns) / steps);
  }
  out.data.columns = op_columns(b != nullptr);
  for (const auto& [path, sum] : sums) {
    const auto all = static_cast<double>(sum.row.total_ns);
    const double total = all / steps;
    const double share = out.total_ns > 0 ? total / out.total_ns : std::nan("");
    const double tflops = all > 0 && sum.row.flops > 0 ? sum.row.flops / all / 1e3 : std::nan("");
    const double rate = all > 0 && sum.row.bytes > 0 ? static_cast<double>(sum.row.bytes) / all : std::nan("");
    std::vector<TableCell> row;
    row.push_back(text_cell(path));
    row.push_back(text_cell(sum.row.kind, op_ink(sum.row.kind, path)));
    row.push_back(text_cell(sum.row.role, Ink::kMuted));
    row.push_back(text_cell(sum.row.stream, Ink::kMuted));
    row.push_back(number_cell(count_text(static_cast<double>(sum.row.calls)), static_cast<double>(sum.row.calls)));
    row.push_back(number_cell(total > 0 ? format_ns(total) : "-", total));
    row.push_back(number_cell(percent_text(share), share));
    row.back().bar = most > 0 ? static_cast<float>(total / most) : -1;
    row.push_back(number_cell(format_ns(sum.mean_ns()), sum.mean_ns()));
    row.push_back(number_cell(std::isfinite(tflops) ? fmt::format("{:.1f}", tflops) : "-", tflops));
    row.push_back(number_cell(std::isfinite(rate) ? fmt::format("{:.1f}", rate) : "-", rate));
    if (b != nullptr) add_other(row, total, sum.other_ns);
    out.data.rows.push_back(std::move(row));
    out.data.keys.push_back(path);
  }
  return out;
}

// Kernels of A's trace, with B's beside them.
OpsTable kernels_table(const KernelTable& a, const KernelTable* b) {
  OpsTable out;
  for (const KernelRow& row : a.rows) out.total_ns += row.total_ns / a.share_of;
  out.data.columns = {{"kernel", "", Align::kLeft, 0, "Its name in the trace.", true},
                      {"op", "", Align::kLeft, 0, "The op that launched it; + how many others did.", true},
                      {"kind", "", Align::kLeft, 72, "Computation, communication or copy.", false},
                      {"calls", "a step", Align::kRight, 84, "Of one rank.", false},
                      {"time", "a step", Align::kRight, 88, "Sum of its lengths, of one rank.", false},
                      {"share", "", Align::kRight, 66, "Of the time of all kernels.", false},
                      {"p50", "a call", Align::kRight, 84, "Half of its calls took less.", false},
                      {"p95", "a call", Align::kRight, 84, "One call in twenty took longer.", false},
                      {"max", "a call", Align::kRight, 84, "The longest call.", false}};
  if (b != nullptr) {
    out.data.columns.push_back({"B", "a step", Align::kRight, 84, "The kernel of the same name in run B.", false});
    out.data.columns.push_back(
        {"B \xE2\x88\x92 A", "", Align::kRight, 92, "Sorting by this finds what changed.", false});
  }
  std::map<std::string, const KernelRow*> others;
  for (std::size_t i = 0; b != nullptr && i < b->rows.size(); ++i) others[b->rows[i].name] = &b->rows[i];
  const auto add = [&](const KernelRow& kernel, double a_ns, double calls, double b_ns) {
    const double share = out.total_ns > 0 ? a_ns / out.total_ns : std::nan("");
    std::vector<TableCell> row;
    row.push_back(text_cell(kernel.name));
    row[0].hover = row[0].text;
    row.push_back(text_cell(kernel.ops.empty()      ? "-"
                            : kernel.ops.size() < 2 ? kernel.ops[0]
                                                    : fmt::format("{} +{}", kernel.ops[0], kernel.ops.size() - 1)));
    row[1].hover = clean(join(kernel.ops, "\n"), 1500);
    row.push_back(text_cell(profiler::name(kernel.kind), Ink::kMuted));
    row.push_back(number_cell(count_text(calls), calls));
    row.push_back(number_cell(a_ns > 0 ? format_ns(a_ns) : "-", a_ns));
    row.push_back(number_cell(percent_text(share), share));
    row.back().bar = std::isfinite(share) ? static_cast<float>(share) : -1;
    const bool here = a_ns > 0;
    for (const double ns : {kernel.p50_ns, kernel.p95_ns, kernel.max_ns})
      row.push_back(number_cell(here ? format_ns(ns) : "-", here ? ns : std::nan("")));
    if (b != nullptr) add_other(row, a_ns, b_ns);
    out.data.rows.push_back(std::move(row));
    out.data.keys.push_back(kernel.name);
  };
  for (const KernelRow& kernel : a.rows) {
    const auto other = others.find(kernel.name);
    add(kernel, kernel.total_ns / a.share_of, static_cast<double>(kernel.calls) / a.share_of,
        other == others.end() ? std::nan("") : other->second->total_ns / b->share_of);
    if (other != others.end()) others.erase(other);
  }
  for (const auto& [name, kernel] : others) add(*kernel, 0, 0, kernel->total_ns / b->share_of);
  return out;
}

// Durations of the spans of one op (a pattern with * for layers), by kernel or op name.
struct Spread {
  std::vector<double> ns;
};

Result<Spread> spread_of(const profiler::Trace& trace, const std::string& pattern, const std::atomic<bool>& cancelled) {
  std::vector<std::uint8_t> wanted(trace.strings.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = trace.strings[i] == pattern || glob_match(pattern, trace.strings[i]) ? 1 : 0;
  Spread spread;
  std::size_t seen = 0;
  for (const profiler::Span& span : trace.spans) {
    if (++seen % 65536 == 0 && cancelled.load()) return fail(ErrorCode::kCancelled, "reading durations");
    if (span.kind == profiler::SpanKind::kHost || span.op >= wanted.size() || span.name >= wanted.size()) continue;
    if (wanted[span.op] != 0 || wanted[span.name] != 0)
      spread.ns.push_back(std::max(0.0, static_cast<double>(span.end_ns) - static_cast<double>(span.start_ns)));
  }
  std::sort(spread.ns.begin(), spread.ns.end());
  return spread;
}

class OpsPanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    const baselines::Cell* cell = session.cell_a();
    if (cell == nullptr) {
      if (session.run_a.loading() || session.runs.loading()) return draw_loading("reading the run");
      return draw_empty("No cell chosen", "Choose a run in the list of runs (key 1).");
    }
    const Launch* launch = session.launch_of(*cell);
    if (launch == nullptr || launch->ops.empty())
      return draw_empty(fmt::format("No op table for {}", clean(cell->name, 80)),
                        cell->reason.empty() ? "The launch stored no ops." : clean(cell->reason, 400));
    const baselines::Cell* other = session.selection.other.empty() ? nullptr : session.cell_b();
    const Launch* other_launch = other == nullptr ? nullptr : session.launch_of(*other);
    session.want_trace_a();
    session.want_trace_b();
    if (kernels_) want_kernels(session);
    rebuild(session, *cell, *launch, other_launch);
    draw_head(session, *cell, *launch);
    if (kernels_ && kernels_a_.value() == nullptr) return draw_no_kernels(session);
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const bool chosen = !session.selection.op.empty();
    const float below = chosen ? std::min(px(210), room.y * 0.38F) : 0;
    ImGui::BeginChild("list", ImVec2(0, room.y - below - (chosen ? px(6) : 0)), false);
    TableLook look;
    look.selected = session.selection.op;
    look.keyboard = true;
    const TableEvents events = draw_table(kernels_ ? "kernels" : "ops", table_.data, state_, look);
    if (events.clicked) session.selection.op = table_.data.keys[*events.clicked];
    if (events.opened) session.panel = "timeline";
    ImGui::EndChild();
    if (chosen) draw_spread(session, below);
  }

  bool loading() const override {
    return spread_a_.loading() || spread_b_.loading() || kernels_a_.loading() || kernels_b_.loading();
  }

 private:
  void want_kernels(Session& session) {
    const auto want = [&](Query<KernelTable>& query, const Query<std::shared_ptr<const profiler::Trace>>& trace) {
      if (trace.value() == nullptr) return query.clear();
      query.want(session.worker, trace.value_key(), [read = *trace.value()](const std::atomic<bool>& cancelled) {
        return kernel_table(*read, cancelled);
      });
    };
    want(kernels_a_, session.trace_a);
    want(kernels_b_, session.trace_b);
  }

  void draw_no_kernels(const Session& session) const {
    if (session.trace_a.error() != nullptr)
      return session.trace_a.error()->code == ErrorCode::kNotFound
                 ? draw_empty(session.trace_a.error()->what, session.trace_a.error()->hint)
                 : draw_error(*session.trace_a.error());
    if (kernels_a_.error() != nullptr) return draw_error(*kernels_a_.error());
    draw_loading("reading the trace");
  }

  void rebuild(Session& session, const baselines::Cell& cell, const Launch& launch, const Launch* other) {
    classes_ = rank_classes(launch);
    if (std::find(classes_.begin(), classes_.end(), class_) == classes_.end()) class_ = classes_.front();
    const std::string key =
        fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}", session.run_a.value_key(), cell.name, launch.index,
                    other == nullptr ? "" : session.run_b.value_key(), grouped_, class_, kernels_,
                    static_cast<const void*>(kernels_a_.value()), static_cast<const void*>(kernels_b_.value()));
    if (key == built_) return;
    built_ = key;
    if (!kernels_)
      table_ = ops_table(launch, other, class_, grouped_);
    else if (kernels_a_.value() != nullptr)
      table_ = kernels_table(*kernels_a_.value(), kernels_b_.value());
    else
      table_ = {};
    if (state_.sort_column < 0) {
      state_.sort_column = kernels_ ? 4 : 5;
      state_.descending = true;
    }
    state_.dirty = true;
  }

  void draw_head(Session& session, const baselines::Cell& cell, const Launch& launch) {
    draw_search(session, "ops.search", kernels_ ? "find a kernel" : "find an op", state_.filter, 220);
    for (const bool kernels : {false, true}) {
      ImGui::SameLine(0, px(kernels ? 4 : 12));
      const bool on = kernels_ == kernels;
      if (pill(kernels ? "kernels" : "ops", on) && !on) {
        kernels_ = kernels;
        state_.sort_column = -1;
      }
      probe_item(kernels ? "ops.kernels" : "ops.ops");
    }
    if (kernels_) {
      ImGui::SameLine(0, px(12));
      muted(fmt::format("{}, launch {}: {} a step and rank in {} kernels", clean(cell.name, 60), launch.index,
                        format_ns(table_.total_ns), table_.data.rows.size()));
      return;
    }
    ImGui::SameLine(0, px(12));
    if (pill(grouped_ ? "layers together" : "layers apart")) grouped_ = !grouped_;
    probe_item("ops.grouped");
    for (std::size_t i = 0; i < classes_.size() && i < 16; ++i) {
      ImGui::SameLine(0, px(6));
      const bool on = classes_[i] == class_;
      if (pill(fmt::format("{}##{}", clean(classes_[i], 40), i), on)) class_ = classes_[i];
    }
    ImGui::SameLine(0, px(12));
    muted(fmt::format("{}, launch {}: {} a step in {} ops", clean(cell.name, 60), launch.index,
                      format_ns(table_.total_ns), table_.data.rows.size()));
    for (const baselines::NamedCount& count : launch.counts) {
      if (!is_loss(count)) continue;
      ImGui::SameLine(0, px(10));
      badge(fmt::format("\xE2\x9A\xA0 {} {}", count.count, clean(count.name, 40)), color(Ink::kWarning));
    }
  }

  void draw_spread(Session& session, float height) {
    const std::string& op = session.selection.op;
    const auto want = [&](Query<Spread>& spread, const Query<std::shared_ptr<const profiler::Trace>>& trace) {
      if (trace.value() == nullptr) return spread.clear();
      spread.want(
          session.worker, fmt::format("{}|{}", op, trace.value_key()),
          [read = *trace.value(), op](const std::atomic<bool>& cancelled) { return spread_of(*read, op, cancelled); });
    };
    want(spread_a_, session.trace_a);
    want(spread_b_, session.trace_b);
    ImGui::BeginChild("spread", ImVec2(0, height), false, ImGuiWindowFlags_NoScrollbar);
    heading(clean(op, 160));
    const auto line = [](const char* letter, Ink ink, const Query<Spread>& spread) {
      if (spread.value() == nullptr || spread.value()->ns.empty()) return;
      const std::vector<double>& ns = spread.value()->ns;
      ImGui::SameLine(0, px(14));
      ImGui::PushStyleColor(ImGuiCol_Text, color(ink));
      ImGui::TextUnformatted(fmt::format("{}: {} spans, p5 {}, p50 {}, p95 {}, max {}", letter, ns.size(),
                                         format_ns(analysis::quantile(ns, 0.05)),
                                         format_ns(analysis::quantile(ns, 0.5)),
                                         format_ns(analysis::quantile(ns, 0.95)), format_ns(ns.back()))
                                 .c_str());
      ImGui::PopStyleColor();
    };
    line("A", Ink::kRunA, spread_a_);
    line("B", Ink::kRunB, spread_b_);
    probe_value("ops.spans", spread_a_.value() == nullptr ? 0 : static_cast<long long>(spread_a_.value()->ns.size()));
    if (spread_a_.value() == nullptr || spread_a_.value()->ns.empty()) {
      muted(session.trace_a.loading() || spread_a_.loading()
                ? "reading the trace\xE2\x80\xA6"
                : "No spans of this op in the trace: its spread is not known.");
    } else {
      draw_histogram();
    }
    ImGui::EndChild();
  }

  void draw_histogram() {
    Range range;
    // The slowest percent may lie far away; the axis ends where it begins to.
    for (const Query<Spread>* spread : {&spread_a_, &spread_b_}) {
      if (spread->value() == nullptr || spread->value()->ns.empty()) continue;
      range.add(spread->value()->ns.front());
      range.add(analysis::quantile(spread->value()->ns, 0.995));
    }
    range = range.padded(0.04);
    constexpr int kBins = 80;
    const auto bins_of = [&](const Query<Spread>& spread) {
      std::vector<double> bins(kBins, 0);
      if (spread.value() == nullptr) return bins;
      for (const double value : spread.value()->ns) {
        const int bin = static_cast<int>((value - range.low) / (range.high - range.low) * kBins);
        bins[static_cast<std::size_t>(std::clamp(bin, 0, kBins - 1))] +=
            1 / static_cast<double>(spread.value()->ns.size());
      }
      return bins;
    };
    const std::vector<double> a = bins_of(spread_a_);
    const std::vector<double> b = bins_of(spread_b_);
    const double most = std::max(*std::max_element(a.begin(), a.end()), *std::max_element(b.begin(), b.end()));
    Plot plot("ops.histogram", ImVec2(0, 0), {range, "ns", "duration of a span"},
              {Range{0, most * 1.1}, "fraction", "share"});
    const double width = (range.high - range.low) / kBins;
    std::vector<double> edges_x;
    std::vector<double> edges_y;
    for (int i = 0; i < kBins; ++i) {
      const auto at = static_cast<std::size_t>(i);
      // A filled, B an outline over it: neither hides the other.
      if (a[at] > 0) plot.bar(range.low + i * width, range.low + (i + 1) * width, 0, a[at], color(Ink::kRunA, 0.7F));
      edges_x.push_back(range.low + i * width);
      edges_y.push_back(b[at]);
    }
    if (spread_b_.value() != nullptr) plot.steps(edges_x, edges_y, color(Ink::kRunB), 1.5F);
  }

  OpsTable table_;
  TableState state_;
  std::string built_;
  bool grouped_ = true;
  bool kernels_ = false;
  Query<KernelTable> kernels_a_;
  Query<KernelTable> kernels_b_;
  std::vector<std::string> classes_;
  std::string class_;
  Query<Spread> spread_a_;
  Query<Spread> spread_b_;
};

}  // namespace

std::unique_ptr<Panel> make_ops_panel() {
  return std::make_unique<OpsPanel>();
}

}  // namespace mbb::viewer
