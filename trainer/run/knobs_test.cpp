// The trainer's knobs: every field has one, the reference page is current, and no command line or file breaks the
// table.
#include "trainer/run/knobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "profiler/base/file.h"
#include "profiler/base/knob_render.h"
#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

const Source kHere{Layer::kCommandLine, "test", 0, 0};

Status set(Config& config, std::string_view name, std::string_view text) {
  KnobSources sources;
  return knobs().set_text(config, sources, name, text, kHere);
}

TEST(TrainerKnobs, SpellingsOfOneKnob) {
  for (const char* name :
       {"tp", "tensor_model_parallel_size", "tensor-model-parallel-size", "parallel.tensor_model_parallel_size",
        "parallel.tp", "parallel_tensor_model_parallel_size"}) {
    Config config;
    ASSERT_TRUE(set(config, name, "4")) << name;
    EXPECT_EQ(config.parallel.tensor_model_parallel_size, 4) << name;
    EXPECT_TRUE(config.parallel.sequence_parallel_on());
  }
  Config config;
  ASSERT_TRUE(set(config, "model", "llama3-8b"));
  ASSERT_TRUE(set(config, "sequence-parallel", "off"));
  ASSERT_TRUE(set(config, "recipe", "BF16"));
  EXPECT_EQ(config.model.name, "llama3-8b");
  EXPECT_EQ(config.parallel.sequence_parallel, false);
  EXPECT_EQ(config.precision.recipe, Recipe::kBf16);
  ASSERT_TRUE(set(config, "recipe", "fp8_cs"));
  EXPECT_EQ(config.precision.recipe, Recipe::kFp8Current);
}

TEST(TrainerKnobs, EveryKnobReachesAFieldOfItsOwn) {
  // Setting one knob to another value must change that knob's text and no other's.
  for (const Knob& knob : knobs().knobs()) {
    Config config;
    const KnobData before = knob.get(&config);
    std::string other;
    if (std::holds_alternative<bool>(before)) other = std::get<bool>(before) ? "false" : "true";
    if (std::holds_alternative<KnobAuto>(before)) other = "true";
    if (std::holds_alternative<int64_t>(before)) other = std::to_string(std::get<int64_t>(before) + 1);
    if (std::holds_alternative<double>(before)) other = format_exact(std::get<double>(before) / 2 + 0.015625);
    if (knob.field.type == KnobType::kString) other = "other";
    if (knob.field.type == KnobType::kIntList) other = "2,3";
    if (knob.field.type == KnobType::kTable) other = "one.entry=1";
    if (knob.field.type == KnobType::kChoice) {
      if (knob.choices.size() == 1) continue;
      other = knob.choices[0].name == std::get<std::string>(before) ? knob.choices[1].name : knob.choices[0].name;
    }
    ASSERT_TRUE(set(config, knob.key, other)) << knob.key << " = " << other;
    for (const Knob& each : knobs().knobs()) {
      const bool changed = knob_text(each.get(&config)) != knobs().default_text(each);
      EXPECT_EQ(changed, each.key == knob.key) << each.key << " after setting " << knob.key;
    }
  }
}

TEST(TrainerKnobs, LinesReplayAConfiguration) {
  Config config;
  ASSERT_TRUE(set(config, "lr", "0.00031415926535897931"));
  ASSERT_TRUE(set(config, "data.path", "/a folder/with = signs.txt"));
  ASSERT_TRUE(set(config, "sp", "true"));
  Config again;
  KnobSources sources;
  ASSERT_TRUE(knobs().from_lines(again, sources, knobs().to_lines(config), {Layer::kSuite, "stored", 0, 0}));
  EXPECT_EQ(knobs().to_lines(again), knobs().to_lines(config));
  EXPECT_EQ(again.optimizer.lr, config.optimizer.lr);
  const std::string text = knobs().to_lines(config);
  const std::vector<std::string_view> lines = split(text, '\n');
  const auto of_path = static_cast<size_t>(sources.at("data.path").line) - 1;
  ASSERT_LT(of_path, lines.size());
  EXPECT_TRUE(lines[of_path].starts_with("data.path"));
  EXPECT_EQ(knobs().identity_hash(again), knobs().identity_hash(config));
  EXPECT_NE(knobs().identity_hash(Config{}), knobs().identity_hash(config));
}

TEST(TrainerKnobs, ErrorsNameKnobRuleAndRemedy) {
  Config config;
  EXPECT_EQ(format(set(config, "tp", "0").error()),
            "error: argument 'test': parallel.tensor_model_parallel_size must be at least 1 and at most 65536, not 0\n"
            "  hint: GPUs that share each layer's weights; divides the heads and the MLP width.");
  EXPECT_EQ(format(set(config, "micro-batch-sise", "2").error()),
            "error: argument 'test': no knob is called 'micro-batch-sise'\n"
            "  hint: did you mean 'micro_batch_size' (train.micro_batch_size)?");
  EXPECT_EQ(format(set(config, "gbs", "many").error()),
            "error: argument 'test': train.global_batch_size must be an integer (sequences), not 'many'");
  EXPECT_EQ(format(set(config, "recipe", "fp23").error()),
            "error: argument 'test': precision.recipe must be one of fp32, bf16, fp8_delayed, fp8_current, "
            "fp8_blockwise, mxfp8, nvfp4, fp8_ds, "
            "fp8_cs, tensorwise, fp8_sc, fp8_mx, not 'fp23'\n"
            "  hint: did you mean 'fp32'?");
  EXPECT_EQ(format(set(config, "adam_beta2", "1").error()),
            "error: argument 'test': optimizer.adam_beta2 must be at least 0 and below 1, not 1\n"
            "  hint: Decay of the second moment.");
  EXPECT_EQ(knobs().to_lines(config), knobs().to_lines(Config{}));
}

TEST(TrainerKnobs, ReferencePageIsCurrent) {
  const auto page = read_file(MBB_SOURCE_DIR "/trainer/run/KNOBS.md");
  const std::string wanted = render_knobs_markdown(knobs(), "Knobs of the trainer");
  if (!page || *page != wanted) {
    ASSERT_TRUE(write_file(MBB_BINARY_DIR "/KNOBS.md", wanted));
  }
  EXPECT_TRUE(page && *page == wanted) << "trainer/run/KNOBS.md is not what the records say: copy " MBB_BINARY_DIR
                                          "/KNOBS.md over it";
}

TEST(TrainerKnobs, RandomBytesNeverBreakTheTable) {
  std::mt19937 random(5);
  std::vector<std::string> names = {"tp", "lr", "sp", "recipe", "model", "data.path", "parallel.", ".", "a.b.c"};
  for (const Knob& knob : knobs().knobs()) names.push_back(knob.key);
  const std::vector<std::string> texts = {"1", "-1", "1e400", "auto", "true", "", "99999999999999999999", "nan", "0x1"};
  for (int i = 0; i < 6000; ++i) {
    std::string name = names[random() % names.size()];
    std::string text = texts[random() % texts.size()];
    if (random() % 3 == 0 && !name.empty()) name[random() % name.size()] = static_cast<char>(random());
    if (random() % 3 == 0)
      text.insert(text.begin() + static_cast<long>(random() % (text.size() + 1)), static_cast<char>(random()));
    Config config;
    KnobSources sources;
    const Status status = knobs().set_text(config, sources, name, text, kHere);
    if (status) {
      EXPECT_EQ(sources.size(), 1u);
      Config again;
      KnobSources again_sources;
      EXPECT_TRUE(knobs().from_lines(again, again_sources, knobs().to_lines(config), kHere)) << name << "=" << text;
      EXPECT_EQ(knobs().to_lines(again), knobs().to_lines(config));
    } else {
      EXPECT_TRUE(sources.empty());
      EXPECT_EQ(knobs().to_lines(config), knobs().to_lines(Config{}));
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
