// A run as one HTML file: verdicts, cells, histories, and timelines above those of another run.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "analysis/report/compare.h"
#include "analysis/report/html.h"
#include "analysis/report/suite_table.h"
#include "analysis/report/timeline_svg.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/export.h"

namespace mbb::suites {
namespace {

using analysis::Table;
using analysis::Tone;
using baselines::Cell;
using baselines::Verdict;

constexpr size_t kHistories = 40, kTimelines = 6, kOps = 12;

// What the run keeps, less what `gate` says already.
Table verdicts_table(const baselines::Run& run, const Table* gate) {
  const auto is_said = [&](const std::string& cell, const std::string& subject) {
    return gate != nullptr && std::any_of(gate->rows.begin(), gate->rows.end(), [&](const analysis::Row& row) {
             return row.values[0].text == cell && row.values[1].text == subject;
           });
  };
  Table table{
      "verdicts",
      "",
      {{"cell", "cell"}, {"subject", "subject"}, {"verdict", "verdict"}, {"against", "against"}, {"why", "why"}},
      {},
      {}};
  for (const Cell& cell : run.cells) {
    if (cell.status != baselines::CellStatus::kOk && !is_said(cell.name, "run"))
      table.rows.push_back({{{cell.name},
                             {"run"},
                             {name(cell.status), baselines::kNotMeasured,
                              cell.status == baselines::CellStatus::kBroken ? Tone::kBad : Tone::kWarning},
                             {"-"},
                             {cell.reason}}});
    for (const auto& v : cell.verdicts) {
      if (is_said(cell.name, v.subject)) continue;
      const Tone tone = v.verdict == Verdict::kSlower || v.verdict == Verdict::kBroken ? Tone::kBad
                        : v.verdict == Verdict::kFaster                                ? Tone::kGood
                        : v.verdict == Verdict::kSame || v.verdict == Verdict::kNew    ? Tone::kPlain
                                                                                       : Tone::kWarning;
      table.rows.push_back({{{cell.name},
                             {v.subject},
                             {name(v.verdict), baselines::kNotMeasured, tone},
                             {v.against.empty() ? "-" : v.against},
                             {v.text}}});
    }
  }
  return table;
}

Table facts_of(const baselines::Run& run) {
  Table table{"facts", "", {{"fact", "fact"}, {"value", "value"}, {"class", "splits a series"}}, {}, {}};
  for (const auto& fact : run.fingerprint.facts)
    table.rows.push_back({{{fact.key}, {fact.value}, {fact.in_class ? "yes" : "no"}}});
  return table;
}

// The first trace of a cell's launches; none when nothing was traced. A trace that cannot be read is an error.
Result<std::optional<profiler::Trace>> trace_of(const ExportSource& source, const std::string& cell_name) {
  for (const Cell& cell : source.run.cells) {
    if (cell.name != cell_name) continue;
    for (const auto& launch : cell.launches)
      for (const std::string& file : launch.trace_files) {
        MB_ASSIGN(auto trace, profiler::read_trace(source.reader.launch_file(cell.name, launch.index, file)));
        return std::optional(std::move(trace));
      }
  }
  return std::optional<profiler::Trace>();
}

Table ops_of(const std::vector<analysis::OpPair>& ops) {
  using analysis::Align;
  Table table{"ops",
              "",
              {{"op", "op"},
               {"before", "before", Align::kRight, "ns"},
               {"after", "after", Align::kRight, "ns"},
               {"change", "change", Align::kRight, "ns"}},
              {},
              {}};
  const auto time = [](int64_t ns) -> analysis::Value {
    if (ns == 0) return {"-"};
    return {format_ns(static_cast<double>(ns)), static_cast<double>(ns)};
  };
  for (size_t i = 0; i < std::min(kOps, ops.size()); ++i) {
    const auto change = static_cast<double>(ops[i].change_ns());
    table.rows.push_back({{{ops[i].path},
                           time(ops[i].before_ns),
                           time(ops[i].after_ns),
                           {fmt::format("{}{}", change < 0 ? "-" : "+", format_ns(std::abs(change))), change}}});
  }
  if (ops.size() > kOps) table.footer.push_back(fmt::format("{} more ops changed less", ops.size() - kOps));
  return table;
}

// True when the cell had a timeline to show.
Result<bool> add_timeline(analysis::HtmlPage& page, const ExportSource& source, const Cell& cell,
                          const std::string& id) {
  MB_ASSIGN(const auto is, trace_of(source, cell.name));
  if (!is || is->steps.empty()) return false;
  std::optional<profiler::Trace> was;
  if (source.against != nullptr) {
    MB_ASSIGN(was, trace_of(*source.against, cell.name));
    if (was && was->steps.empty()) was.reset();
  }
  const int32_t rank = is->steps.front().rank;
  analysis::TimelineSide before, after{&*is, "run " + source.run.id, -1};
  if (was) before = {&*was, "run " + source.against->run.id, -1};
  MB_ASSIGN(const std::string svg, analysis::timelines_svg(before, after, rank, id));
  page.figure(svg,
              fmt::format("{}, rank {}{}", cell.name, rank,
                          was ? ": ▲ longer, ▼ shorter by a tenth of the op and a hundredth of the step, + only in the "
                                "lower run, − only in the upper; hatched is communication"
                              : "; hatched is communication"),
              true);
  if (!was) return true;
  MB_ASSIGN(const auto ops, analysis::pair_ops(before, after, rank));
  page.table(ops_of(ops));
  return true;
}

Status add_timelines(analysis::HtmlPage& page, const ExportSource& source) {
  page.heading("Timelines");
  if (source.against != nullptr)
    page.paragraph(fmt::format("One step each on one scale; above: run {}, below: run {}.", source.against->run.id,
                               source.run.id));
  size_t shown = 0, more = 0;
  for (const Cell& cell : source.run.cells) {
    if (!source.cell.empty() && cell.name != source.cell) continue;
    if (shown == kTimelines) {
      ++more;
      continue;
    }
    MB_ASSIGN(const bool drawn, add_timeline(page, source, cell, fmt::format("t{}", shown)));
    shown += drawn ? 1 : 0;
  }
  if (shown == 0) page.paragraph("No step of this run was traced (profiling.profile_step_start).");
  if (more > 0) page.paragraph(fmt::format("{} more cells are not drawn; `--cell` names one.", more));
  return {};
}

void add_histories(analysis::HtmlPage& page, const ExportSource& source) {
  page.heading("History");
  if (source.histories.empty()) page.paragraph("No series of this run's cells is in the store yet.");
  for (size_t i = 0; i < std::min(kHistories, source.histories.size()); ++i) {
    const analysis::History& h = source.histories[i];
    page.figure(analysis::plot_svg(h, fmt::format("h{}", i)),
                fmt::format("{} {}, {}: a dot is a night, a square a red one, a ring one that could not be judged; the "
                            "line is the baseline, the band where a change came",
                            h.cell, h.metric, h.class_label));
    if (!h.changes.empty()) page.table(analysis::changes_table(h));
  }
  if (source.histories.size() > kHistories)
    page.paragraph(fmt::format("{} more series: `mbbench history`", source.histories.size() - kHistories));
}

}  // namespace

Status export_html(const ExportSource& source, const std::filesystem::path& to) {
  const baselines::Run& run = source.run;
  analysis::HtmlPage page(fmt::format("mbbench: {}", run.suite.empty() ? run.id : run.suite));
  page.paragraph(fmt::format("Run {} ({}), {} UTC; product {}; epoch {}", run.id, run.command,
                             iso_time(run.created_unix_ns).substr(0, 16), source.product,
                             run.epoch.empty() ? "-" : run.epoch));
  if (!run.synthetic.empty()) page.paragraph("Made up: " + run.synthetic);
  page.heading("Verdicts");
  if (source.gate != nullptr) page.table(*source.gate);
  const Table verdicts = verdicts_table(run, source.gate);
  if (source.gate == nullptr || !verdicts.rows.empty()) page.table(verdicts);
  page.heading("Cells");
  page.table(analysis::suite_table(run));
  add_histories(page, source);
  MB_TRY(add_timelines(page, source));
  if (source.against != nullptr) {
    page.heading("What differs");
    page.table(analysis::facts_table(source.against->run, run));
  }
  page.heading("Machine");
  page.table(facts_of(run));
  return write_file(to, page.finish());
}

}  // namespace mbb::suites
