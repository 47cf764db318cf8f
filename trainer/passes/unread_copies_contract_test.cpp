// Every copy of a quantized value that a program makes is read by some op of it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

struct Copies {
  int made = 0, left_out = 0;
};

// Fails where an output is made that nothing reads, or read that is not made.
Copies check_copies(const Program& program) {
  std::set<TensorId> read;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (const TensorId id : op.in) {
        EXPECT_FALSE(program.tensor(id).left_out) << op.path << " reads " << program.tensor(id).path;
        read.insert({id, program.storage(id)});
      }
  Copies copies;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (size_t i = 0; i < op.out.size() && i < static_cast<size_t>(op.kind->optional_outputs); ++i) {
        const Tensor& copy = program.tensor(op.out[i]);
        EXPECT_NE(read.contains(op.out[i]), copy.left_out) << op.path << " makes " << copy.path;
        EXPECT_EQ(copy.bytes() == 0, copy.left_out) << copy.path;
        ++(copy.left_out ? copies.left_out : copies.made);
      }
  return copies;
}

struct Way {
  const char* name;
  void (*set)(Config&);
};
void overlap(Config& c, const char* method) {
  c.parallel.tensor_model_parallel_size = 2;
  c.tp_overlap.tp_comm_overlap = true;
  if (c.precision.recipe != Recipe::kFp8Current && c.precision.recipe != Recipe::kFp8Delayed) return;
  for (const char* part : {"qkv", "proj", "fc1", "fc2"})
    c.tp_overlap.tp_comm_overlap_cfg[std::string(part) + ".method"] = method;
}
constexpr Way kWays[] = {
    {"one rank", [](Config&) {}},
    {"tp2", [](Config& c) { c.parallel.tensor_model_parallel_size = 2; }},
    {"tp2 without sequence parallelism",
     [](Config& c) {
       c.parallel.tensor_model_parallel_size = 2;
       c.parallel.sequence_parallel = false;
     }},
    {"tp2 pipeline", [](Config& c) { overlap(c, "pipeline"); }},
    {"tp2 ring", [](Config& c) { overlap(c, "ring_exchange"); }},
    {"cp2", [](Config& c) { c.parallel.context_parallel_size = 2; }},
    {"pp2", [](Config& c) { c.parallel.pipeline_model_parallel_size = 2; }},
    {"fsdp2",
     [](Config& c) {
       c.parallel.gpus = 2;
       c.data_parallel.use_torch_fsdp2 = true;
     }},
    {"ep2",
     [](Config& c) {
       if (c.model.num_experts > 0) c.parallel.gpus = c.parallel.expert_model_parallel_size = 2;
     }},
    {"full recompute", [](Config& c) { c.memory.recompute_granularity = RecomputeGranularity::kFull; }},
    {"selective recompute",
     [](Config& c) {
       c.memory.recompute_granularity = RecomputeGranularity::kSelective;
       c.memory.recompute_modules = "layernorm,act";
     }},
    {"fp8 weights",
     [](Config& c) {
       const Recipe recipe = c.precision.recipe;
       c.precision.fp8_param = recipe == Recipe::kFp8Current || recipe == Recipe::kFp8Delayed;
     }},
    {"low-rank adapters", [](Config& c) { c.memory.lora_rank = 4; }},
};

class UnreadCopies : public testing::TestWithParam<Small> {};

TEST_P(UnreadCopies, AreNotMade) {
  int built = 0;
  for (const Recipe recipe :
       {Recipe::kFp8Current, Recipe::kFp8Delayed, Recipe::kFp8Blockwise, Recipe::kMxfp8, Recipe::kNvfp4}) {
    for (const Way& way : kWays) {
      Config c = config_of(GetParam());
      in_sixteens(c);
      c.model.hidden_size = c.model.ffn_hidden_size = 128;
      c.train.seq_length = 64;
      c.precision.recipe = recipe;
      way.set(c);
      SCOPED_TRACE(fmt::format("{} {}", recipe_name(c), way.name));
      const auto layout = resolve(c);
      if (!layout) continue;  // what a family or a recipe does not take is refused by name
      const auto programs = build_programs(*layout);
      if (!programs) continue;
      ++built;
      for (const Program& program : programs->programs) EXPECT_GT(check_copies(program).made, 0);
    }
  }
  EXPECT_GT(built, 20);
}

INSTANTIATE_TEST_SUITE_P(Families, UnreadCopies, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

// What is gathered again has no use for its transpose the first time, nor for its rows the second.
TEST(UnreadCopiesOfGathers, HalveWhatBothQuantizationsWrite) {
  for (const Recipe recipe : {Recipe::kFp8Current, Recipe::kFp8Blockwise}) {
    Config c = config_of(kFamilies[2]);
    in_sixteens(c);
    c.model.hidden_size = c.model.ffn_hidden_size = 128;
    c.train.seq_length = 64;
    c.precision.recipe = recipe;
    c.parallel.tensor_model_parallel_size = 2;
    const auto layout = resolve(c);
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value()) << format(programs.error());
    // Of two sites a layer, forward and backward each; a copy of blocks has scales of its own.
    EXPECT_EQ(check_copies(programs->programs[0]).left_out, 2 * 2 * 2 * (recipe == Recipe::kFp8Current ? 1 : 2));
    const auto trained = train_and_collect(c);
    ASSERT_TRUE(trained.has_value()) << format(trained.error());
    for (const StepReport& step : trained->steps) EXPECT_TRUE(std::isfinite(step.loss));
  }
}

}  // namespace
}  // namespace mbb::trainer
