// mbbench-step: whole training steps of the speed targets' cases on one GPU, with the time of every op kind.
//
// Prints one JSON line a case, like the PyTorch peers beside the project: times, tokens/s, MFU, what the optimizer
// keeps, time from the program's start to the first timed step, clocks and power meanwhile. On request some more steps
// are timed op by op, and the best of each op says where the step's time went (suites/project/step_account.h).
#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "profiler/capture/telemetry.h"
#include "profiler/host/gpus.h"
#include "suites/project/projector.h"
#include "suites/project/step_account.h"
#include "trainer/data/rng.h"
#include "trainer/execute/executor.h"
#include "trainer/models/flops.h"
#include "trainer/models/hardware.h"
#include "trainer/run/knobs.h"
#include "trainer/run/train.h"

namespace mbb::suites {
namespace {

using namespace trainer;  // NOLINT: a program of the trainer's

constexpr const char* kUsage =
    "mbbench-step --model NAME [--layers N] [--seq N] [--mbs N] [--gbs N] [--recipe fp32|bf16|fp8] [--steps N]\n"
    "             [--device cuda|cpu]\n"
    "             [--name TEXT]   (of the case, for the line that is printed; default the model's)\n"
    "             [--ops N]   (also N steps op by op, and where the step's time went)\n"
    "             [--hardware KEY]   (whose ceilings and peaks; default this machine's card, elsewhere h100-sxm)\n"
    "             [--tune whole|brief]  (only choose GEMM algorithms into host.gemm_tuning_file, as `mbbench tune`)\n"
    "             [KNOB=VALUE ...]\n";

// Steps before the first timed one: so many, or fewer (one at least) whose device time is this together.
constexpr int64_t kUntimed = 3, kUntimedNs = 2'000'000'000;
constexpr size_t kKindsShown = 40;   // rows of the table by kind
constexpr uint64_t kPowerCap = 0x4;  // NVML's throttle reason

struct Options {
  Config config;
  std::string name, hardware;
  int64_t ops = 0;
  std::string tune;
};

// A flag that takes a whole number: where it goes, and the least it may be.
struct NumberFlag {
  const char* flag;
  int64_t* at;
  int64_t least;
};

Status set_word(Options& o, const std::string& flag, const std::string& value) {
  const auto one_of = [&](std::initializer_list<const char*> words) -> Status {
    for (const char* word : words)
      if (value == word) return {};
    return fail(ErrorCode::kBadArgument, flag + " " + value + ": not one of its values", kUsage);
  };
  if (flag == "--model") {
    o.config.model.name = value;
  } else if (flag == "--name") {
    o.name = value;
  } else if (flag == "--hardware") {
    o.hardware = value;
  } else if (flag == "--tune") {
    MB_TRY(one_of({"whole", "brief"}));
    o.tune = value;
  } else if (flag == "--recipe") {
    MB_TRY(one_of({"fp32", "bf16", "fp8"}));
    o.config.precision.recipe = value == "bf16" ? Recipe::kBf16 : value == "fp8" ? Recipe::kFp8Current : Recipe::kFp32;
  } else {
    MB_TRY(one_of({"cuda", "cpu"}));
    o.config.host.device = value == "cuda" ? Device::kCuda : Device::kCpu;
  }
  return {};
}

Result<Options> parse(int argc, char** argv) {
  Options o;
  o.config.host.device = Device::kCuda;
  o.config.precision.recipe = Recipe::kBf16;
  o.config.train.train_iters = 12;
  o.config.fusion.residual_fusion = true;
  o.config.fusion.cross_entropy_loss_fusion = true;
  int64_t gbs = 0;
  const std::vector<NumberFlag> numbers = {
      {"--layers", &o.config.model.num_layers, 1},    {"--seq", &o.config.train.seq_length, 1},
      {"--mbs", &o.config.train.micro_batch_size, 1}, {"--gbs", &gbs, 1},
      {"--steps", &o.config.train.train_iters, 1},    {"--ops", &o.ops, 0}};
  const std::vector<std::string> words = {"--model", "--name", "--hardware", "--tune", "--recipe", "--device"};
  std::vector<std::string> knob_settings;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (!flag.starts_with("-") && flag.find('=') != std::string::npos) {
      knob_settings.push_back(flag);
      continue;
    }
    const auto number =
        std::find_if(numbers.begin(), numbers.end(), [&](const NumberFlag& n) { return flag == n.flag; });
    if (number == numbers.end() && std::find(words.begin(), words.end(), flag) == words.end())
      return fail(ErrorCode::kBadArgument, "unknown flag " + flag, kUsage);
    if (++i == argc) return fail(ErrorCode::kBadArgument, flag + " needs a value", kUsage);
    const std::string value = argv[i];
    if (number == numbers.end()) {
      MB_TRY(set_word(o, flag, value));
      continue;
    }
    const auto parsed = parse_int(value);
    if (!parsed || *parsed < number->least)
      return fail(ErrorCode::kBadArgument, fmt::format("{} {}: a whole number from {}", flag, value, number->least));
    *number->at = *parsed;
  }
  if (o.ops < 0 || o.ops + kUntimed >= o.config.train.train_iters)
    return fail(ErrorCode::kBadArgument,
                fmt::format("--ops {}: {} steps leave none to time as they run", o.ops, o.config.train.train_iters),
                fmt::format("--steps above {}", o.ops + kUntimed));
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
std::string states_of(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  const char* grads = config.data_parallel.grad_reduce_in_fp32 ? "fp32" : "bf16";
  if (!o.use_precision_aware_optimizer) return fmt::format("fp32 master and moments, {} main grads", grads);
  const auto type = [](StateType t) {
    return t == StateType::kFp32 ? "fp32" : t == StateType::kBf16 ? "bf16" : "fp16 or fp8";
  };
  return fmt::format("{} main parameters, {} and {} moments, {} main grads", type(o.main_params_dtype),
                     type(o.exp_avg_dtype), type(o.exp_avg_sq_dtype), grads);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The card while steps were timed, from first to last of them.
void add_telemetry(const std::vector<profiler::TelemetrySample>& samples, int64_t from_ns, int64_t to_ns,
                   nlohmann::json& line) {
  double mhz = 0, watts = 0, capped = 0, count = 0, celsius = 0;
  for (const profiler::TelemetrySample& s : samples) {
    if (s.gpu != 0 || s.failed || s.at_ns < from_ns || s.at_ns > to_ns) continue;
    mhz += s.device.sm_mhz, watts += s.device.power_w, count += 1;
    capped += (s.device.throttle_reasons & kPowerCap) != 0 ? 1 : 0;
    celsius = std::max(celsius, static_cast<double>(s.device.temperature_c));
  }
  if (count == 0) return;  // no NVML here
  line["sm_mhz"] = mhz / count;
  line["power_w"] = watts / count;
  line["power_capped"] = capped / count;
  line["temperature_c"] = celsius;
}

nlohmann::json to_json(const StepAccount& account, double forward_backward_ms) {
  nlohmann::json parts, groups = nlohmann::json::object();
  for (const AccountRow& row : account.parts)
    parts[row.name] = {{"ms", row.ms}, {"ceiling_ms", row.ceiling_ms}, {"lost_ms", row.lost_ms()}};
  for (const AccountRow& row : account.groups)
    groups[row.name] = {{"ms", row.ms}, {"share", row.ms / account.step_ms}, {"ceiling_ms", row.ceiling_ms}};
  return {{"parts", parts},
          {"groups", groups},
          {"forward_backward_floor_ratio", account.forward_backward_ceiling_ms() / forward_backward_ms},
          {"between_ops_ms", account.between_ops_ms()},
          {"step_efficiency", account.step_efficiency()},
          {"floor_ratio", account.floor_ratio()}};
}

// Each op's best time over the steps that were timed op by op.
std::vector<int64_t> best_times(const TrainResult& result) {
  std::vector<int64_t> best;
  for (const auto& step : result.op_ns) {
    if (best.empty()) best = step[0];
    for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], step[0][i]);
  }
  return best;
}

struct Watched {
  TrainResult result;
  std::vector<profiler::TelemetrySample> telemetry;
  int64_t untimed = 0;
  int64_t first_ns = 0, last_ns = 0;  // when the timed steps began and ended
};

Result<Watched> watch(const Layout& layout, const StepPrograms& programs, const Options& options) {
  const auto& train_config = layout.config.train;
  const int64_t vocab = layout.model.vocab_size;
  const SampleSource data = [&](int64_t sample, std::span<int32_t> tokens) -> Status {
    const RandomStream random(static_cast<uint64_t>(train_config.seed), "bench.tokens", 0);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab), static_cast<uint64_t>(sample), i));
    return {};
  };
  Watched watched;
  TrainOptions train_options;
  train_options.capture = false;
  train_options.trace_first = train_config.train_iters - options.ops;
  train_options.trace_end = train_config.train_iters;
  int64_t untimed_ns = 0;
  train_options.on_step = [&](const StepReport& step) {
    if (watched.untimed < kUntimed && untimed_ns < kUntimedNs) {
      watched.first_ns = monotonic_ns();
      ++watched.untimed;
      untimed_ns += step.device_ns;
    }
    if (step.index < train_options.trace_first) watched.last_ns = monotonic_ns();
  };
  profiler::TelemetryOptions telemetry_options;
  telemetry_options.gpus = {0};
  telemetry_options.period_ms = 20;
  profiler::Telemetry telemetry(telemetry_options);
  MB_ASSIGN(watched.result, train(layout, programs, data, train_options));
  watched.telemetry = telemetry.stop();
  return watched;
}

// The key of the first GPU here; of another card where none of the table is.
std::string hardware_here() {
  const auto gpus = profiler::list_gpus().gpus;
  const auto known = gpus.empty() ? std::nullopt : match_device(gpus.front().model);
  return known ? known->key : kDefaultHardware;
}

Status run(const Options& options, int64_t start_ns) {
  const std::string key = options.hardware.empty() ? hardware_here() : options.hardware;
  MB_ASSIGN(const CostTable table, find_costs(key));
  MB_ASSIGN(const Hardware hardware, find_hardware(key));
  MB_ASSIGN(const Layout layout, resolve(options.config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  const auto& train_config = layout.config.train;
  if (!options.tune.empty())
    return tune_gemms(layout.config.host, programs.programs[0], programs.plans[0], layout.mesh,
                      static_cast<uint64_t>(train_config.seed), options.tune == "brief");
  MB_ASSIGN(const Watched watched, watch(layout, programs, options));
  const TrainResult& result = watched.result;
  std::vector<double> whole, half, losses;
  for (const StepReport& step : result.steps) {
    losses.push_back(step.loss);
    if (step.index < watched.untimed || step.index >= train_config.train_iters - options.ops) continue;
    whole.push_back(static_cast<double>(step.device_ns) * 1e-6);
    half.push_back(static_cast<double>(step.device_forward_backward_ns) * 1e-6);
  }
  if (!whole.empty() && layout.config.host.device == Device::kCuda) {
    const double tokens = static_cast<double>(layout.tokens_per_step()), ms = median(whole);
    const auto mfu = [&](FlopsConvention convention) {
      return flops_per_token(layout.model, layout.sequence, convention) * tokens / ms * 1e-9 / hardware.bf16_tflops;
    };
    nlohmann::json line{
        {"name", options.name.empty() ? layout.model.name : options.name},
        {"case", layout.model.name},
        {"layers", layout.model.num_layers},
        {"seq", layout.sequence},
        {"mbs", layout.micro_batch},
        {"micro_batches", layout.micro_batches},
        {"prec", recipe_name(layout.config.precision.recipe)},
        {"states", states_of(layout.config)},
        {"step_ms", ms},
        {"fwdbwd_ms", median(half)},
        {"spread", {*std::min_element(whole.begin(), whole.end()), *std::max_element(whole.begin(), whole.end())}},
        {"tokens_s", tokens / ms * 1e3},
        {"mfu_bf16_causal", mfu(FlopsConvention::kCausal)},
        {"mfu_bf16_full", mfu(FlopsConvention::kFull)},
        {"untimed_steps", watched.untimed},
        {"launch_s", static_cast<double>(watched.first_ns - start_ns) * 1e-9},
        {"loss", losses.back()},
        {"first_loss", losses.front()},
        {"arena_gb", static_cast<double>(programs.plans[0].arena_bytes) / (1 << 30)}};
    add_telemetry(watched.telemetry, watched.first_ns, watched.last_ns, line);
    std::string text;
    if (!result.op_ns.empty()) {
      MB_ASSIGN(const StepAccount account, account_step(table, programs.programs[0], best_times(result), ms));
      line["ceilings"] = key + (table.measured ? "" : ", scaled from another card's");
      line.update(to_json(account, median(half)));
      text = format(account, kKindsShown);
    }
    fmt::print("{}\n{}", line.dump(), text);
  }
  if (layout.config.host.device == Device::kCpu || train_config.train_iters <= 4)
    for (size_t i = 0; i < losses.size(); ++i) fmt::print("loss {} {:.7f}\n", i, losses[i]);
  return {};
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  const int64_t start_ns = mbb::monotonic_ns();
  for (int i = 1; i < argc; ++i) {
    if (const std::string flag = argv[i]; flag != "--help" && flag != "-h") continue;
    fmt::print("{}", mbb::suites::kUsage);
    return 0;
  }
  const auto options = mbb::suites::parse(argc, argv);
  auto status = options ? mbb::suites::run(*options, start_ns) : tl::unexpected(options.error());
  if (status) return 0;
  if (options && options->config.host.device == mbb::trainer::Device::kCuda && status.error().hint.empty() &&
      mbb::profiler::list_gpus().gpus.empty())
    status.error().hint = "no GPU is seen here: run where one is, or with --device cpu";
  fmt::print(stderr, "{}\n", mbb::format(status.error()));
  return options ? 4 : 64;
}
