// mbbench history: a series over nights, with its baselines, epochs, verdicts, and the commits its changes came with.
#include <fmt/core.h>

#include <algorithm>

#include "analysis/metrics/metrics.h"
#include "analysis/report/history.h"
#include "baselines/pins/pins.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/matrix/suite.h"

namespace mbb::suites {
namespace {

using analysis::History;
using baselines::SeriesSummary;

// What a series is named by: its cell, its identity (or the beginning of it), or CELL:METRIC.
bool is_named(const SeriesSummary& series, std::string_view cell, std::string_view metric) {
  if (!metric.empty() && series.key.metric != metric) return false;
  return cell.empty() || cell_matches(std::string(cell), series.cell) || series.key.identity_hash.starts_with(cell);
}

// Without a metric: what the gate judges speed by, which is the CPU's time where one rank ran on the CPU.
bool is_main(const SeriesSummary& series, const std::vector<SeriesSummary>& all) {
  if (series.key.metric == "cpu_step_time") return true;
  if (series.key.metric != "step_time") return false;
  return std::none_of(all.begin(), all.end(), [&](const SeriesSummary& other) {
    return other.key.identity_hash == series.key.identity_hash && other.key.metric == "cpu_step_time";
  });
}

// Series that differ in machine or epoch only are one history.
std::vector<SeriesSummary> one_an_identity(std::vector<SeriesSummary> all) {
  std::vector<SeriesSummary> kept;
  for (SeriesSummary& series : all) {
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const SeriesSummary& k) {
      return k.key.identity_hash == series.key.identity_hash && k.key.metric == series.key.metric;
    });
    if (same == kept.end())
      kept.push_back(std::move(series));
    else if (series.newest_unix_ns > same->newest_unix_ns)
      *same = std::move(series);
  }
  return kept;
}

Result<std::vector<History>> read_histories(const Parsed& parsed, const Settings& settings) {
  const std::filesystem::path file = store_file(settings.product.runs_dir);
  if (!file_exists(file))
    return fail(ErrorCode::kNotFound, fmt::format("there is no store in {}", settings.product.runs_dir),
                "a series begins with the first run: `mbbench suite NAME` or `mbbench gate NAME`");
  MB_ASSIGN(const auto store, baselines::Store::open(file, {.read_only = true}));
  MB_ASSIGN(const auto all, store.list_series());
  MB_ASSIGN(const auto pins, baselines::read_pins(settings.product.baselines_file));
  std::string cell = parsed.positionals.empty() ? "" : parsed.positionals[0];
  std::string metric = parsed.value("--metric").value_or("");
  if (const size_t colon = cell.find(':'); colon != std::string::npos) {
    metric = cell.substr(colon + 1);
    cell.resize(colon);
  }
  if (!metric.empty() && analysis::find_metric(metric) == nullptr) {
    std::vector<std::string> names;
    for (const auto& m : analysis::metrics()) names.emplace_back(m.id);
    const auto near = nearest(metric, names);
    return fail(ErrorCode::kBadArgument, fmt::format("no metric is called '{}'", printable(metric)),
                near ? fmt::format("did you mean '{}'?", *near) : "`mbbench help` lists them");
  }
  std::vector<SeriesSummary> named;
  for (const SeriesSummary& series : all)
    if (is_named(series, cell, metric) && (!metric.empty() || is_main(series, all))) named.push_back(series);
  std::vector<History> histories;
  for (const SeriesSummary& series : one_an_identity(std::move(named))) {
    MB_ASSIGN(auto points, store.history(series.key.identity_hash, series.key.metric));
    History history = analysis::make_history(series, std::move(points), pins, wall_ns());
    if (!history.points.empty()) histories.push_back(std::move(history));
  }
  if (histories.empty())
    return fail(ErrorCode::kNotFound,
                cell.empty() ? std::string("the store has no series") : fmt::format("no series '{}'", printable(cell)),
                "`mbbench list series` lists them");
  return histories;
}

// The newest change of a history as a verdict, when nothing has followed it.
std::string newest_verdict(const History& history) {
  if (history.changes.empty()) return "same";
  const auto* info = analysis::find_metric(history.metric);
  const bool larger_is_worse = info == nullptr || info->better != analysis::Better::kHigher;
  return (history.changes.back().change.relative() > 0) == larger_is_worse ? "slower" : "faster";
}

void print_history(const Parsed& parsed, const History& history) {
  if (!parsed.flag("--markdown"))
    fmt::print("{} {}, {}: {} points, {} epoch{}\n{}", history.cell, history.metric, history.class_label,
               history.points.size(), history.epochs.size(), history.epochs.size() == 1 ? "" : "s",
               analysis::plot_text(history));
  print_tables(parsed, {analysis::changes_table(history), analysis::points_table(history)});
}

Result<int> history(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  const auto fail_on = parsed.value("--fail-on");
  if (fail_on && *fail_on != "slower" && *fail_on != "faster")
    return fail(ErrorCode::kBadArgument, fmt::format("--fail-on {}: slower or faster", printable(*fail_on)));
  MB_ASSIGN(const auto histories, read_histories(parsed, settings));
  if (parsed.flag("--json")) {
    for (const History& h : histories) fmt::print("{}", analysis::to_json(h));
  } else if (histories.size() == 1) {
    print_history(parsed, histories.front());
  } else {
    print_tables(parsed, {analysis::histories_table(histories)});
  }
  const bool found = fail_on && std::any_of(histories.begin(), histories.end(),
                                            [&](const History& h) { return newest_verdict(h) == *fail_on; });
  return found ? 1 : 0;
}

}  // namespace

Command history_command() {
  return {"history",
          "a series over nights: baselines, epochs, verdicts, and which commits its changes came with",
          {{"SERIES", "a cell, CELL:METRIC, or an identity of `mbbench list series`; none: all cells", false}},
          {{"--metric", "METRIC", "default: CPU time of one CPU rank, else the step time"},
           {"--fail-on", "CHANGE", "exit status 1 when the newest change of a series is slower (or faster)"},
           kJsonOption,
           kMarkdownOption},
          true,
          history};
}

}  // namespace mbb::suites
