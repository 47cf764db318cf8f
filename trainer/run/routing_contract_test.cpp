// Recorded choices: one run's are another's token by token, whatever ranks hold the tokens, and in lower precision the
// mapped run then differs from fp32 by no more than one rank does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "profiler/base/file.h"
#include "trainer/models/small_families.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/training_data.h"

#include "trainer/ops/table.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

Config moe_config(std::string_view name) {
  Config c = config_of(family_of(name));
  c.model.num_experts = 8;
  c.model.num_layers = 4;
  c.train.global_batch_size = 8;
  c.optimizer.lr_warmup_iters = 1;
  return c;
}

// Trains `config` with choices to replay, or records them.
Result<Trained> routed(Config config, const RoutingTable* replay, RoutingTable* record) {
  config.parallel.moe_router_replay = replay != nullptr ? "a table" : "record";
  return train_and_collect(config, {}, [&](TrainOptions& options) {
    options.replay = replay;
    options.record = record;
  });
}

RoutingTable recorded(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << format(layout.error());
  RoutingTable table(layout->sequence, layout->model.moe.top_k);
  const auto one = routed(config, nullptr, &table);
  EXPECT_TRUE(one.has_value()) << format(one.error());
  return table;
}

struct Mapping {
  const char* name;
  void (*map)(Config&);
};

const Mapping kMappings[] = {
    {"tp2", [](Config& c) { c.parallel.tensor_model_parallel_size = 2; }},
    {"tp2_ep4_etp1",
     [](Config& c) {
       c.parallel.tensor_model_parallel_size = 2;
       c.parallel.expert_model_parallel_size = 4;
       c.parallel.expert_tensor_parallel_size = 1;
     }},
    {"cp2_ep2",
     [](Config& c) {
       c.parallel.context_parallel_size = 2;
       c.parallel.expert_model_parallel_size = 2;
       c.parallel.expert_tensor_parallel_size = 1;
     }},
    {"pp2_vpp2_dp2",
     [](Config& c) {
       c.parallel.pipeline_model_parallel_size = 2;
       c.parallel.virtual_pipeline_model_parallel_size = 2;
       c.parallel.gpus = 4;
     }},
    {"ep2_overlap_recompute",
     [](Config& c) {
       c.parallel.expert_model_parallel_size = 2;
       c.parallel.moe_router_fusion = true;
       c.overlap.overlap_moe_expert_parallel_comm = true;
       c.memory.recompute_granularity = RecomputeGranularity::kSelective;
       c.memory.recompute_modules = "moe";
     }},
};

double largest_loss_difference(const Trained& a, const Trained& b) {
  double most = a.steps.size() == b.steps.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.steps.size(), b.steps.size()); ++i)
    most = std::max(most, std::abs(a.steps[i].loss - b.steps[i].loss) / b.steps[i].loss);
  return most;
}

class RoutingReplay : public testing::TestWithParam<const char*> {};

TEST_P(RoutingReplay, EveryMappingRecordsWhatOneRankRecords) {
  const Config base = moe_config(GetParam());
  const RoutingTable one = recorded(base);
  EXPECT_FALSE(one.empty());
  for (const Mapping& m : kMappings) {
    Config c = base;
    m.map(c);
    EXPECT_TRUE(recorded(c).bytes() == one.bytes()) << m.name;
  }
}

// Choices of another seed's run are nothing the routers would choose: equal losses then are the replay's doing.
TEST_P(RoutingReplay, EveryMappingTakesTheChoicesItIsGiven) {
  const Config base = moe_config(GetParam());
  Config other = base;
  other.train.seed = base.train.seed + 1;
  const RoutingTable choices = recorded(other);
  const auto free = train_and_collect(base);
  const auto one = routed(base, &choices, nullptr);
  ASSERT_TRUE(free.has_value() && one.has_value());
  EXPECT_GT(largest_loss_difference(*one, *free), 1e-5);
  for (const Mapping& m : kMappings) {
    SCOPED_TRACE(m.name);
    Config c = base;
    m.map(c);
    const auto many = routed(c, &choices, nullptr);
    ASSERT_TRUE(many.has_value()) << format(many.error());
    EXPECT_LE(largest_loss_difference(*many, *one), 1e-5);
    expect_equal_gradients(many->gradients[0], one->gradients[0], 1e-5);
  }
}

TEST_P(RoutingReplay, OwnChoicesChangeNothing) {
  const Config base = moe_config(GetParam());
  const RoutingTable own = recorded(base);
  const auto free = train_and_collect(base);
  const auto again = routed(base, &own, nullptr);
  ASSERT_TRUE(free.has_value() && again.has_value());
  for (size_t i = 0; i < free->steps.size(); ++i) EXPECT_EQ(again->steps[i].loss, free->steps[i].loss) << i;
}

INSTANTIATE_TEST_SUITE_P(Families, RoutingReplay, testing::Values("mixtral", "deepseek_v3"),
                         [](const auto& test) { return std::string(test.param); });

TEST(RoutingReplay, LowerPrecisionThenDiffersNoMoreThanTwiceWhatOneRankDoes) {
  const Config base = moe_config("mixtral");
  RoutingTable choices = recorded(base);
  const auto exact = train_and_collect(base);
  Config low = base;
  low.precision.recipe = Recipe::kBf16;
  const auto one = routed(low, &choices, nullptr);
  ASSERT_TRUE(exact.has_value() && one.has_value());
  for (const Mapping& m : kMappings) {
    SCOPED_TRACE(m.name);
    Config c = low;
    m.map(c);
    const auto many = routed(c, &choices, nullptr);
    ASSERT_TRUE(many.has_value()) << format(many.error());
    for (const auto& [path, weight] : exact->gradients[0]) {
      const Gradients only{{path, weight}};
      EXPECT_LE(gradient_error(many->gradients[0], only), 2 * gradient_error(one->gradients[0], only) + 1e-3) << path;
    }
  }
}

TEST(RoutingReplay, PacksUnderContextParallelismKeepTheirTokens) {
  Config base = moe_config("qwen3_moe");
  base.train.micro_batch_size = 1;
  base.train.seq_length = 12;
  base.model.vocab_size = 256;  // the shipped text's bytes
  base.packing.sequences = SequenceLengths::kUniform;
  base.packing.packed_sequence_size = 32;
  const auto of = [&](Config c) {
    c.parallel.moe_router_replay = "record";
    const auto layout = resolve(c);
    EXPECT_TRUE(layout.has_value()) << format(layout.error());
    const auto rows = open_sequences(*layout);
    EXPECT_TRUE(rows.has_value()) << format(rows.error());
    RoutingTable table(layout->sequence, layout->model.moe.top_k);
    const auto done = train_and_collect(c, {}, [&](TrainOptions& options) {
      options.record = &table;
      options.sequences = &*rows;
    });
    EXPECT_TRUE(done.has_value()) << format(done.error());
    return table.bytes();
  };
  Config padded = base;  // one rank with sequences padded as two context-parallel ranks need them
  padded.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(of(padded), of(base));
  Config two = base;
  two.parallel.context_parallel_size = 2;
  Config both = two;
  both.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(of(both), of(two));
}

TEST(RoutingReplay, TheProgramTakesChoicesInsteadOfMakingThem) {
  const auto count = [](const char* replay, const OpKind& kind) {
    Config c = moe_config("mixtral");
    c.parallel.moe_router_replay = replay;
    const auto layout = resolve(c);
    EXPECT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value()) << format(programs.error());
    int64_t ops = 0;
    for (const Segment& segment : programs->programs[0].segments)
      for (const Op& op : segment.ops) ops += op.kind == &kind ? 1 : 0;
    return ops;
  };
  EXPECT_EQ(count("", kRouterSelect), 4);
  EXPECT_EQ(count("record", kRouterSelect), 4);
  EXPECT_EQ(count("reference", kRouterSelect), 4);  // one rank in fp32 is the reference
  EXPECT_EQ(count("choices.bin", kRouterSelect), 0);
  EXPECT_EQ(count("choices.bin", kRouterWeights), 4);
}

TEST(RoutingReplay, WhatCannotBeReplayedIsRefused) {
  const auto refused = [](void (*change)(Config&), const RoutingTable* table) {
    Config c = moe_config("mixtral");
    c.parallel.moe_router_replay = "choices.bin";
    change(c);
    const auto done = train_and_collect(c, {}, [&](TrainOptions& options) { options.replay = table; });
    return done ? std::string("accepted") : format(done.error());
  };
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const RoutingTable some(16, 2), wider(16, 3);
  says(refused([](Config& c) { c.model = {.name = "llama3.1-8b"}; }, &some), "a model with experts");
  says(refused([](Config& c) { c.parallel.moe_router_force_load_balancing = true; }, &some),
       "parallel.moe_router_force_load_balancing");
  says(refused([](Config&) {}, nullptr), "no choices are at hand");
  says(refused([](Config&) {}, &wider), "choices of 3 experts");
  says(refused([](Config&) {}, &some), "have none of 2 experts for router layers.0.mlp.router, sample 0, token 0");
  for (const auto& [experts, said] : {std::pair{std::vector<int32_t>{1, 99}, "to expert 99 of "},
                                      {{-2, 1}, "expert -2 of "},
                                      {{1, 1}, "to expert 1 of "}}) {
    RoutingTable wrong(16, 2);
    wrong.set("layers.0.mlp.router", 3, 5, experts);
    says(refused([](Config&) {}, &wrong), said);
    says(refused([](Config&) {}, &wrong), "token 5 of sample 3");
  }
}

TEST(RoutingTable, ComesBackFromItsFileAndRefusesOthers) {
  RoutingTable table(3, 2);
  const std::vector<int32_t> experts{4, 1};
  table.set("layers.0.mlp.router", 7, 2, experts);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("routing-" + std::to_string(getpid()));
  ASSERT_TRUE(table.write(file).has_value());
  const auto back = RoutingTable::read(file);
  ASSERT_TRUE(back.has_value()) << format(back.error());
  std::vector<int32_t> got(2);
  ASSERT_TRUE(back->get("layers.0.mlp.router", 7, 2, got).has_value());
  EXPECT_EQ(got, experts);
  EXPECT_FALSE(back->get("layers.0.mlp.router", 7, 1, got).has_value());
  EXPECT_FALSE(back->get("layers.1.mlp.router", 7, 2, got).has_value());
  const std::string bytes = table.bytes();
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(RoutingTable::of_bytes(std::string_view(bytes).substr(0, length)).has_value()) << length;
  EXPECT_FALSE(RoutingTable::of_bytes(bytes + "x").has_value());
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace mbb::trainer
