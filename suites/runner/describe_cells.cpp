// The record of every cell before it runs: what the configuration alone says.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "profiler/base/hash.h"
#include "profiler/host/gpus.h"
#include "suites/project/projector.h"
#include "suites/runner/cell_inputs.h"
#include "suites/runner/command_cell.h"
#include "suites/runner/memory_rows.h"
#include "suites/runner/plan_probe.h"
#include "suites/runner/planning.h"
#include "suites/runner/published_beside.h"
#include "suites/runner/reason.h"
#include "suites/runner/runner.h"
#include "suites/runner/sequence_work.h"
#include "trainer/models/hardware.h"
#include "trainer/models/hf_config.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

std::vector<baselines::KnobValue> knob_values(const Cell& cell) {
  std::vector<baselines::KnobValue> values;
  for (const KnobState& state : knob_states(cell.config, cell.sources)) {
    const bool from_file = state.source.line > 0;
    values.push_back({state.knob->key, state.value, name(state.source.layer), from_file ? state.source.place : "",
                      state.source.line, splits_series(state)});
    if (state.knob->key == "model.name" && trainer::is_model_path(state.value)) values.back().identity = false;
  }
  return values;
}

constexpr const char* kUsualHardware = "h100-sxm";

// A cell that asks for GPUs is measured on all of them, else projected, else skipped with the reason.
void place_on_gpus(baselines::Cell& cell, const trainer::HostConfig& host, const RunOptions& options,
                   const std::string& hardware) {
  const profiler::GpuInventory found = profiler::list_gpus();
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.device = found.gpus.empty() ? "cuda" : found.gpus.front().model;
  if (host.share_device) cell.gpus = std::min(cell.ranks, std::max(1, static_cast<int>(found.gpus.size())));
  cell.devices = cell.gpus;
  if (static_cast<int>(found.gpus.size()) >= cell.gpus) return;
  if (const auto known = trainer::find_hardware(hardware); known && options.project) {
    cell.result_class = baselines::ResultClass::kProjected;
    cell.device = known->device_name;
    cell.devices = 0;
    return;
  }
  cell.status = CellStatus::kSkipped;
  cell.reason = fmt::format("needs {} GPU{}, this machine has {}{}", cell.gpus, cell.gpus == 1 ? "" : "s",
                            found.gpus.size(), found.note.empty() ? "" : " (" + found.note + ")");
}

// A step that cannot fit is skipped before anything runs; its memory map stays, to look at.
void check_fit(baselines::Cell& cell, const trainer::Layout& layout, const trainer::StepPrograms& programs,
               const std::string& hardware) {
  int64_t capacity = 0;
  const bool projected = cell.result_class == baselines::ResultClass::kProjected;
  if (projected) {
    if (const auto known = trainer::find_hardware(hardware)) capacity = plan_capacity_bytes(*known);
  } else if (layout.config.host.device == trainer::Device::kCuda)
    if (const auto gpus = profiler::list_gpus().gpus; !gpus.empty()) capacity = gpus.front().memory_bytes;
  if (const Status fits = trainer::check_memory(layout, programs, capacity); !fits) {
    cell.status = CellStatus::kSkipped;
    const std::string& what = fits.error().what;
    // The largest tensors and the remedies stand in the plan, which the cell keeps; a table has a line for it.
    cell.reason = projected ? fmt::format("does not fit {}: {}", hardware, what.substr(0, what.find(';')))
                            : reason_of(fits.error());
  }
}

// Whether the cell's device computes the recipe's numbers in formats of its own. A device outside the table is taken to
// have what its executor runs.
bool emulates(const baselines::Cell& cell, trainer::Recipe recipe) {
  if (cell.device == "cpu") return trainer::is_quantized(recipe);
  const auto known = trainer::match_device(cell.device);
  return known && !trainer::runs_natively(recipe, known->compute_major, known->compute_minor);
}

// The full model of a proxy, which has fewer layers; empty for a whole one.
std::string proxied_model(const trainer::ModelConfig& model) {
  const auto whole = trainer::find_model(model.name);
  return whole && model.num_layers > 0 && model.num_layers < whole->num_layers ? whole->name : "";
}

// A model that a file describes is another one when the file changes, and the same wherever the file lies: so are its
// series and baselines.
std::string model_of(const trainer::ModelConfig& model) {
  if (!trainer::is_model_path(model.name)) return model.name;
  const auto shape = trainer::resolve_model(model.name);
  const auto hash = hash_file_hex(trainer::model_file(model.name).string());
  return shape && hash ? fmt::format("{}@{}", shape->name, hash->substr(0, 8)) : model.name;
}

// What every record says, whatever the cell is.
baselines::Cell named_cell(const Cell& planned, int index, const std::string& run) {
  baselines::Cell cell;
  cell.run = run;
  cell.name = planned.name;
  cell.index = index;
  cell.device = "cpu";
  cell.knobs = knob_values(planned);
  cell.published = planned.published;
  cell.model = model_of(planned.config.model);
  return cell;
}

// The record of a cell before it runs: everything that the configuration alone says.
baselines::Cell describe_cell(const Cell& planned, int index, const std::string& run, const RunOptions& options,
                              const std::string& hardware, DataHashes& data) {
  baselines::Cell cell = named_cell(planned, index, run);
  if (planned.config.host.device == trainer::Device::kCuda)
    cell.result_class = options.project ? baselines::ResultClass::kProjected : baselines::ResultClass::kMeasured;
  if (planned.skipped) {
    cell.status = CellStatus::kSkipped;
    cell.reason = planned.skipped->reason;
    return cell;
  }
  if (planned.command) {
    describe_command(planned, cell);
    return cell;
  }
  const auto layout = trainer::resolve(planned.config);
  if (!layout) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(layout.error());
    return cell;
  }
  cell.ranks = cell.gpus = layout->mesh.world_size();
  cell.proxy_of = proxied_model(planned.config.model);
  if (planned.config.host.device == trainer::Device::kCuda) {
    place_on_gpus(cell, planned.config.host, options, hardware);
    if (cell.published.empty()) cell.published = published_beside(*layout, hardware);
  }
  if (planned.config.host.vboost >= 0 && !options.allow_clock_changes) {
    cell.status = CellStatus::kSkipped;
    cell.reason =
        fmt::format("host.vboost = {} changes clocks, which needs --allow-clock-changes", planned.config.host.vboost);
  }
  cell.numerics_only = emulates(cell, planned.config.precision.recipe) || planned.config.host.share_device;
  if (cell.numerics_only && cell.result_class == baselines::ResultClass::kProjected) {
    cell.status = CellStatus::kSkipped;
    cell.reason = fmt::format("{} has no {}, and emulated steps are not projected", hardware,
                              trainer::recipe_name(planned.config));
  }
  const auto programs = trainer::build_programs(*layout);
  if (!programs) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(programs.error());
    return cell;
  }
  const auto work = step_work(*layout, *programs);
  const auto rows = row_lengths(*layout);
  if (!work || !rows) {
    cell.status = CellStatus::kBroken;
    cell.reason = reason_of(work ? rows.error() : work.error());
    return cell;
  }
  cell.work = *work;
  cell.memory = memory_maps(*layout, *programs);
  cell.program_json = trainer::explain_json(*layout, *programs, rows->has_value() ? &**rows : nullptr);
  cell.program_hash = trainer::program_hash(*programs);
  if (cell.result_class != baselines::ResultClass::kProjected) cell.data_hash = data.of(*layout);
  cell.identity_hash = baselines::identity_hash(cell);
  if (cell.status == CellStatus::kOk) check_fit(cell, *layout, *programs, hardware);
  return cell;
}

// What of a cell's description meets our own checks.
void plan_once(const Cell& cell) {
  if (cell.skipped || cell.command) return;
  if (const auto layout = trainer::resolve(cell.config)) static_cast<void>(trainer::build_programs(*layout));
}

}  // namespace

std::string hardware_of(const Suite& suite, const RunOptions& options) {
  if (!options.hardware.empty()) return options.hardware;
  return suite.hardware.empty() ? kUsualHardware : suite.hardware;
}

std::vector<baselines::Cell> describe_cells(const Suite& suite, const RunOptions& options) {
  const Planning planning;
  std::vector<baselines::Cell> planned;
  const std::string hardware = hardware_of(suite, options);
  DataHashes data;
  // Of a single configuration a failed check ends no others.
  PlanProbe probe(suite.cells.size() > 1 ? suite.cells.size() : 0, [&](size_t i) { plan_once(suite.cells[i]); });
  for (size_t i = 0; i < suite.cells.size(); ++i) {
    const int index = static_cast<int>(i);
    const std::string failed = probe.failure(i);
    if (failed.empty()) {
      planned.push_back(describe_cell(suite.cells[i], index, "", options, hardware, data));
      continue;
    }
    planned.push_back(named_cell(suite.cells[i], index, ""));
    planned.back().status = CellStatus::kBroken;
    planned.back().reason = failed;
  }
  return planned;
}

}  // namespace mbb::suites
