// mbbench noise: how much launches of the same thing differ here, and so what a gate can see.
#include <fmt/core.h>

#include "analysis/gate/gate_report.h"
#include "analysis/gate/harness.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/runner.h"

namespace mbb::suites {
namespace {

void add_row(analysis::Table& table, const baselines::Cell& cell, const std::string& metric) {
  const auto launches = analysis::launch_values(cell, metric);
  if (launches.size() < 2) return;
  const double sigma = analysis::standard_deviation(launches) / analysis::mean(launches);
  const auto percent = [](double fraction) { return analysis::Value{format_percent(fraction, 2), fraction}; };
  table.rows.push_back({{{cell.name},
                         {metric},
                         {class_label(cell)},
                         {std::to_string(launches.size()), static_cast<double>(launches.size())},
                         {analysis::format_value(*analysis::find_metric(metric), analysis::mean(launches))},
                         percent(sigma),
                         percent(analysis::detectable_change(sigma, 5)),
                         percent(analysis::detectable_change(sigma, 10))}});
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
  using analysis::Align;
  analysis::Table table{"noise",
                        fmt::format("noise of {}", suite.name),
                        {{"cell", "cell"},
                         {"metric", "metric"},
                         {"class", "class"},
                         {"launches", "launches", Align::kRight},
                         {"mean", "mean", Align::kRight},
                         {"sigma", "launch sigma", Align::kRight},
                         {"detect_5", "seen with 5 an arm", Align::kRight},
                         {"detect_10", "with 10", Align::kRight}},
                        {},
                        {}};
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
    for (const char* metric : {"step_time", "cpu_step_time", "cpu_step_ratio"}) add_row(table, cell, metric);
    measured = measured || table.rows.size() > before;
  }
  if (!measured) table.footer.emplace_back("nothing was measured");
  table.footer.push_back(
      "seen: two-sided 5 %, power 90 %; the step's wall time of functional/cpu cells is no performance");
  print_tables(parsed, {table});
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
