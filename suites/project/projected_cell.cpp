// Projections in bundles and the store.
#include "suites/project/projected_cell.h"

#include <fmt/core.h>

#include "analysis/metrics/metrics.h"
#include "baselines/store/bundle.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"
#include "profiler/trace/trace_file.h"
#include "suites/runner/memory_rows.h"
#include "suites/runner/runner.h"
#include "suites/runner/sequence_work.h"
#include "trainer/passes/precision_recipe.h"
#include "trainer/program/explain.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

constexpr const char* kCellName = "projection";
constexpr const char* kInterval = "80 % of projections";

void add(baselines::Cell& cell, const char* id, double value, double low = baselines::kNotMeasured,
         double high = baselines::kNotMeasured) {
  const analysis::MetricInfo* info = analysis::find_metric(id);
  MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
  cell.metrics.push_back({id, value, low, high, info->unit, 0, low == low ? kInterval : ""});
}

Result<baselines::Cell> describe(const Settings& settings, const trainer::Layout& layout,
                                 const trainer::StepPrograms& programs, const std::string& run) {
  baselines::Cell cell;
  cell.run = run;
  cell.name = kCellName;
  cell.model = layout.model.name;
  cell.ranks = cell.gpus = layout.mesh.world_size();
  for (const KnobState& state : knob_states(settings.config, settings.sources))
    cell.knobs.push_back({state.knob->key, state.value, name(state.source.layer),
                          state.source.line > 0 ? state.source.place : "", state.source.line, splits_series(state)});
  MB_ASSIGN(cell.work, step_work(layout, programs));
  cell.memory = memory_maps(layout, programs);
  MB_ASSIGN(const auto rows, row_lengths(layout));
  cell.program_json = trainer::explain_json(layout, programs, rows ? &*rows : nullptr);
  cell.program_hash = trainer::program_hash(programs);
  return cell;
}

// One launch that holds the projected step and its spans.
Status write_step(baselines::BundleWriter& writer, baselines::Cell& cell, const Projection& projection) {
  MB_ASSIGN(const std::filesystem::path folder, writer.launch_folder(cell.name, 0));
  baselines::Launch launch;
  launch.started_unix_ns = launch.ended_unix_ns = wall_ns();
  MB_TRY(profiler::write_trace(folder / "trace.mbt", projection.trace));
  launch.trace_files.push_back("trace.mbt");
  MB_TRY(baselines::write_launch(folder, launch));
  cell.launches.push_back(std::move(launch));
  return {};
}

}  // namespace

void fill_projected(baselines::Cell& cell, const Projection& p, bool uses_fp8) {
  cell.result_class = baselines::ResultClass::kProjected;
  cell.devices = 0;
  const auto hardware = trainer::find_hardware(p.hardware);
  cell.device = hardware ? hardware->device_name : p.hardware;
  cell.metrics.clear();
  const auto gpus = static_cast<double>(p.gpus);
  add(cell, "step_time", p.step_ns, p.low_ns, p.high_ns);
  // Higher is shorter: the interval turns round.
  const auto rate = [&](const char* id, double a_step) {
    const double a_ns = a_step * 1e9;
    add(cell, id, a_ns / p.step_ns, a_ns / p.high_ns, a_ns / p.low_ns);
  };
  const auto tokens = static_cast<double>(p.tokens);
  const double causal = p.model_flops_causal, full = p.model_flops_full;
  rate("tokens_per_second", tokens);
  rate("tokens_per_second_per_gpu", tokens / gpus);
  rate("tflops_per_gpu_causal", causal / gpus / 1e12);
  rate("tflops_per_gpu_full", full / gpus / 1e12);
  if (hardware && hardware->bf16_tflops > 0) rate("mfu_bf16", 100 * causal / gpus / 1e12 / hardware->bf16_tflops);
  if (hardware && uses_fp8 && hardware->fp8_tflops > 0)
    rate("mfu_fp8", 100 * causal / gpus / 1e12 / hardware->fp8_tflops);
  const auto share = [&](double ns) { return 100 * ns / p.step_ns; };
  add(cell, "exposed_comm", share(p.parts.exposed_comm_ns()));
  constexpr const char* kByKind[] = {"exposed_comm_tp", "exposed_comm_cp", "exposed_comm_ep", "exposed_comm_pp",
                                     "exposed_comm_dp"};
  for (size_t kind = 0; kind < std::size(kByKind); ++kind)
    if (p.parts.exposed_ns[kind] > 0) add(cell, kByKind[kind], share(p.parts.exposed_ns[kind]));
  add(cell, "exposed_copy", share(p.parts.copy_ns));
  add(cell, "bubble", share(p.parts.bubble_ns));
  add(cell, "peak_memory", static_cast<double>(p.memory.bytes()));
}

Result<std::filesystem::path> save_projection(const Settings& settings, const std::vector<std::string>& argv,
                                              const trainer::Layout& layout, const trainer::StepPrograms& programs,
                                              const Projection& projection) {
  baselines::Run run;
  run.created_unix_ns = wall_ns();
  run.command = "project";
  run.suite = "project";
  const auto is_known = [](std::string_view name) { return find_setting(name).has_value(); };
  run.argv = profiler::capture_arguments({argv.begin() + 1, argv.end()}, is_known);
  run.environment = profiler::capture_environment(env_all(), is_known);
  run.fingerprint = profiler::take_fingerprint();
  run.planned_cells = {kCellName};
  const std::filesystem::path runs = settings.product.runs_dir;
  MB_TRY(make_dirs(runs));
  MB_ASSIGN(auto writer, baselines::BundleWriter::create_new(runs / "runs", run));
  MB_ASSIGN(baselines::Cell cell, describe(settings, layout, programs, run.id));
  fill_projected(cell, projection, trainer::is_quantized(settings.config.precision.recipe));
  cell.identity_hash = baselines::identity_hash(cell);
  MB_TRY(writer.begin_cell(cell));
  if (!projection.trace.spans.empty()) MB_TRY(write_step(writer, cell, projection));
  MB_TRY(writer.finish_cell(cell));
  run.ended_unix_ns = wall_ns();
  MB_TRY(writer.write_run(run));
  MB_ASSIGN(auto store, baselines::Store::open(store_file(runs)));
  MB_TRY(store.put_run(run, writer.folder()));
  MB_TRY(store.put_cell(cell));
  return writer.folder();
}

}  // namespace mbb::suites
