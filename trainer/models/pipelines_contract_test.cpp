// Pipelines train like one rank: losses and every gradient, five steps, with weights that several stages or both meshes
// hold.
#include <functional>

#include "trainer/models/small_families.h"
#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

struct Pipeline {
  const char* name;
  const char* family;
  int tp, pp, dp;
  std::function<void(Config&)> set = [](Config&) {};
};

void PrintTo(const Pipeline& pipeline, std::ostream* out) {
  *out << pipeline.name;
}

Config four_layers(const char* family) {
  Config c = config_of(family_of(family));
  c.model.num_layers = 4;
  c.train.micro_batch_size = 1;
  return c;
}

void chunks(Config& c, int64_t count) {
  c.parallel.virtual_pipeline_model_parallel_size = count;
}
void fully_sharded(Config& c) {
  c.data_parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
}
void encoder_mesh(Config& c, int64_t tp) {
  c.parallel.encoder_pipeline_model_parallel_size = 1;
  c.parallel.encoder_tensor_model_parallel_size = tp;
}

class PipelineMappings : public testing::TestWithParam<Pipeline> {};

TEST_P(PipelineMappings, TrainLikeOneRank) {
  const Pipeline& p = GetParam();
  Config c = four_layers(p.family);
  const auto one = record_training(c, 5);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  c.parallel.tensor_model_parallel_size = p.tp;
  c.parallel.pipeline_model_parallel_size = p.pp;
  p.set(c);
  const int64_t encoder =
      c.parallel.encoder_pipeline_model_parallel_size * c.parallel.encoder_tensor_model_parallel_size;
  c.parallel.gpus = (int64_t{p.tp} * p.pp + encoder) * p.dp;
  const auto many = record_training(c, 5);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  expect_equal_training(*many, *one);
}

INSTANTIATE_TEST_SUITE_P(
    All, PipelineMappings,
    testing::Values(Pipeline{"chunks", "llama31", 1, 2, 1, [](Config& c) { chunks(c, 2); }},
                    Pipeline{"chunks_tp2_dp2", "llama31", 2, 2, 2, [](Config& c) { chunks(c, 2); }},
                    Pipeline{"chunks_overlapped_dp2", "llama31", 1, 2, 2,
                             [](Config& c) {
                               chunks(c, 2);
                               c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
                             }},
                    Pipeline{"chunks_recomputed", "llama31", 1, 2, 1,
                             [](Config& c) {
                               chunks(c, 2);
                               c.memory.recompute_granularity = RecomputeGranularity::kFull;
                             }},
                    Pipeline{"chunks_of_experts", "mixtral", 1, 2, 1, [](Config& c) { chunks(c, 2); }},
                    Pipeline{"uneven", "qwen3", 1, 2, 1, [](Config& c) { c.parallel.pipeline_layout = "E|ttt|t|L"; }},
                    Pipeline{"tied", "gpt", 1, 2, 1}, Pipeline{"tied_tp2_dp2", "qwen25_tied", 2, 4, 2},
                    Pipeline{"tied_chunks", "qwen25_tied", 1, 2, 1, [](Config& c) { chunks(c, 2); }},
                    Pipeline{"tied_overlapped_dp2", "gpt", 1, 2, 2,
                             [](Config& c) {
                               c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
                             }},
                    Pipeline{"tied_fully_sharded", "gpt", 1, 2, 2, fully_sharded},
                    Pipeline{"chunks_fully_sharded", "llama31", 1, 2, 2,
                             [](Config& c) {
                               chunks(c, 2);
                               fully_sharded(c);
                             }},
                    Pipeline{"mtp", "deepseek_v3_mtp", 1, 2, 1},
                    Pipeline{"mtp_chunks_tp2", "deepseek_v3_mtp", 2, 2, 1, [](Config& c) { chunks(c, 2); }},
                    Pipeline{"t5_two_stages", "t5", 1, 2, 1}, Pipeline{"t5_tp2_dp2", "t5", 2, 2, 2},
                    Pipeline{"t5_meshes", "t5", 2, 2, 1, [](Config& c) { encoder_mesh(c, 1); }},
                    Pipeline{"t5_meshes_dp2", "t5", 2, 2, 2, [](Config& c) { encoder_mesh(c, 1); }},
                    Pipeline{"t5_meshes_same_tp", "t5", 2, 1, 1, [](Config& c) { encoder_mesh(c, 2); }}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
