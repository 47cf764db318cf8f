// mbbench-tracing: trains one configuration with and without a capture in turn, in one process, and prints what tracing
// costs a step and how much of the device's time it gives to ops.
//
//   mbbench-tracing [--rounds R] [--window N] [--out TRACE.mbt] KNOB=VALUE...
//
// Steps: 4 to warm up, then R rounds of N untraced and N traced ones, then N untraced. Before it, step 0 of a run of
// its own is captured: without graphs.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "trainer/data/rng.h"
#include "trainer/run/knobs.h"
#include "trainer/run/train.h"

namespace mbb::suites {
namespace {

using namespace trainer;  // NOLINT: a program of the trainer's

constexpr int64_t kWarmUp = 4;

struct Options {
  Config config;
  int64_t rounds = 3;
  int64_t window = 10;
  std::string out;
};

Result<Options> parse(int argc, char** argv) {
  Options o;
  o.config.host.device = Device::kCuda;
  o.config.fusion.residual_fusion = true;
  o.config.fusion.cross_entropy_loss_fusion = true;
  KnobSources sources;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--") && i + 1 < argc) {
      const std::string value = argv[++i];
      const auto number = parse_int(value);
      if (word == "--out")
        o.out = value;
      else if ((word == "--rounds" || word == "--window") && number && *number > 0)
        (word == "--rounds" ? o.rounds : o.window) = *number;
      else
        return fail(ErrorCode::kBadArgument, fmt::format("{} {} is not understood", word, value));
      continue;
    }
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return fail(ErrorCode::kBadArgument, word + " is no KNOB=VALUE");
    MB_TRY(knobs().set_text(o.config, sources, word.substr(0, equals), word.substr(equals + 1),
                            Source{Layer::kCommandLine, word}));
  }
  return o;
}

Result<TrainResult> train_with(Config config, int64_t iters, TrainOptions options) {
  config.train.train_iters = iters;
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  const auto vocab = static_cast<uint64_t>(layout.model.vocab_size);
  const SampleSource data = [&](int64_t sample, std::span<int32_t> tokens) -> Status {
    const RandomStream random(static_cast<uint64_t>(config.train.seed), "bench.tokens", 0);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(random.below(vocab, static_cast<uint64_t>(sample), i));
    return {};
  };
  return train(layout, programs, data, options);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

nlohmann::json spread(const std::vector<double>& values) {
  return {*std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end())};
}

nlohmann::json attribution(const TrainResult& result) {
  if (!result.captured) return {{"note", result.capture_note}};
  const profiler::Attribution& a = result.captured->attribution;
  nlohmann::json by_name = nlohmann::json::array();
  for (size_t i = 0; i < std::min<size_t>(5, a.unattributed_by_name.size()); ++i)
    by_name.push_back({a.unattributed_by_name[i].first.substr(0, 80), a.unattributed_by_name[i].second});
  return {{"device_ms", static_cast<double>(a.device_ns) * 1e-6},
          {"device_events", a.device_events},
          {"unattributed_events", a.unattributed_events},
          {"unattributed_pct", a.unattributed_pct()},
          {"unattributed", by_name},
          {"dropped", result.captured->trace.dropped_spans}};
}

Status run(const Options& o) {
  TrainOptions eager;
  eager.trace_end = 1;
  MB_ASSIGN(const TrainResult first, train_with(o.config, 1, eager));
  TrainOptions options;
  options.trace_first = kWarmUp + o.window;
  options.trace_end = options.trace_first + o.window;
  options.trace_period = 2 * o.window;
  const int64_t iters = options.trace_first + options.trace_period * o.rounds;
  MB_ASSIGN(const TrainResult result, train_with(o.config, iters, options));
  std::vector<double> untraced, traced, by_round;
  for (int64_t round = 0; round < o.rounds; ++round) {
    std::vector<double> here[2];
    for (const StepReport& step : result.steps) {
      const int64_t at = step.index - options.trace_first - round * options.trace_period;
      if (at < -o.window || at >= 2 * o.window) continue;
      const bool is_traced = at >= 0 && at < o.window;
      here[is_traced ? 1 : 0].push_back(static_cast<double>(step.wall_ns) * 1e-6);
    }
    by_round.push_back(100 * (median(here[1]) / median(here[0]) - 1));
    traced.insert(traced.end(), here[1].begin(), here[1].end());
    untraced.insert(untraced.end(), here[0].begin(), here[0].end());
  }
  const nlohmann::json line{{"model", o.config.model.name},
                            {"layers", o.config.model.num_layers},
                            {"untraced_ms", median(untraced)},
                            {"untraced_spread", spread(untraced)},
                            {"traced_ms", median(traced)},
                            {"traced_spread", spread(traced)},
                            {"overhead_pct", 100 * (median(traced) / median(untraced) - 1)},
                            {"overhead_pct_by_round", by_round},
                            {"steps_a_window", o.window},
                            {"graphs", attribution(result)},
                            {"eager", attribution(first)}};
  fmt::print("{}\n", line.dump());
  if (o.out.empty() || !result.captured) return {};
  return profiler::write_trace(o.out, result.captured->trace);
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
