// mbbench history: a series over nights, with its baselines, epochs, verdicts, and the products (commits, images) its
// changes came with.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

#include "analysis/metrics/metrics.h"
#include "analysis/report/history.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/histories_of.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/matrix/suite.h"

namespace mbb::suites {
namespace {

// What the gate judges speed by, the first of these that a cell has: on one CPU rank the CPU's time, better its ratio
// to fixed work.
constexpr std::array<std::string_view, 3> kOfSpeed = {"cpu_step_ratio", "cpu_step_time", "step_time"};

size_t rank_of(std::string_view metric) {
  return static_cast<size_t>(std::find(kOfSpeed.begin(), kOfSpeed.end(), metric) - kOfSpeed.begin());
}

using analysis::History;
using baselines::SeriesSummary;

// What a series is named by: its cell, its identity (or the beginning of it), or CELL:METRIC.
bool is_named(const SeriesSummary& series, std::string_view cell, std::string_view metric) {
  if (!metric.empty() && series.key.metric != metric) return false;
  return cell.empty() || cell_matches(std::string(cell), series.cell) || series.key.identity_hash.starts_with(cell);
}

Result<std::vector<History>> read_histories(const Parsed& parsed, const Settings& settings) {
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
  MB_ASSIGN(auto histories, histories_of(settings, [&](const SeriesSummary& series) {
              if (!is_named(series, cell, metric)) return false;
              return !metric.empty() || rank_of(series.key.metric) < kOfSpeed.size();
            }));
  if (metric.empty()) {
    std::map<std::string, size_t> best;
    for (const History& h : histories) {
      size_t& rank = best.emplace(h.identity_hash, kOfSpeed.size()).first->second;
      rank = std::min(rank, rank_of(h.metric));
    }
    std::erase_if(histories, [&](const History& h) { return rank_of(h.metric) > best.at(h.identity_hash); });
  }
  if (histories.empty())
    return fail(
        ErrorCode::kNotFound,
        (cell.empty() ? std::string("the store has no series") : fmt::format("no series '{}'", printable(cell))) +
            (metric.empty() ? "" : " of metric " + metric),
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
  return {
      "history",
      "a series over nights: baselines, epochs, verdicts, and which products (commits, images) its changes came with",
      {{"SERIES", "a cell, CELL:METRIC, or an identity of `mbbench list series`; none: all cells", false}},
      {{"--metric", "METRIC", "default: CPU time of one CPU rank, else the step time"},
       {"--fail-on", "CHANGE", "exit status 1 when the newest change of a series is slower (or faster)"},
       kJsonOption,
       kMarkdownOption},
      true,
      history};
}

}  // namespace mbb::suites
