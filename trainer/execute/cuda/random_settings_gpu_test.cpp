// Families under knobs drawn at random, up to eight ranks as threads of a device, train on it like on the oracle. A
// failure prints the settings it drew.
#include <fmt/format.h>

#include <optional>
#include <random>

#include "trainer/models/small_families.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/knob_tries_test.h"
#include "trainer/run/near_fp32_test.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer::cuda {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t count) {
  return std::uniform_int_distribution<size_t>(0, count - 1)(random);
}

// Not drawn: a model's shape, which its family gives; what is about the host, the data or a record; what makes a run
// fail or wait.
bool drawn(const Knob& knob) {
  for (const char* section : {"model.", "data.", "profiling.", "debug."})
    if (knob.key.starts_with(section)) return false;
  for (const char* key :
       {"host.device", "host.share_device", "host.cpu_binding", "host.gemm_tuning_file", "host.no_progress_limit_s",
        "host.vboost", "memory.limit_gib", "precision.recipe", "train.train_iters", "parallel.moe_router_replay"})
    if (knob.key == key) return false;
  return true;
}
bool shapes_a_model(const std::string& setting) {
  for (const char* part : {"model=", "hidden_size", "heads", "groups", "vocab", "kv_channels", "layers=", "num_experts",
                           "topk", "data.", "seq_length", "train_iters", "recipe="})
    if (setting.find(part) != std::string::npos) return true;
  return false;
}

// One knob's value and its company.
void draw_knob(Random& random, const Config& config, Settings& settings) {
  const auto& all = knobs().knobs();
  const Knob* knob = nullptr;
  do knob = &all[below(random, all.size())];
  while (!drawn(*knob));
  const auto known = kTries.find(knob->key);
  if (known != kTries.end())
    for (const std::string& with : known->second.with)
      if (!shapes_a_model(with)) settings.push_back(with);
  settings.push_back(knob->key + "=" + (known == kTries.end() ? another(*knob, config) : known->second.value));
}

struct Drawn {
  Config config;
  std::string text;
};

// Nothing where the settings contradict each other.
std::optional<Drawn> draw(Random& random) {
  const Small& family = kFamilies[below(random, std::size(kFamilies))];
  Config c = config_of(family);
  constexpr Recipe kRecipes[] = {Recipe::kFp32,         Recipe::kFp32, Recipe::kFp32,       Recipe::kBf16,
                                 Recipe::kBf16,         Recipe::kBf16, Recipe::kFp8Delayed, Recipe::kFp8Current,
                                 Recipe::kFp8Blockwise, Recipe::kNvfp4};
  c.precision.recipe = kRecipes[below(random, std::size(kRecipes))];
  if (is_quantized(c.precision.recipe)) in_sixteens(c);
  c.train.global_batch_size = 8;
  if (below(random, 3) == 0) c.model.num_layers = 4;
  Settings settings;
  for (const char* size : {"tp=2", "pp=2", "cp=2", "gpus=2", "gpus=4", "gpus=8", "ep=2", "use_torch_fsdp2=true"})
    if (below(random, 4) == 0) settings.emplace_back(size);
  const size_t count = 2 + below(random, 5);
  for (size_t i = 0; i < count; ++i) draw_knob(random, c, settings);
  std::string text = fmt::format("{}, {}, {} layers", family.name, recipe_name(c), c.model.num_layers);
  KnobSources sources;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (!knobs().set_text(c, sources, setting.substr(0, equals), setting.substr(equals + 1),
                          {Layer::kCommandLine, "test", 0, 0}))
      return std::nullopt;
    text += " " + setting;
  }
  c.data.kind = DataKind::kSynthetic;
  const auto layout = resolve(c);
  if (!layout || layout->mesh.world_size() > 8 || !build_programs(*layout)) return std::nullopt;
  return Drawn{std::move(c), std::move(text)};
}

Result<std::vector<StepReport>> trained(const Config& config) {
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  TrainOptions options;
  std::optional<SequenceDataset> rows;
  if (layout.has_sequences()) {
    MB_ASSIGN(SequenceDataset opened, open_sequences(layout));
    options.sequences = &rows.emplace(std::move(opened));
  }
  const auto vocabulary = static_cast<int32_t>(layout.model.vocab_size);
  MB_ASSIGN(TrainResult result,
            train(
                layout, programs,
                [&](int64_t index, std::span<int32_t> tokens) { return structured_sample(index, tokens, vocabulary); },
                options));
  return result.steps;
}

class RandomSettings : public GpuTest, public testing::WithParamInterface<int> {};

TEST_P(RandomSettings, TrainLikeTheOracle) {
  Random random(std::random_device{}());
  int trained_sets = 0;
  constexpr int kSets = 6;
  for (int tries = 0; trained_sets < kSets && tries < 4'000; ++tries) {
    const auto set = draw(random);
    if (!set) continue;
    const auto oracle = trained(set->config);
    Config c = set->config;
    c.host.device = trainer::Device::kCuda;
    c.host.share_device = true;
    if (!resolve(c)) continue;  // what a device refuses by name
    SCOPED_TRACE(set->text);
    const auto device = trained(c);
    if (!device && device.error().what.starts_with("precision.recipe: ")) continue;  // before a step, by its sizes
    ASSERT_EQ(oracle.has_value(), device.has_value())
        << (oracle ? "" : format(oracle.error())) << (device ? "" : format(device.error()));
    ++trained_sets;
    if (!oracle) continue;
    // Narrow ones as far as two that round on their own may lie from each other.
    const Recipe recipe = c.precision.recipe;
    const double bound = recipe == Recipe::kFp32 ? 1e-4 : recipe == Recipe::kBf16 ? 6e-4 : 6e-3;
    const double distance = furthest(losses_of(*device), losses_of(*oracle));
    EXPECT_LT(distance, bound);
    printf("%.1e %s\n", distance, set->text.c_str());
  }
  EXPECT_EQ(trained_sets, kSets);
}

INSTANTIATE_TEST_SUITE_P(All, RandomSettings, testing::Range(0, 16));

}  // namespace
}  // namespace mbb::trainer::cuda
