// Which baselines wait for a bridge, and what its launches came to.
#include "suites/runner/bridge.h"

#include <fmt/core.h>

#include <algorithm>

#include "analysis/gate/harness.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

using baselines::Pin;

Error other_product(const Pin& pin, const profiler::Fingerprint& here, const RunOptions& options,
                    const std::string& store_file) {
  std::string changed;
  if (const auto store = baselines::Store::open(store_file, {.read_only = true}); store && !pin.runs.empty())
    if (const auto then = store->fingerprint(pin.runs.front()); then && !then->facts.empty())
      changed = " (" + join(profiler::changed_product(*then, here, options.roles), "; ") + ")";
  return {ErrorCode::kMismatch,
          fmt::format("no bridge: this is {}, and baseline {}, accepted on {}, is of another product, {}{}",
                      profiler::product_text(here, options.facts, options.roles), pin.id,
                      iso_time(pin.accepted_unix_ns).substr(0, 10), pin.build, changed),
          "give the program, and the facts under gate.facts, that the baselines were accepted with; gate.product says "
          "which facts count, the program's own build among them unless it says otherwise"};
}

// The standing baselines of the suite's cells: by identity, and by name, since what a user's own command runs is known
// only when it has run.
std::vector<const Pin*> pins_of(const Suite& suite, const std::vector<Pin>& pins, const RunOptions& options) {
  const std::vector<baselines::Cell> cells = describe_cells(suite, options);
  std::vector<const Pin*> found;
  for (const Pin& pin : pins) {
    const auto is_its = [&](const baselines::Cell& c) { return c.identity_hash == pin.identity_hash; };
    const auto is_named = [&](const Cell& c) {
      return c.command && c.name == pin.cell && baselines::may_be_of(pin, suite.name);
    };
    if (pin.ended_by.empty() && (std::any_of(cells.begin(), cells.end(), is_its) ||
                                 std::any_of(suite.cells.begin(), suite.cells.end(), is_named)))
      found.push_back(&pin);
  }
  return found;
}

Status check_bridge(const Suite& suite, const GateRequest& request, const RunOptions& options) {
  MB_ASSIGN(const profiler::RoledFacts here, facts_here(options));
  const std::vector<const Pin*> pins = pins_of(suite, request.pins, options);
  if (pins.empty())
    return fail(ErrorCode::kNotFound, "no bridge: none of the suite's cells has a baseline",
                "`mbbench baseline list` lists them");
  const Pin* other = nullptr;
  for (const Pin* pin : pins) {
    if (pin_to_bridge(request.pins, pin->identity_hash, pin->metric, here.fingerprint.class_hash, here.epoch,
                      request.now_unix_ns) != pin)
      continue;
    if (is_product_of(*pin, here.fingerprint, options.roles)) return {};
    other = pin;
  }
  if (other != nullptr)
    return tl::unexpected<Error>(other_product(*other, here.fingerprint, options, request.store_file));
  return fail(
      ErrorCode::kNotFound,
      fmt::format("nothing to bridge: baseline {} and the others of the suite's cells are of this environment, or "
                  "have expired",
                  pins.front()->id),
      "in the environment of its baselines the gate judges without a bridge; for one that expired, accept another");
}

}  // namespace

Result<Bridged> run_bridge(const Suite& suite, const GateRequest& request, RunOptions options) {
  MB_TRY(check_bridge(suite, request, options));
  options.command = kBridgeCommand;
  MB_ASSIGN(const RunOutcome outcome, start_run(suite, options));
  if (outcome.stopped) return fail(ErrorCode::kCancelled, "stopped while the old product ran");
  const baselines::Run& run = outcome.run;
  MB_ASSIGN(GateHistory history, read_gate_history(run, request.store_file));
  history.bridges.push_back(run);
  Bridged bridged;
  const Pin* other = nullptr;
  std::vector<std::string> trouble;
  for (const auto& cell : run.cells) {
    if (cell.status == baselines::CellStatus::kSkipped) continue;
    const int64_t due = baselines::steps_due(request.pins, cell.identity_hash, run.fingerprint.class_hash);
    if (const std::string error = analysis::no_evidence(cell, due); !error.empty()) {
      trouble.push_back(fmt::format("cell {}: {}", cell.name, error));
      continue;
    }
    for (const std::string& metric : analysis::gated_metrics(cell)) {
      const Pin* pin = pin_to_bridge(request.pins, cell.identity_hash, metric, run.fingerprint.class_hash, run.epoch,
                                     request.now_unix_ns);
      if (pin == nullptr) continue;
      if (!is_product_of(*pin, run.fingerprint, options.roles)) {
        other = pin;
        continue;
      }
      const Baseline baseline =
          find_baseline({run, cell, metric}, request.pins, history, options.roles, request.now_unix_ns, {});
      if (!baseline.nights.empty()) {
        ++bridged.whole;
        continue;
      }
      bridged.launches =
          bridged.begun == 0 ? baseline.bridge_launches : std::min(bridged.launches, baseline.bridge_launches);
      ++bridged.begun;
    }
  }
  if (!trouble.empty())
    return fail(ErrorCode::kMismatch,
                fmt::format("{} baselines have a bridge, and not those of {}", bridged.whole, join(trouble, "; ")),
                "launches that broke or lost a step stand for no product: run --bridge again once they are whole");
  if (bridged.whole + bridged.begun > 0) return bridged;
  if (other != nullptr)
    return tl::unexpected<Error>(other_product(*other, run.fingerprint, options, request.store_file));
  return fail(ErrorCode::kNotFound, "no bridge: no cell that ran has a baseline in another environment",
              "`mbbench baseline list` lists them");
}

}  // namespace mbb::suites
