// A made-up run with every kind of record in it.
#include "baselines/store/fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "baselines/store/bundle.h"

namespace mbb::baselines {
namespace {

constexpr const char* kLabel = "made up by make_synthetic_run; nothing here was measured";
constexpr const char* kDevice = "synthetic device";

// Spread of +-`relative` around 1, the same on every platform (the standard's distributions are not).
double jitter(std::mt19937_64& random, double relative) {
  const double unit = static_cast<double>(random() >> 11U) * 0x1p-53;
  return 1.0 + relative * (2.0 * unit - 1.0);
}

std::int64_t ns(double value) {
  return std::llround(value);
}

std::vector<Step> make_steps(const SyntheticOptions& options, double step_ns, std::mt19937_64& random) {
  std::vector<Step> steps;
  for (int i = 0; i < options.steps; ++i) {
    const bool warm_up = i < std::min(3, options.steps / 4);
    Step step;
    step.index = i;
    step.wall_ns = ns(step_ns * jitter(random, 0.02) * (warm_up ? 1.5 : 1.0));
    step.cpu_ns = step.wall_ns * 3;
    step.modelled_ns = step.wall_ns / 2;
    step.reference_ns = step.wall_ns / 10;
    step.loss = 5.5 * std::exp(-0.02 * i) + 0.01 * jitter(random, 1.0);
    step.grad_norm = 1.0 / (1.0 + 0.1 * i);
    step.learning_rate = 1e-3;
    step.tokens = 4096;
    step.flags = warm_up ? kStepWarmUp : 0U;
    steps.push_back(step);
  }
  return steps;
}

std::vector<OpRow> make_ops(const SyntheticOptions& options, double step_ns, std::mt19937_64& random) {
  struct Site {
    const char* name;
    const char* kind;
    double share;
  };
  constexpr Site kSites[] = {{"attn.norm", "rmsnorm", 0.04},   {"attn.qkv", "gemm", 0.15},
                             {"attn.core", "attention", 0.14}, {"attn.proj", "gemm", 0.10},
                             {"mlp.norm", "rmsnorm", 0.04},    {"mlp.fc1", "gemm", 0.28},
                             {"mlp.fc2", "gemm", 0.20},        {"mlp.reduce", "all_reduce", 0.05}};
  struct Role {
    const char* suffix;
    const char* role;
    const char* phase;
  };
  constexpr Role kRoles[] = {
      {"fwd", "fprop", "forward"}, {"dgrad", "dgrad", "backward"}, {"wgrad", "wgrad", "backward"}};
  std::vector<OpRow> ops;
  for (int layer = 0; layer < options.layers; ++layer) {
    for (const Site& site : kSites) {
      for (const Role& role : kRoles) {
        OpRow op;
        op.path = fmt::format("layers.{}.{}.{}", layer, site.name, role.suffix);
        op.kind = site.kind;
        op.role = op.kind == "gemm" ? role.role : "";
        op.phase = role.phase;
        op.stream = op.kind == "all_reduce" ? "tp" : "compute";
        op.rank_class = layer * 2 < options.layers ? "stage0" : "stage1";
        op.calls = options.steps;
        op.total_ns = ns(step_ns * site.share / 3.0 / options.layers * options.steps * jitter(random, 0.05));
        op.flops = op.kind == "gemm" ? 1e9 * options.steps : 0.0;
        op.bytes = std::int64_t{1} << 20U;
        ops.push_back(op);
      }
    }
  }
  return ops;
}

MemoryMap make_memory(const SyntheticOptions& options, const std::string& rank_class) {
  MemoryMap map;
  map.rank_class = rank_class;
  map.capacity_bytes = std::int64_t{1} << 30U;
  const std::int64_t activation = std::int64_t{4} << 20U;
  const std::int64_t weights = std::int64_t{64} << 20U;
  map.peak_bytes = weights + activation * options.layers;
  map.categories = {{"weights", weights, weights}, {"activations", activation * options.layers, -1}};
  map.tensors.push_back({"weights", "weights", 0, weights, "", "optimizer.adamw", 0, 4 * options.layers});
  for (int layer = 0; layer < options.layers; ++layer) {
    // Written in the forward, read last in the backward, which visits the layers in reverse.
    map.tensors.push_back({fmt::format("layers.{}.mlp.fc1.out", layer), "activations", weights + layer * activation,
                           activation, fmt::format("layers.{}.mlp.fc1.fwd", layer),
                           fmt::format("layers.{}.mlp.fc1.wgrad", layer), layer, 2 * options.layers - layer});
  }
  map.live_at_peak = map.tensors;
  for (int at = 0; at <= 2 * options.layers; ++at) {
    map.curve.push_back({at, "weights", weights});
    map.curve.push_back({at, "activations", activation * std::min(at, 2 * options.layers - at)});
  }
  return map;
}

Cell make_cell(const Run& run, int index) {
  Cell cell;
  cell.run = run.id;
  cell.index = index;
  cell.name = index == 0 ? "tp1" : fmt::format("tp{}-pp{}", 1 << (index % 4), index);
  cell.result_class = ResultClass::kFunctionalCpu;
  cell.device = kDevice;
  cell.devices = 1;
  cell.model = "synthetic-llama";
  cell.gpus = index + 1;
  cell.ranks = index + 1;
  cell.knobs = {
      {"parallel.tensor_model_parallel_size", std::to_string(1 << (index % 4)), "suite", "synthetic.toml", 12, true},
      {"parallel.pipeline_model_parallel_size", std::to_string(index), "suite", "synthetic.toml", 13, true},
      {"precision.recipe", "fp32", "default", "", 0, true},
      {"debug.log_interval", "1", "command line", "", 0, false}};
  cell.work = {4096, 1.5e6, 1.8e6, "dense-transformer", 1};
  cell.identity_hash = identity_hash(cell);
  return cell;
}

void fill_ok_cell(Cell& cell, const SyntheticOptions& options, std::mt19937_64& random) {
  const double step_ns = options.step_ns * (1.0 + 0.1 * cell.index);
  for (int i = 0; i < options.launches; ++i) {
    Launch launch;
    launch.index = i;
    launch.seed = 1234 + i;
    launch.started_unix_ns = options.created_unix_ns + (cell.index * options.launches + i) * 1'000'000'000LL;
    launch.ended_unix_ns = launch.started_unix_ns + 900'000'000;
    launch.steps = make_steps(options, step_ns, random);
    launch.ops = make_ops(options, step_ns, random);
    launch.memory = {make_memory(options, "stage0")};
    launch.counts = {{"dropped_records", 0}, {"non_finite_steps", 0}};
    launch.loss_checksum = loss_checksum(launch.steps);
    cell.launches.push_back(std::move(launch));
  }
  cell.program_hash = "0123456789abcdef";
  cell.program_json = R"({"synthetic": true})";
  cell.loss_checksum = cell.launches.empty() ? "" : cell.launches.front().loss_checksum;
  const char* interval = "made up: +-1 %";
  cell.metrics = {{"step_ns", step_ns, step_ns * 0.99, step_ns * 1.01, "ns", options.launches, interval},
                  {"tokens_per_s_per_gpu", 4096e9 / step_ns / cell.gpus, kNotMeasured, kNotMeasured, "token/s",
                   options.launches, ""}};
  cell.verdicts = {{"loss", Verdict::kSame, "tp1", 0.0, kNotMeasured, kNotMeasured, "made up: losses equal"}};
  cell.memory = {make_memory(options, "stage0"), make_memory(options, "stage1")};
}

}  // namespace

Run make_synthetic_run(const SyntheticOptions& options) {
  std::mt19937_64 random(options.seed);
  Run run;
  run.id = new_run_id(options.created_unix_ns, options.seed);
  run.command = "suite";
  run.suite = "synthetic";
  run.spec = "purpose = \"synthetic\"\n";
  run.tag = options.tag;
  run.synthetic = kLabel;
  run.created_unix_ns = options.created_unix_ns;
  run.ended_unix_ns = options.created_unix_ns + 60'000'000'000;
  run.argv = {{"", "suite", false}, {"", "synthetic", false}};
  run.environment = {{"OMP_NUM_THREADS", "1", false}};
  run.fingerprint.facts = {{"cpu.model", "synthetic cpu", true}, {"gpu.model", kDevice, true}};
  run.fingerprint.class_hash = "5f0e7e51c0000001";
  run.epoch = "synthetic";
  for (int i = 0; i < options.cells; ++i) {
    Cell cell = make_cell(run, i);
    fill_ok_cell(cell, options, random);
    run.cells.push_back(std::move(cell));
  }
  Cell skipped = make_cell(run, options.cells);
  skipped.name = "skipped";
  skipped.status = CellStatus::kSkipped;
  skipped.reason = "made up: needs 8 GPUs, 1 is there";
  run.cells.push_back(std::move(skipped));
  Cell broken = make_cell(run, options.cells + 1);
  broken.name = "broken";
  broken.status = CellStatus::kBroken;
  broken.reason = "made up: loss differs from tp1 at step 3";
  Launch failed;
  failed.exit_status = 1;
  failed.reason = broken.reason;
  broken.launches = {failed};
  run.cells.push_back(std::move(broken));
  for (const Cell& cell : run.cells) run.planned_cells.push_back(cell.name);
  return run;
}

Result<std::filesystem::path> write_synthetic_bundle(const std::filesystem::path& parent,
                                                     const SyntheticOptions& options) {
  const Run run = make_synthetic_run(options);
  MB_ASSIGN(BundleWriter writer, BundleWriter::create(parent, run));
  for (const Cell& cell : run.cells) {
    MB_TRY(writer.begin_cell(cell));
    MB_TRY(writer.finish_cell(cell));
  }
  return writer.folder();
}

}  // namespace mbb::baselines
