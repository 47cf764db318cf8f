// mbbench ab: two products (binaries, build folders or knob sets) launched in turn until the verdict is clear.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "analysis/gate/ab.h"
#include "analysis/gate/canary.h"
#include "analysis/gate/gate_report.h"
#include "analysis/gate/harness.h"
#include "analysis/gate/signed_values.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/stats.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/runner.h"

namespace mbb::suites {
namespace {

using baselines::Verdict;

// What an argument names: another program, or knobs for this one.
struct Arm {
  std::string label;
  std::string program;             // empty: this one
  std::vector<std::string> knobs;  // "tp=2"
};

Result<Arm> arm_of(const std::string& text) {
  if (text == "this") return Arm{text, "", {}};
  if (is_folder(text)) {
    for (const char* below : {"bin/mbbench", "mbbench"}) {
      const std::string program = std::filesystem::absolute(std::filesystem::path(text) / below).string();
      if (file_exists(program)) return Arm{text, program, {}};
    }
    return fail(ErrorCode::kNotFound, fmt::format("{}: neither bin/mbbench nor mbbench is in it", printable(text)),
                "give a build folder");
  }
  if (file_exists(text)) {
    if (access(text.c_str(), X_OK) == 0) return Arm{text, std::filesystem::absolute(text).string(), {}};
    return fail(ErrorCode::kBadArgument, fmt::format("{} is no program", printable(text)));
  }
  if (text.find('=') != std::string::npos) {
    Arm arm{text, "", {}};
    for (const auto knob : split(text, ',')) arm.knobs.emplace_back(trim(knob));
    return arm;
  }
  return fail(
      ErrorCode::kBadArgument, fmt::format("'{}' is no program, build folder or knob set", printable(text)),
      "of a commit, give the folder it was built in; of knobs, tp=2,sequence_parallel=true; `this` is this program");
}

Result<Suite> suite_of_arm(const Parsed& parsed, const Arm& arm) {
  Parsed with = parsed;
  with.knobs.insert(with.knobs.end(), arm.knobs.begin(), arm.knobs.end());
  MB_ASSIGN(const Settings settings, settings_of(with));
  return suite_of(with, settings, parsed.positionals[2]);
}

// Why a metric may be missing in one arm.
constexpr const char* kOfOneRank = " (on the CPU only the time of one rank counts)";

// Launch values of one cell, by arm.
struct Series {
  std::string metric;
  std::string class_label;
  std::vector<double> values[2];
  int64_t steps = 0;    // that a launch of either arm must have
  std::string trouble;  // a launch that gave none
  analysis::AbDecision decision;
  bool decided = false;
};

class Ab {
 public:
  Ab(Arm a, Arm b, Suite suite_a, Suite suite_b, RunOptions options, std::vector<size_t> looks)
      : arms_{std::move(a), std::move(b)},
        suites_{std::move(suite_a), std::move(suite_b)},
        options_(std::move(options)),
        looks_(std::move(looks)),
        equal_iterations_(iterations(suites_[0]) == iterations(suites_[1])) {}

  // Returns false when it was stopped.
  Result<bool> run() {
    size_t done = 0;
    for (const size_t look : looks_) {
      for (; done < look; ++done) {
        const int64_t begin = monotonic_ns();
        // Who goes first changes, so that a drift of the machine falls on both.
        for (const int arm : {static_cast<int>(done % 2), 1 - static_cast<int>(done % 2)}) {
          MB_ASSIGN(const bool whole, launch(arm));
          if (!whole) return false;
        }
        if (done == 0 && !options_.quiet)
          say(fmt::format("a pair of launches takes {}: at most {} in all\n",
                          format_ns(static_cast<double>(monotonic_ns() - begin)),
                          format_ns(static_cast<double>(monotonic_ns() - begin) * static_cast<double>(looks_.back()))));
      }
      if (judge()) break;
    }
    return true;
  }

  const std::map<std::string, Series>& series() const { return series_; }
  std::vector<std::string> skipped() const {
    std::vector<std::string> lines;
    for (const auto& [name, reason] : skipped_) lines.push_back(fmt::format("skipped: {}: {}", name, reason));
    return lines;
  }

  // By how much the machine itself, by its canaries, was slower for one arm than for the other. Launches take turns, so
  // what changes for good falls on both.
  std::string canaries() const {
    if (canaries_.empty()) return "";
    analysis::Slowdown most;
    const char* arm = "";
    for (const auto& [name, of_arm] : canaries_)
      for (const int b : {0, 1})
        if (auto slowdown = analysis::machine_slowdown(of_arm[1 - b], of_arm[b]); slowdown.by > most.by)
          most = std::move(slowdown), arm = b == 0 ? "A" : "B";
    return analysis::explains(most.by, most.by) ? fmt::format("canaries {:+.2f} % on {} beside {}: {}", 100 * most.by,
                                                              most.of, arm, analysis::cause(most))
                                                : fmt::format("canaries steady ({:+.2f} %)", 100 * most.by);
  }
  std::vector<std::string> contended() const {
    std::vector<std::string> lines;
    for (const auto& [name, of_arm] : canaries_)
      for (const int arm : {0, 1})
        if (const auto shared = analysis::contention(of_arm[arm]); shared.by > 0)
          lines.push_back(fmt::format("{}, {}: {}", name, arm == 0 ? "A" : "B", analysis::text(shared)));
    return lines;
  }

 private:
  static std::map<std::string, int64_t> iterations(const Suite& suite) {
    std::map<std::string, int64_t> of;
    for (const Cell& cell : suite.cells) of[cell.name] = cell.config.train.train_iters;
    return of;
  }

  Result<bool> launch(int arm) {
    Suite suite = suites_[arm];
    std::erase_if(suite.cells, [&](const Cell& c) {
      const auto found = series_.find(c.name);
      return found != series_.end() && found->second.decided;
    });
    RunOptions options = options_;
    options.program = arms_[arm].program;
    options.tag = fmt::format("ab-{}", arm == 0 ? "a" : "b");
    MB_ASSIGN(const RunOutcome outcome, start_run(suite, options));
    if (outcome.stopped) return false;
    for (const auto& cell : outcome.run.cells) {
      if (cell.status == baselines::CellStatus::kSkipped)
        skipped_.emplace(cell.name, cell.reason);
      else
        take(arm, cell);
    }
    return true;
  }

  // What a launch of an arm measured.
  void take(int arm, const baselines::Cell& cell) {
    Series& s = series_[cell.name];
    std::string error = analysis::no_evidence(cell, s.steps);
    // Steps that are missing are why a cell found no steady state.
    const std::string missing = analysis::harness_error(cell, s.steps);
    if (!missing.empty()) error = missing;
    const bool unstable = cell.status == baselines::CellStatus::kUnstable && missing.empty();
    const auto gated = analysis::gated_metrics(cell);
    const std::string metric = gated.empty() ? analysis::kRunRow : gated.front();
    // An arm that measured nothing is broken, whichever metric the other is judged by.
    if ((error.empty() || unstable) && !s.metric.empty() && metric != s.metric && !gated.empty() &&
        s.metric != analysis::kRunRow) {
      s.decision.verdict = Verdict::kIncomparable;
      s.decision.text = fmt::format("{} is judged by {}, {} by {}{}", arms_[1 - arm].label, s.metric, arms_[arm].label,
                                    metric, kOfOneRank);
      s.decided = true;
      return;
    }
    s.metric = metric;
    s.class_label = baselines::class_label(cell);
    keep_canaries(arm, cell);
    const auto values = gated.empty() ? analysis::NightLaunches{} : analysis::launch_values(cell, s.metric);
    if (!error.empty() || values.empty()) {
      s.trouble =
          fmt::format("{} ({}): {}", arm == 0 ? "A" : "B", arms_[arm].label, error.empty() ? "no number" : error);
      s.decision.verdict = unstable ? Verdict::kUnstable : Verdict::kBroken;
      s.decision.text = s.trouble;
      s.decided = true;
      return;
    }
    if (equal_iterations_) s.steps = std::max(s.steps, analysis::steps_of(cell));
    s.values[arm].insert(s.values[arm].end(), values.begin(), values.end());
  }

  void keep_canaries(int arm, const baselines::Cell& cell) {
    if (std::isnan(analysis::canary_times(cell).arithmetic_ns)) return;
    baselines::Cell& of_arm = canaries_[cell.name][static_cast<size_t>(arm)];
    of_arm.result_class = cell.result_class;
    for (const baselines::Launch& launch : cell.launches) of_arm.launches.emplace_back().counts = launch.counts;
  }

  // Of the arm that another process took more from, its time says nothing.
  void excuse(const std::string& cell, analysis::AbDecision& decision) const {
    const auto found = canaries_.find(cell);
    const int slower = decision.verdict == Verdict::kSlower ? 1 : decision.verdict == Verdict::kFaster ? 0 : -1;
    if (slower < 0 || found == canaries_.end()) return;
    const auto& of_arm = found->second;
    const auto slowdown = analysis::machine_slowdown(of_arm[1 - slower], of_arm[slower]);
    if (!slowdown.shared || !analysis::explains(slowdown.by, std::abs(decision.difference.relative.value))) return;
    decision.verdict = Verdict::kIncomparable;
    decision.text += fmt::format("; {} is {:+.2f} % slower beside {}: {}, not the product", slowdown.of,
                                 100 * slowdown.by, slower == 1 ? "B" : "A", analysis::cause(slowdown));
  }

  // True when every cell is decided.
  bool judge() {
    bool all = true;
    for (auto& [name, s] : series_) {
      if (!s.decided) {
        const analysis::Differences d = analysis::differences_of(s.metric, {s.values[0]}, {s.values[1]});
        s.decision = analysis::ab_look(d.of(s.values[0]), d.of(s.values[1]), looks_.size());
        excuse(name, s.decision);
        if (d) s.decision.text += fmt::format("; % of {:.4g}, as values of 0 or below have no ratios", d.unit);
        s.decided = s.decision.verdict != Verdict::kInconclusive;
      }
      all = all && s.decided;
    }
    return all;
  }

  Arm arms_[2];
  Suite suites_[2];
  RunOptions options_;
  std::vector<size_t> looks_;
  bool equal_iterations_;  // the arms' launches owe each other as many steps
  std::map<std::string, Series> series_;
  std::map<std::string, std::string> skipped_;                      // why, by name
  std::map<std::string, std::array<baselines::Cell, 2>> canaries_;  // of all launches: cells of nothing else, by name
};

// Beside each verdict the medians of both arms; for machines as numbers, with the change.
analysis::Table ab_table(const analysis::GateReport& report, const std::map<std::string, Series>& series,
                         bool numbers) {
  using analysis::Align;
  analysis::Table table = analysis::gate_table(report);
  const auto add = [](auto& to, const auto& more) { to.insert(to.end() - 1, more.begin(), more.end()); };
  add(table.columns, std::vector<analysis::Column>{{"a", "A", Align::kRight}, {"b", "B", Align::kRight}});
  if (numbers)
    add(table.columns,
        std::vector<analysis::Column>{{"unit", "unit"}, {"change", "change"}, {"low", "low"}, {"high", "high"}});
  for (analysis::Row& row : table.rows) {
    const Series& s = series.at(row.values[0].text);
    const analysis::MetricInfo* as = analysis::find_metric(s.metric);
    std::vector<analysis::Value> more;
    for (const auto& arm : s.values) {
      const double middle = analysis::median(arm);
      const bool is_known = as != nullptr && std::isfinite(middle);
      more.push_back(is_known ? analysis::Value{analysis::format_value(*as, middle), middle} : analysis::Value{"-"});
    }
    const analysis::Estimate& change = s.decision.difference.relative;
    if (numbers) {
      more.push_back({as == nullptr ? "-" : std::string(as->unit)});
      for (const double fraction : {change.value, change.low, change.high})
        more.push_back({std::isfinite(fraction) ? format_percent(fraction, 2) : "-", fraction});
    }
    add(row.values, more);
  }
  return table;
}

Result<int> ab(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const Arm a, arm_of(parsed.positionals[0]));
  MB_ASSIGN(const Arm b, arm_of(parsed.positionals[1]));
  const auto budget = parse_int(parsed.value("--budget").value_or("12"));
  if (!budget || *budget < 3 || *budget > 1000)
    return fail(ErrorCode::kBadArgument,
                fmt::format("--budget {}: a number from 3 to 1000", parsed.value("--budget").value_or("")));
  MB_ASSIGN(Suite suite_a, suite_of_arm(parsed, a));
  MB_ASSIGN(Suite suite_b, suite_of_arm(parsed, b));
  // A command of the user's own is launched the same way by whichever mbbench: two of these are no two products.
  const auto command = std::find_if(suite_a.cells.begin(), suite_a.cells.end(),
                                    [](const Cell& cell) { return cell.command.has_value(); });
  if (a.program != b.program && command != suite_a.cells.end())
    return fail(ErrorCode::kBadArgument,
                fmt::format("cell {} runs a command of its own, which neither {} nor {} is", command->name,
                            printable(a.label), printable(b.label)),
                "compare knobs that the command reads as {knob.NAME}, such as seed=1 and seed=2");
  const auto looks = analysis::ab_looks(static_cast<size_t>(*budget));
  StopSignals signals;
  RunOptions options;
  options.command = "ab";
  options.argv = parsed.argv;
  options.runs_dir = settings.product.runs_dir;
  options.roles = roles_of(settings);
  options.facts = declared_facts(settings.product.gate);
  options.quiet = parsed.flag("--quiet");
  options.stop = signals.flag();
  if (!options.quiet) {
    std::string at;
    for (const size_t look : looks) at += (at.empty() ? "" : ", ") + std::to_string(look);
    say(fmt::format("ab: {} cells, A = {}, B = {}; at most {} launches an arm, compared at {}\n", suite_a.cells.size(),
                    a.label, b.label, looks.back(), at));
  }
  Ab experiment(a, b, std::move(suite_a), std::move(suite_b), options, looks);
  MB_ASSIGN(const bool whole, experiment.run());
  if (!whole) return signals.interrupted() ? kExitInterrupted : kExitStopped;
  analysis::GateReport report{fmt::format("ab {} | {}", a.label, b.label),
                              "",
                              b.label,
                              "A = " + a.label,
                              "",
                              experiment.canaries(),
                              {},
                              experiment.skipped()};
  for (std::string& line : experiment.contended()) report.warnings.push_back(std::move(line));
  for (const auto& [name, s] : experiment.series()) {
    analysis::GateRow row{name, s.metric, s.class_label, "A", {}};
    row.verdict.verdict = s.decision.verdict;
    row.verdict.text = s.decision.text;
    report.rows.push_back(std::move(row));
  }
  print_tables(parsed, {ab_table(report, experiment.series(), parsed.flag("--json"))});
  return analysis::gate_exit_status(report);
}

}  // namespace

Command ab_command() {
  return {"ab",
          "launch two products in turn until B is slower, same or faster than A, within a budget",
          {{"A", "a program, a build folder, knobs as tp=2,cp=1, or `this`"},
           {"B", "likewise"},
           {"SUITE", "a name of `mbbench list suites`, or a TOML file"}},
          {{"--budget", "N", "launches an arm at most (default 12)"},
           {"--only", "CELL", "run only cells that match (repeats)", true},
           {"--skip", "CELL", "leave out cells that match (repeats)", true},
           {"--quiet", nullptr, "no progress"},
           kJsonOption,
           kMarkdownOption},
          true,
          ab};
}

}  // namespace mbb::suites
