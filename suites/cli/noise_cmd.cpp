// mbbench noise: how much launches of the same thing differ here, and so what a gate can see.
#include <fmt/core.h>

#include <algorithm>

#include "analysis/gate/canary.h"
#include "analysis/gate/gate_report.h"
#include "analysis/gate/harness.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/launch_tables.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/runner.h"

namespace mbb::suites {
namespace {

// Launches of one thing differ by tenths of a percent: beyond this something happened to one of them.
constexpr double kApart = 1.05;

// Of numbers, for machines, the unit stands beside: rows are of different metrics.
analysis::Table empty_table(const std::string& title, bool numbers) {
  using analysis::Align;
  analysis::Table table{"noise",
                        title,
                        {{"cell", "cell"},
                         {"metric", "metric"},
                         {"class", "class"},
                         {"launches", "launches", Align::kRight},
                         {"mean", "mean", Align::kRight}},
                        {},
                        {}};
  const std::vector<analysis::Column> range = {{"range", "fastest..slowest", Align::kRight}},
                                      ends = {{"fastest", "fastest", Align::kRight},
                                              {"slowest", "slowest", Align::kRight},
                                              {"unit", "unit"}},
                                      spread = {{"sigma", "launch sigma", Align::kRight},
                                                {"detect_5", "seen with 5 an arm", Align::kRight},
                                                {"detect_10", "with 10", Align::kRight}};
  for (const auto* more : {numbers ? &ends : &range, &spread})
    table.columns.insert(table.columns.end(), more->begin(), more->end());
  return table;
}

// Whether the cell's step was far slower in one launch than in another.
bool is_apart(const baselines::Cell& cell) {
  const auto launches = analysis::launch_values(cell, "step_time");
  if (launches.size() < 2 || cell.result_class == baselines::ResultClass::kFunctionalCpu) return false;
  const auto [least, most] = std::minmax_element(launches.begin(), launches.end());
  return *most > kApart * *least;
}

void add_row(analysis::Table& table, const baselines::Cell& cell, const std::string& metric, bool numbers) {
  const auto launches = analysis::launch_values(cell, metric);
  if (launches.size() < 2) return;
  const double sigma = analysis::standard_deviation(launches) / analysis::mean(launches);
  const analysis::MetricInfo& as = *analysis::find_metric(metric);
  const auto value = [&](double number) { return analysis::Value{analysis::format_value(as, number), number}; };
  const auto [least, most] = std::minmax_element(launches.begin(), launches.end());
  analysis::Row row{{{cell.name},
                     {metric},
                     {class_label(cell)},
                     {std::to_string(launches.size()), static_cast<double>(launches.size())},
                     value(analysis::mean(launches))}};
  if (numbers)
    row.values.insert(row.values.end(), {value(*least), value(*most), {as.unit}});
  else
    row.values.push_back({value(*least).text + ".." + value(*most).text});
  for (const double fraction : {sigma, analysis::detectable_change(sigma, 5), analysis::detectable_change(sigma, 10)})
    row.values.push_back({format_percent(fraction, 2), fraction});
  table.rows.push_back(std::move(row));
}

Result<int> noise(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  const auto launches = parse_int(parsed.value("--launches").value_or("8"));
  if (!launches || *launches < 2 || *launches > 1000)
    return fail(ErrorCode::kBadArgument,
                fmt::format("--launches {}: a number from 2 to 1000", *parsed.value("--launches")));
  StopSignals signals;
  RunOptions options;
  options.command = "noise";
  options.argv = parsed.argv;
  options.runs_dir = settings.product.runs_dir;
  options.roles = roles_of(settings);
  options.facts = declared_facts(settings.product.gate);
  options.launches = static_cast<int>(*launches);
  options.quiet = parsed.flag("--quiet");
  options.twins = false;  // what is not measured here has no launches to differ
  options.stop = signals.flag();
  MB_ASSIGN(const Suite suite, suite_of(parsed, settings, parsed.positionals[0]));
  MB_ASSIGN(const RunOutcome outcome, start_run(suite, options));
  const bool numbers = parsed.flag("--json");
  analysis::Table table = empty_table(fmt::format("noise of {}", suite.name), numbers);
  analysis::Table sampled;  // of cells whose launches lie apart
  bool broken = false, measured = false;
  for (const auto& cell : outcome.run.cells) {
    if (const std::string error = analysis::no_evidence(cell); !error.empty()) {
      broken = broken || cell.status == baselines::CellStatus::kOk;
      table.rows.push_back({{{cell.name}}, error});
      continue;
    }
    const size_t before = table.rows.size();
    baselines::Cell copy = cell;
    for (const std::string& problem : analysis::step_time(copy).problems)
      table.footer.push_back(fmt::format("{}, no step_time of {}", cell.name, problem));
    for (const char* metric : {"step_time", "cpu_step_time", "cpu_step_ratio"}) add_row(table, cell, metric, numbers);
    measured = measured || table.rows.size() > before;
    if (const auto shared = analysis::contention(cell); shared.by > 0)
      table.footer.push_back(cell.name + ": " + analysis::text(shared));
    if (!is_apart(cell)) continue;
    table.footer.push_back(
        fmt::format("{}: one launch is far from another, which no launch sigma describes; what was "
                    "sampled while they ran stands below, their steps in `mbbench show {} --cell {}`",
                    cell.name, outcome.run.id, cell.name));
    MB_ASSIGN(analysis::Table of_cell, telemetry_of(settings, outcome.run.id, outcome.run, cell.name));
    of_cell.rows.insert(of_cell.rows.begin(), sampled.rows.begin(), sampled.rows.end());
    sampled = std::move(of_cell);
  }
  if (!measured) table.footer.emplace_back("nothing was measured");
  table.footer.push_back(
      "seen: two-sided 5 %, power 90 %; the step's wall time of functional/cpu cells is no performance");
  std::vector<analysis::Table> tables{std::move(table)};
  if (!sampled.rows.empty()) tables.push_back(std::move(sampled));
  print_tables(parsed, tables);
  if (outcome.stopped) return signals.interrupted() ? kExitInterrupted : kExitStopped;
  const int status = exit_status(outcome, false);
  return broken || (!measured && status == 0) ? kExitBroken : status;
}

}  // namespace

Command noise_command() {
  return {"noise",
          "launch-to-launch spread of a suite's cells, and the smallest change it lets you see",
          {{"SUITE", "a name of `mbbench list suites`, or a TOML file"}},
          {{"--launches", "N", "fresh processes a cell (default 8)"},
           {"--only", "CELL", "run only cells that match (repeats)", true},
           {"--skip", "CELL", "leave out cells that match (repeats)", true},
           {"--quiet", nullptr, "no progress"},
           kJsonOption,
           kMarkdownOption},
          true,
          noise};
}

}  // namespace mbb::suites
