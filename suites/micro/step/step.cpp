// mbbench-step: whole training steps of the speed targets' cases on one GPU, with the time of every op kind.
//
// Prints one JSON line a case, like the PyTorch peers beside the project, and on request a table of device time by op
// kind and role from one step whose ops are timed one by one.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/data/rng.h"
#include "trainer/execute/executor.h"
#include "trainer/models/flops.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"
#include "trainer/run/knobs.h"
#include "trainer/run/train.h"

namespace mbb::suites {
namespace {

using namespace trainer;  // NOLINT: a program of the trainer's

constexpr const char* kUsage =
    "mbbench-step --model NAME [--layers N] [--seq N] [--mbs N] [--gbs N] [--recipe fp32|bf16|fp8] [--steps N] "
    "[--device "
    "cuda|cpu]\n"
    "             [--ops 1]   (also one step op by op, summed by kind and role)\n"
    "             [--tune 1]  (only choose GEMM algorithms into host.gemm_tuning_file, as `mbbench tune`)\n"
    "             [KNOB=VALUE ...]\n";

struct Options {
  Config config;
  bool ops = false;
  bool tune = false;
};

Result<Options> parse(int argc, char** argv) {
  Options o;
  o.config.host.device = Device::kCuda;
  o.config.precision.recipe = Recipe::kBf16;
  o.config.train.train_iters = 12;
  o.config.fusion.residual_fusion = true;
  o.config.fusion.cross_entropy_loss_fusion = true;
  int64_t gbs = 0;
  std::vector<std::string> knob_settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag.find('=') != std::string::npos) {
      knob_settings.push_back(flag);
      --i;
      continue;
    }
    if (i + 1 >= argc) return fail(ErrorCode::kBadArgument, flag + " needs a value", kUsage);
    const std::string value = argv[i + 1];
    const int64_t number = std::strtoll(value.c_str(), nullptr, 10);
    if (flag == "--model")
      o.config.model.name = value;
    else if (flag == "--layers")
      o.config.model.num_layers = number;
    else if (flag == "--seq")
      o.config.train.seq_length = number;
    else if (flag == "--mbs")
      o.config.train.micro_batch_size = number;
    else if (flag == "--gbs")
      gbs = number;
    else if (flag == "--steps")
      o.config.train.train_iters = number;
    else if (flag == "--ops")
      o.ops = number != 0;
    else if (flag == "--tune")
      o.tune = number != 0;
    else if (flag == "--recipe" && (value == "bf16" || value == "fp32" || value == "fp8"))
      o.config.precision.recipe = value == "bf16"  ? Recipe::kBf16
                                  : value == "fp8" ? Recipe::kFp8Current
                                                   : Recipe::kFp32;
    else if (flag == "--device" && (value == "cuda" || value == "cpu"))
      o.config.host.device = value == "cuda" ? Device::kCuda : Device::kCpu;
    else
      return fail(ErrorCode::kBadArgument, "not understood: " + flag + " " + value, kUsage);
  }
  o.config.train.global_batch_size = gbs == 0 ? o.config.train.micro_batch_size : gbs;
  for (const std::string& setting : knob_settings) {
    const size_t at = setting.find('=');
    MB_ASSIGN(const Knob* const knob, knobs().find(setting.substr(0, at)));
    MB_ASSIGN(const KnobData value, knob->parse(setting.substr(at + 1)));
    MB_TRY(knob->set(&o.config, value));
  }
  o.config.optimizer.lr = 1e-4;
  o.config.optimizer.min_lr = 1e-5;
  return o;
}

const char* recipe_name(Recipe recipe) {
  return recipe == Recipe::kFp32 ? "fp32" : recipe == Recipe::kBf16 ? "bf16" : "fp8-current";
}

// What the optimizer keeps, which the whole step depends on.
std::string states_of(const OptimizerConfig& o) {
  if (!o.use_precision_aware_optimizer) return "fp32 master, moments, main grads";
  const auto type = [](StateType t) {
    return t == StateType::kFp32 ? "fp32" : t == StateType::kBf16 ? "bf16" : "fp16 or fp8";
  };
  return fmt::format("{} main parameters, {} and {} moments, fp32 main grads", type(o.main_params_dtype),
                     type(o.exp_avg_dtype), type(o.exp_avg_sq_dtype));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_ops(const Program& program, const std::vector<int64_t>& op_ns) {
  struct Row {
    double ms = 0, flops = 0, bytes = 0;
    int count = 0;
  };
  std::map<std::string, Row> rows;
  double total = 0;
  size_t at = 0;
  walk(program, [&](int, const Call&, int, const Op& op) {
    const OpView view{program, op};
    Row& row = rows[op.role == Role::kNone ? std::string(op.kind->name) : cost_key(view)];
    const double ms = static_cast<double>(op_ns[at++]) * 1e-6;
    row.ms += ms, row.flops += op_flops(view), row.bytes += op_bytes(view), row.count += 1;
    total += ms;
  });
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  for (const auto& [kind, row] : sorted)
    fmt::print("  {:<52} x{:<4} {:8.3f} ms {:5.1f} % {:7.1f} TFLOP/s {:6.3f} TB/s\n", kind, row.count, row.ms,
               100 * row.ms / total, row.flops / row.ms * 1e-9, row.bytes / row.ms * 1e-9);
  fmt::print("  ops one by one: {:.2f} ms\n", total);
}

Status run(const Options& options) {
  MB_ASSIGN(const Layout layout, resolve(options.config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  const auto& train_config = layout.config.train;
  if (options.tune)
    return tune_gemms(layout.config.host, programs.programs[0], programs.plans[0], layout.mesh,
                      static_cast<uint64_t>(train_config.seed));
  const int64_t vocab = layout.model.vocab_size;
  const SampleSource data = [&](int64_t sample, std::span<int32_t> tokens) -> Status {
    const RandomStream random(static_cast<uint64_t>(train_config.seed), "bench.tokens", 0);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab), static_cast<uint64_t>(sample), i));
    return {};
  };
  TrainOptions train_options;
  train_options.capture = false;
  if (options.ops) {
    train_options.trace_first = train_config.train_iters - 1;
    train_options.trace_end = train_config.train_iters;
  }
  MB_ASSIGN(const TrainResult result, train(layout, programs, data, train_options));
  std::vector<double> whole, half, losses;
  for (const StepReport& step : result.steps) {
    losses.push_back(step.loss);
    if (step.index < 3 || (options.ops && step.index == train_config.train_iters - 1)) continue;
    whole.push_back(static_cast<double>(step.device_ns) * 1e-6);
    half.push_back(static_cast<double>(step.device_forward_backward_ns) * 1e-6);
  }
  if (!whole.empty()) {
    const double tokens = static_cast<double>(layout.tokens_per_step()), ms = median(whole);
    nlohmann::json line{
        {"case", layout.model.name},
        {"layers", layout.model.num_layers},
        {"seq", layout.sequence},
        {"mbs", layout.micro_batch},
        {"micro_batches", layout.micro_batches},
        {"prec", recipe_name(layout.config.precision.recipe)},
        {"states", states_of(layout.config.optimizer)},
        {"step_ms", ms},
        {"fwdbwd_ms", median(half)},
        {"spread", {*std::min_element(whole.begin(), whole.end()), *std::max_element(whole.begin(), whole.end())}},
        {"tokens_s", tokens / ms * 1e3},
        {"loss", losses.back()},
        {"first_loss", losses.front()},
        {"arena_gb", static_cast<double>(programs.plans[0].arena_bytes) / (1 << 30)}};
    fmt::print("{}\n", line.dump());
  }
  if (layout.config.host.device == Device::kCpu || options.config.train.train_iters <= 4)
    for (size_t i = 0; i < losses.size(); ++i) fmt::print("loss {} {:.7f}\n", i, losses[i]);
  if (options.ops && !result.op_ns.empty()) print_ops(programs.programs[0], result.op_ns[0][0]);
  return {};
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  const auto options = mbb::suites::parse(argc, argv);
  const auto status = options ? mbb::suites::run(*options) : tl::unexpected(options.error());
  if (status) return 0;
  fmt::print(stderr, "{}\n", mbb::format(status.error()));
  return options ? 4 : 64;
}
