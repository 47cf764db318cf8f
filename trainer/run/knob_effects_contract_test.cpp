// No knob of training and its data, number formats, mapping, communication, host, memory, fusion and packing does
// nothing: another value changes the program, the plan, the launch (its environment, its CPUs, what a device is asked
// for), what is refused, the rows, or what a step reports.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/execute/executor.h"
#include "trainer/program/explain.h"
#include "trainer/run/knob_tries_test.h"
#include "trainer/run/knobs.h"
#include "trainer/run/launch_environment.h"
#include "trainer/run/settings_test.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

// Everything a knob may change, as text.
std::string observe(const Config& config, int64_t slow_ms = 0) {
  const auto layout = resolve(config);
  if (!layout) return "does not resolve: " + layout.error().what;
  const auto programs = build_programs(*layout);
  if (!programs) return "does not build: " + programs.error().what;
  std::string seen = program_hash(*programs);
  for (const auto& [name, value] : launch_environment(config)) seen += " " + name + "=" + value;
  const profiler::CudaRankRequest device = rank_request(config.host);
  seen += fmt::format(" {} {} {} {} {} {}", device.graphs, device.graph_scope, device.deterministic, device.side_sms,
                      device.tuning_file, device.share_device);
  for (const MemoryPlan& plan : programs->plans) seen += fmt::format(" {} {}", plan.arena_bytes, plan.host_bytes);
  if (const Status fits = check_memory(*layout, *programs); !fits) return seen + " refused: " + fits.error().what;
  TrainOptions options;
  options.no_progress_ms = config.host.no_progress_limit_s * 1'000;
  std::string worked;
  options.on_host_work = [&](int rank, int64_t step) {
    if (rank == 0) worked += fmt::format(" worked after {}", step);
  };
  std::optional<SequenceDataset> rows;
  std::optional<Dataset> windows;
  if (layout->has_sequences()) {
    auto opened = open_sequences(*layout);
    if (!opened) return seen + opened.error().what;
    rows.emplace(std::move(*opened));
    options.sequences = &*rows;
    for (int64_t i = 0; i < 8; ++i) seen += fmt::format(" {}/{}", rows->facts(i).tokens, rows->facts(i).squares);
  } else {
    auto opened = open_dataset(*layout);
    if (!opened) return seen + opened.error().what;
    windows.emplace(std::move(*opened));
  }
  const auto data = [&](int64_t sample, std::span<int32_t> tokens) {
    if (sample == 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
    return windows->sample(sample, tokens);
  };
  const auto result = train(*layout, *programs, data, options);
  if (!result) return seen + result.error().what;
  seen += worked;
  for (const std::string& cpus : result->bindings) seen += " on " + cpus;
  for (const StepReport& step : result->steps)
    seen += fmt::format(" {} {} {} {}", step.loss, step.grad_norm, step.learning_rate, step.tokens);
  return seen;
}

class KnobEffects : public testing::TestWithParam<std::string> {};

TEST_P(KnobEffects, AnotherValueChangesWhatIsBuiltOrDone) {
  const Knob* knob = nullptr;
  for (const Knob& each : knobs().knobs())
    if (each.key == GetParam()) knob = &each;
  ASSERT_NE(knob, nullptr);
  const auto known = kTries.find(knob->key);
  const Settings with = kBase + (known == kTries.end() ? Settings{} : known->second.with);
  const Config before = config_of(with);
  const std::string value = known == kTries.end() ? another(*knob, before) : known->second.value;
  const int64_t slow_ms = known == kTries.end() ? 0 : known->second.slow_ms;
  const std::string was = observe(before, slow_ms);
  ASSERT_FALSE(was.starts_with("does not")) << was;
  const std::string is = observe(config_of(with + Settings{knob->key + "=" + value}), slow_ms);
  EXPECT_EQ(is.starts_with("does not"), known != kTries.end() && known->second.refused)
      << knob->key << " = " << value << " " << is << "; say in kTries which value goes with which others";
  EXPECT_NE(is, was) << knob->key << " = " << value << " changes nothing";
}

// Held by a test of its own, which names the knob: what a launch does to the machine around it.
const std::map<std::string, std::string, std::less<>> kElsewhere{{"host.vboost", "suites/cli/cli_smoke_test.cpp"}};

TEST(KnobEffects, KnobsHeldElsewhereAreNamedThere) {
  for (const auto& [key, file] : kElsewhere) {
    const auto text = read_file(std::string(MBB_SOURCE_DIR "/") + file);
    ASSERT_TRUE(text.has_value()) << file;
    EXPECT_NE(text->find(key.substr(key.find('.') + 1) + "="), std::string::npos) << file << " does not set " << key;
  }
}

std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const Knob& knob : knobs().knobs())
    for (const std::string_view section : {"train", "optimizer", "precision", "memory", "fusion", "packing",
                                           "data_parallel", "data", "host", "parallel", "overlap"})
      if (knob.section() == section && !kElsewhere.contains(knob.key)) all.push_back(knob.key);
  all.emplace_back("debug.delay_us");
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, KnobEffects, testing::ValuesIn(keys()),
                         [](const auto& test) { return replace_all(test.param, ".", "_"); });

}  // namespace
}  // namespace mbb::trainer
