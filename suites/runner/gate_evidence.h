// What a night is held against: accepted launches, or, in an epoch that has none, the old product's bridge launches;
// and the nights since.
#pragma once

#include <string>
#include <vector>

#include "analysis/gate/judge.h"
#include "baselines/pins/pins.h"
#include "baselines/store/records.h"
#include "profiler/host/fact_roles.h"

namespace mbb::suites {

// Runs of these commands in the store are a gate's nights, its confirmations, and launches of an old product in a new
// environment.
inline constexpr const char* kGateCommand = "gate";
inline constexpr const char* kConfirmCommand = "gate-confirm";
inline constexpr const char* kBridgeCommand = "gate-bridge";

// Finished runs of tonight's suite, fingerprint class and epoch, oldest first.
struct GateHistory {
  std::vector<baselines::Run> nights;         // before tonight: the newest kHistoryNights, and those of each cell
  std::vector<baselines::Run> confirmations;  // of those nights' suspects
  std::vector<baselines::Run> bridges;        // of any product
};
inline constexpr size_t kHistoryNights = 30;

Result<GateHistory> read_gate_history(const baselines::Run& tonight, const std::string& store_file);

// The cell of that identity, where its launches are evidence (analysis/gate/harness.h), each of `steps_due` steps or
// more; else nullptr.
const baselines::Cell* evidence_cell(const baselines::Run& run, const std::string& identity,
                                     std::int64_t steps_due = 0);

// What a night's gate said of a metric of a series; null where nothing.
const baselines::VerdictRow* said_of(const baselines::Run& night, const std::string& identity,
                                     const std::string& metric);

// Cells that nothing tells apart but their names: on other nights evidence_cell() takes the first for all. A line each.
std::vector<std::string> cells_of_one_series(const baselines::Run& run);

// Whether --only or --skip kept a cell out of a run, by the run's command line.
bool is_left_out(const baselines::Run& run, const std::string& cell);

// The UTC day, counted from 1970, that a run began on: a night of silence, however often the gate ran on it. (Evidence
// is of runs: two of a day, which may be of two products, are two nights of a window.)
std::int64_t night_of(const baselines::Run& run);

// A series' baseline, or why it has none.
struct Baseline {
  const baselines::Pin* pin = nullptr;  // the one that stands, or that a bridge stands for
  std::vector<analysis::NightLaunches> nights;
  std::vector<std::string> bridge;  // ids of the bridge's runs; empty when the pin is of this epoch
  size_t bridge_launches = 0;       // of them; with fewer than kFewestBaselineLaunches `nights` is empty
  // When `nights` is empty:
  baselines::Verdict verdict = baselines::Verdict::kNew;
  std::string reason;
};

struct GateSeries {
  const baselines::Run& tonight;
  const baselines::Cell& cell;
  const std::string& metric;
};

// `changed`: what tells this environment from that of a pin's run, for the reason.
Baseline find_baseline(const GateSeries& series, const std::vector<baselines::Pin>& pins, const GateHistory& history,
                       const profiler::FactRoles& roles, std::int64_t now_unix_ns,
                       const std::vector<std::string>& changed);

// The newest baseline of a series that launches of its product would be a bridge for, in that environment; nullptr when
// there is none, when it has expired, when it is of this environment or when another stands here.
const baselines::Pin* pin_to_bridge(const std::vector<baselines::Pin>& pins, const std::string& identity_hash,
                                    const std::string& metric, const std::string& class_hash, const std::string& epoch,
                                    std::int64_t now_unix_ns);

// Pins hold the product of their runs as accepting them saw it: of each run that the store has, its hash and its text
// are told anew by `roles`, under which tonight's are.
Status tell_products(const std::string& store_file, const std::vector<profiler::HostFact>& declared,
                     const profiler::FactRoles& roles, std::vector<baselines::Pin>& pins);

// Whether a run's product is the one that `pin` was accepted with.
bool is_product_of(const baselines::Pin& pin, const profiler::Fingerprint& fingerprint,
                   const profiler::FactRoles& roles);

// Whether a command of the user's own ran in a cell.
bool is_command(const baselines::Cell& cell);

// A fact's value, "unknown" when the run has none.
std::string fact_of(const baselines::Run& run, const char* key);

}  // namespace mbb::suites
