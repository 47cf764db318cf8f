// Pins by epoch, and bridges between epochs.
#include "suites/runner/gate_evidence.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "analysis/gate/gate_report.h"
#include "analysis/gate/harness.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/matrix/suite.h"
#include "suites/runner/command_cell.h"

namespace mbb::suites {
namespace {

using analysis::NightLaunches;
using baselines::Pin;
using baselines::Verdict;

size_t launches_of(const std::vector<NightLaunches>& nights) {
  size_t count = 0;
  for (const NightLaunches& night : nights) count += night.size();
  return count;
}

bool is_of(const Pin& pin, const std::string& class_hash, const std::string& epoch) {
  return pin.class_hash == class_hash && (pin.epoch.empty() || pin.epoch == epoch);
}

void add_bridge(const GateSeries& series, const GateHistory& history, const profiler::FactRoles& roles,
                Baseline& baseline) {
  for (const baselines::Run& run : history.bridges) {
    const auto* cell = evidence_cell(run, series.cell.identity_hash, baseline.pin->steps);
    if (cell == nullptr || !is_product_of(*baseline.pin, run.fingerprint, roles)) continue;
    NightLaunches launches = analysis::launch_values(*cell, series.metric, baseline.pin->steps);
    if (launches.empty()) continue;
    baseline.nights.push_back(std::move(launches));
    baseline.bridge.push_back(run.id);
  }
}

// The newest kHistoryNights gates, and as many confirmations, that have each of tonight's cells: of a suite that is run
// in parts the newest runs may be of other cells.
Result<std::set<std::string>> runs_with_cells(const baselines::Run& tonight, const baselines::Store& store) {
  std::set<std::string> runs;
  for (const baselines::Cell& cell : tonight.cells) {
    const std::vector<std::string> metrics = analysis::gated_metrics(cell);
    if (metrics.empty()) continue;
    MB_ASSIGN(const auto points, store.history(cell.identity_hash, metrics.front()));
    std::map<std::string, size_t> taken;
    for (auto point = points.rbegin(); point != points.rend(); ++point) {
      if (point->command != kGateCommand && point->command != kConfirmCommand) continue;
      if (point->suite != tonight.suite || point->class_hash != tonight.fingerprint.class_hash ||
          point->epoch != tonight.epoch || point->created_unix_ns >= tonight.created_unix_ns)
        continue;
      if (taken[point->command]++ < kHistoryNights) runs.insert(point->run);
    }
  }
  return runs;
}

}  // namespace

std::string fact_of(const baselines::Run& run, const char* key) {
  for (const auto& f : run.fingerprint.facts)
    if (f.key == key) return f.value;
  return "unknown";
}

const baselines::Cell* evidence_cell(const baselines::Run& run, const std::string& identity, std::int64_t steps_due) {
  for (const auto& cell : run.cells)
    if (cell.identity_hash == identity && analysis::no_evidence(cell, steps_due).empty()) return &cell;
  return nullptr;
}

const baselines::VerdictRow* said_of(const baselines::Run& night, const std::string& identity,
                                     const std::string& metric) {
  for (const auto& cell : night.cells)
    for (const baselines::VerdictRow& said : cell.verdicts)
      if (cell.identity_hash == identity && said.subject == metric) return &said;
  return nullptr;
}

std::vector<std::string> cells_of_one_series(const baselines::Run& run) {
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& cell : run.cells)
    if (cell.status == baselines::CellStatus::kOk) names[cell.identity_hash].push_back(cell.name);
  std::vector<std::string> lines;
  for (const auto& [identity, of] : names)
    if (of.size() > 1)
      lines.push_back(fmt::format(
          "{} are one series, as no knob that splits series differs: {} stands for all of them on other nights. Leave "
          "the others out; a command that has {{cell}} in it is a series a cell",
          join(of, ", "), of.front()));
  return lines;
}

bool is_left_out(const baselines::Run& run, const std::string& cell) {
  bool filtered = false, named = false;
  for (size_t i = 0; i < run.argv.size(); ++i) {
    const profiler::CapturedValue& word = run.argv[i];
    if (word.name != "--only" && word.name != "--skip") continue;
    const bool joined = !word.value.empty() || i + 1 == run.argv.size();  // --only=PATTERN
    const profiler::CapturedValue& pattern = joined ? word : run.argv[i + 1];
    if (pattern.hashed) continue;  // of a record that kept no patterns
    const bool matches = cell_matches(pattern.value, cell);
    if (word.name == "--skip" && matches) return true;
    if (word.name == "--only") filtered = true, named = named || matches;
  }
  return filtered && !named;
}

std::int64_t night_of(const baselines::Run& run) {
  constexpr std::int64_t kDayNs = std::int64_t{24} * 3600 * 1'000'000'000;
  return run.created_unix_ns / kDayNs;
}

const Pin* pin_to_bridge(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& metric,
                         const std::string& class_hash, const std::string& epoch, std::int64_t now_unix_ns) {
  if (baselines::find_pin(pins, identity_hash, class_hash, epoch, metric, now_unix_ns) != nullptr) return nullptr;
  const Pin* pin = baselines::find_any_pin(pins, identity_hash, metric);
  const bool here = pin != nullptr && is_of(*pin, class_hash, epoch);
  return pin == nullptr || here || baselines::has_expired(*pin, now_unix_ns) ? nullptr : pin;
}

bool is_command(const baselines::Cell& cell) {
  return std::any_of(cell.knobs.begin(), cell.knobs.end(),
                     [](const baselines::KnobValue& knob) { return knob.key == kCommandKnob; });
}

bool is_product_of(const Pin& pin, const profiler::Fingerprint& fingerprint, const profiler::FactRoles& roles) {
  if (!pin.product.empty()) return pin.product == profiler::product_hash(fingerprint, roles);
  baselines::Run run;
  run.fingerprint = fingerprint;
  return !pin.build.empty() && pin.build != "unknown" && pin.build == fact_of(run, "build.commit");
}

Status tell_products(const std::string& store_file, const std::vector<profiler::HostFact>& declared,
                     const profiler::FactRoles& roles, std::vector<Pin>& pins) {
  if (pins.empty() || !file_exists(store_file)) return {};
  MB_ASSIGN(const auto store, baselines::Store::open(store_file, {.read_only = true}));
  std::map<std::string, std::pair<std::string, std::string>> products;  // by run: hash and text
  for (Pin& pin : pins) {
    if (pin.product.empty() || pin.runs.empty()) continue;
    const auto [known, is_new] = products.try_emplace(pin.runs.front());
    if (is_new) {
      MB_ASSIGN(const profiler::Fingerprint facts, store.fingerprint(pin.runs.front()));
      if (!facts.facts.empty())
        known->second = {profiler::product_hash(facts, roles), profiler::product_text(facts, declared, roles)};
    }
    if (known->second.first.empty()) continue;
    pin.product = known->second.first;
    pin.build = known->second.second;
  }
  return {};
}

Result<GateHistory> read_gate_history(const baselines::Run& tonight, const std::string& store_file) {
  GateHistory history;
  if (!file_exists(store_file)) return history;
  MB_ASSIGN(const auto store, baselines::Store::open(store_file, {.read_only = true}));
  MB_ASSIGN(const auto summaries, store.list_runs());
  MB_ASSIGN(const auto with_cells, runs_with_cells(tonight, store));
  for (const auto& s : summaries) {
    const bool bridge = s.command == kBridgeCommand;
    std::vector<baselines::Run>* runs = bridge                         ? &history.bridges
                                        : s.command == kGateCommand    ? &history.nights
                                        : s.command == kConfirmCommand ? &history.confirmations
                                                                       : nullptr;
    if (runs == nullptr || s.suite != tonight.suite || s.id == tonight.id) continue;
    if (s.ended_unix_ns == 0 || s.class_hash != tonight.fingerprint.class_hash || s.epoch != tonight.epoch) continue;
    if (!bridge && s.created_unix_ns >= tonight.created_unix_ns) continue;
    if (!bridge && runs->size() >= kHistoryNights && !with_cells.contains(s.id)) continue;
    MB_ASSIGN(auto run, store.load_run(s.id));
    runs->push_back(std::move(run));
  }
  for (auto* runs : {&history.nights, &history.confirmations, &history.bridges})
    std::reverse(runs->begin(), runs->end());
  return history;
}

Baseline find_baseline(const GateSeries& series, const std::vector<Pin>& pins, const GateHistory& history,
                       const profiler::FactRoles& roles, std::int64_t now_unix_ns,
                       const std::vector<std::string>& changed) {
  Baseline baseline;
  const std::string& identity = series.cell.identity_hash;
  baseline.pin = baselines::find_pin(pins, identity, series.tonight.fingerprint.class_hash, series.tonight.epoch,
                                     series.metric, now_unix_ns);
  if (baseline.pin != nullptr) {
    baseline.nights = baseline.pin->nights;
    return baseline;
  }
  baseline.pin = baselines::find_any_pin(pins, identity, series.metric);
  if (baseline.pin == nullptr) {
    baseline.reason = "no baseline: `mbbench baseline accept` makes one of this run";
    return baseline;
  }
  const Pin& pin = *baseline.pin;
  if (baselines::has_expired(pin, now_unix_ns)) {
    baseline.verdict = Verdict::kInconclusive;
    baseline.reason = fmt::format("baseline {} expired on {}: accept a new one (`mbbench baseline accept`)", pin.id,
                                  iso_time(pin.expires_unix_ns).substr(0, 10));
    return baseline;
  }
  if (is_of(pin, series.tonight.fingerprint.class_hash, series.tonight.epoch)) {
    baseline.reason = "no baseline stands: `mbbench baseline accept` makes one of this run";
    return baseline;
  }
  add_bridge(series, history, roles, baseline);
  const size_t have = launches_of(baseline.nights);
  baseline.bridge_launches = have;
  if (have >= analysis::kFewestBaselineLaunches) return baseline;
  baseline.nights.clear();
  baseline.verdict = Verdict::kIncomparable;
  // Of a trainer of the user's own, the old product is what its facts say, not another mbbench.
  baseline.reason = fmt::format(
      "a new epoch since baseline {} ({}); {} of {} bridge launches: run the old product ({}) here with `mbbench gate "
      "SUITE --bridge {}",
      pin.id, join(changed, "; "), have, analysis::kFewestBaselineLaunches, pin.build,
      is_command(series.cell) ? "this` and the gate.facts that it has" : "PROGRAM`");
  return baseline;
}

}  // namespace mbb::suites
