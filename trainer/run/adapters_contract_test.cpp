// Frozen weights and low-rank adapters: what trains, what it costs in FLOPs and bytes, and that mappings agree.
#include <cmath>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

class Adapters : public testing::TestWithParam<Small> {};

TEST_P(Adapters, OnlyAdaptersTrainAndStartAsTheBaseModel) {
  Config c = config_of(GetParam());
  const Stepped base = step_once(c);
  c.memory.lora_rank = 4;
  c.memory.lora_targets = base.layout.model.is_mla() ? "q_down,q_up,kv_down,kv_up,proj,fc1,fc2" : "qkv,proj,fc1,fc2";
  const Stepped lora = step_once(c);
  // B starts at zero: the loss is the base model's, and A has no gradient yet.
  EXPECT_EQ(lora.outputs[0].loss_sum, base.outputs[0].loss_sum);
  ASSERT_FALSE(lora.grads[0].empty());
  for (const auto& [path, values] : lora.grads[0]) {
    ASSERT_NE(path.find(".lora_"), std::string::npos) << path;
    double norm = 0;
    for (const float v : values) norm += std::abs(static_cast<double>(v));
    EXPECT_EQ(norm > 0, path.ends_with(".lora_b.weight")) << path;
  }
  const Program& program = lora.programs.programs[0];
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      EXPECT_FALSE(op.role == Role::kWgrad && op.kind->name.find("gemm") != std::string_view::npos &&
                   op.path.find(".lora_") == std::string::npos)
          << op.path;
}

INSTANTIATE_TEST_SUITE_P(All, Adapters, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

std::vector<StepReport> train_steps(const Config& config) {
  const Built built = build(config);
  const auto result = train(built.layout, built.programs, [](int64_t index, std::span<int32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((static_cast<size_t>(index) * 11 + i * i * 5 + i) % 64);
    return {};
  });
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  return result ? result->steps : std::vector<StepReport>{};
}

TEST(AdapterMappings, EveryMappingTrainsLikeOneRank) {
  for (const bool lora : {true, false})
    for (const size_t family : {size_t{1}, size_t{2}}) {
      Config c = config_of(kFamilies[family]);
      c.train.train_iters = 4;
      c.optimizer.lr = 3e-2;
      if (lora) {
        c.memory.lora_rank = 4;
        c.memory.lora_targets = "qkv,proj,fc1,fc2";
      } else {
        c.memory.frozen = "embedding.*,*.norm.*,layers.0.attn.*";
      }
      const auto one = train_steps(c);
      ASSERT_EQ(one.size(), 4U);
      EXPECT_LT(one.back().loss, one.front().loss);
      for (const auto& [tp, pp, dp, sp] :
           {std::tuple{2, 1, 1, true}, {2, 1, 1, false}, {1, 2, 1, false}, {1, 1, 2, false}, {2, 2, 1, true}}) {
        SCOPED_TRACE(testing::Message() << kFamilies[family].name << " lora " << lora << " tp " << tp << " pp " << pp
                                        << " dp " << dp << " sp " << sp);
        Config many = c;
        many.parallel.tensor_model_parallel_size = tp;
        many.parallel.pipeline_model_parallel_size = pp;
        many.parallel.gpus = tp * pp * dp;
        many.parallel.sequence_parallel = sp;
        const auto steps = train_steps(many);
        ASSERT_EQ(steps.size(), one.size());
        for (size_t i = 0; i < one.size(); ++i) {
          EXPECT_NEAR(steps[i].loss, one[i].loss, 1e-5 * one[i].loss) << "step " << i;
          EXPECT_NEAR(steps[i].grad_norm, one[i].grad_norm, 2e-4 * one[i].grad_norm) << "step " << i;
        }
      }
    }
}

// An adapter of its own for each expert, wherever experts lie and however they are cut.
TEST(AdapterMappings, ExpertsOnManyRanksTrainLikeThoseOfOne) {
  for (const size_t family : {size_t{7}, size_t{11}, size_t{12}}) {
    Config c = config_of(kFamilies[family]);
    c.train.train_iters = 4;
    c.optimizer.lr = 3e-2;
    c.model.moe_aux_loss_coeff = 0;
    c.memory.lora_rank = 4;
    c.memory.lora_targets = "proj,fc1,fc2";
    const auto one = train_steps(c);
    ASSERT_EQ(one.size(), 4U);
    EXPECT_LT(one.back().loss, one.front().loss);
    for (const auto& [tp, ep, etp, gpus] :
         {std::tuple{2, 1, 0, 2}, {1, 2, 0, 2}, {2, 2, 1, 2}, {2, 2, 2, 4}, {2, 1, 1, 4}}) {
      SCOPED_TRACE(testing::Message() << kFamilies[family].name << " tp " << tp << " ep " << ep << " etp " << etp);
      Config many = c;
      many.parallel.tensor_model_parallel_size = tp;
      many.parallel.expert_model_parallel_size = ep;
      many.parallel.expert_tensor_parallel_size = etp;
      many.parallel.gpus = gpus;
      if (gpus > tp) many.train.micro_batch_size = 1;
      const auto steps = train_steps(many);
      ASSERT_EQ(steps.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(steps[i].loss, one[i].loss, 1e-5 * one[i].loss) << "step " << i;
        EXPECT_NEAR(steps[i].grad_norm, one[i].grad_norm, 2e-4 * one[i].grad_norm) << "step " << i;
      }
    }
  }
}

TEST(AdapterFlops, AreForwardAndDgradOfTheBaseAndAllThreeOfTheAdapters) {
  Config c = config_of(kFamilies[2]);
  c.memory.lora_rank = 4;
  const Built built = build(c);
  const ModelShape& m = built.layout.model;
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  const double tokens = d(built.layout.tokens_per_step()), h = d(m.hidden_size), q = d(m.query_size()),
               kv = d(m.kv_size()), f = d(m.ffn_hidden_size), v = d(m.vocab_size), layers = d(m.num_layers),
               s = d(built.layout.sequence), r = d(c.memory.lora_rank);
  double flops = tokens * layers * 4 * (h * (q + 2 * kv) + q * h + 3 * h * f) + tokens * 4 * h * v;  // linear, head
  flops += tokens * layers * 6 * s * q;                                                              // causal core
  flops += tokens * layers * 6 * r * ((h + q + 2 * kv) + (q + h));                                   // adapters
  // Before the first layer's attention nothing trains: no gradient of its input.
  flops -= tokens * (2 * h * (q + 2 * kv) + 2 * h * r);
  EXPECT_DOUBLE_EQ(explain(built.layout, built.programs).model_flops, flops);
}

TEST(AdapterMemory, StateIsTheAdaptersOnly) {
  Config c = config_of(kFamilies[2]);
  c.precision.recipe = Recipe::kBf16;
  c.parallel.use_distributed_optimizer = false;
  c.memory.lora_rank = 4;
  const Built built = build(c);
  int64_t frozen = 0, trained = 0;
  std::array<int64_t, kCategories> bytes{};
  for (const Tensor& t : built.programs.programs[0].tensors) {
    if (t.main_grad != kNoTensor) trained += t.shape.elements();
    if (t.view_of != kNoTensor) continue;
    if (t.category == Category::kWeight && t.init.kind != Init::Kind::kNone) frozen += t.shape.elements();
    bytes[static_cast<size_t>(t.category)] += t.bytes();
  }
  const ModelShape& m = built.layout.model;
  const int64_t h = m.hidden_size, q = m.query_size(), kv = m.kv_size();
  EXPECT_EQ(trained, m.num_layers * 4 * ((h + q + 2 * kv) + (q + h)));
  // Buckets align tensors at 64 elements: every adapter here is a multiple of it.
  EXPECT_EQ(bytes[static_cast<size_t>(Category::kWeight)], 2 * (frozen + trained));
  EXPECT_EQ(bytes[static_cast<size_t>(Category::kMainGrad)], 4 * trained);
  EXPECT_EQ(bytes[static_cast<size_t>(Category::kMaster)], 4 * trained);
  EXPECT_EQ(bytes[static_cast<size_t>(Category::kMoment)], 8 * trained);
}

TEST(FrozenWeights, HaveNeitherGradientNorStateAndKeepTheirValues) {
  Config c = config_of(kFamilies[0]);
  const Stepped all = step_once(c);
  c.memory.frozen = "layers.0.*,*.norm.bias";
  const Stepped some = step_once(c);
  EXPECT_EQ(some.outputs[0].loss_sum, all.outputs[0].loss_sum);
  for (const auto& [path, values] : all.grads[0]) {
    const bool frozen = path.starts_with("layers.0.") || path.ends_with(".norm.bias");
    ASSERT_EQ(some.grads[0].contains(path), !frozen) << path;
    if (!frozen) {
      EXPECT_EQ(std::memcmp(values.data(), some.grads[0].at(path).data(), values.size() * 4), 0) << path;
    }
  }
}

TEST(FrozenWeights, MistakesNameKnobAndRemedy) {
  const auto error = [](const std::function<void(Config&)>& change) {
    Config c = config_of(kFamilies[2]);
    change(c);
    const auto layout = resolve(c);
    if (!layout) return layout.error().what;
    const auto programs = build_programs(*layout);
    return programs ? std::string("accepted") : programs.error().what;
  };
  EXPECT_EQ(error([](Config& c) { c.memory.frozen = "*.qkv.weight,layers.9.*"; }),
            "memory.frozen: no weight has a path like 'layers.9.*'");
  EXPECT_EQ(error([](Config& c) { c.memory.frozen = "*"; }), "memory.frozen = * leaves nothing to train on stage 0");
  EXPECT_EQ(error([](Config& c) { c.memory.lora_alpha = 8; }),
            "memory.lora_alpha or memory.lora_targets is given, and memory.lora_rank is 0");
  EXPECT_EQ(error([](Config& c) {
              c.memory.lora_rank = 2;
              c.memory.lora_targets = "qkv,q_up";
            }),
            "memory.lora_targets: model llama3.1-8b has no linear layer 'q_up'");
  EXPECT_EQ(error([](Config& c) {
              c.memory.lora_rank = 2;
              c.memory.frozen = "embedding.*";
            }),
            "memory.frozen with memory.lora_rank: adapters are all that trains then");
  EXPECT_EQ(error([](Config& c) { c.memory.lora_rank = 99'999; }).find("memory.lora_rank = 99999 is more than "), 0U);
}

}  // namespace
}  // namespace mbb::trainer
