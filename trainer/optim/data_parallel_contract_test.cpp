// Data parallelism in all its forms trains like one rank: losses and every gradient, five steps.
#include <functional>

#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

using Strategy = ShardingStrategy;

Config small_llama() {
  Config c;
  sizes(c, "llama3.1-8b", 2);
  c.model.kv_channels = 8;
  c.model.num_layers = 4;
  c.train.seq_length = 16;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 8;
  c.optimizer.lr_warmup_iters = 1;
  return c;
}

struct Form {
  const char* name;
  int tp, pp, dp;
  std::function<void(Config&)> set = [](Config&) {};
};

void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

void mapped(Config& c, const Form& form) {
  c.parallel.tensor_model_parallel_size = form.tp;
  c.parallel.pipeline_model_parallel_size = form.pp;
  c.parallel.gpus = int64_t{form.tp} * form.pp * form.dp;
  form.set(c);
}

void strategy(Config& c, Strategy strategy) {
  c.data_parallel.data_parallel_sharding_strategy = strategy;
}
void overlapped(Config& c) {
  c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
}
void instances(Config& c, int64_t count) {
  c.data_parallel.num_distributed_optimizer_instances = count;
}

// What the ranks moved is what the program says. A ring's message counts at its sender; along the pipeline a program
// counts both ends.
void expect_bytes_as_explained(const Recorded& run) {
  const Explain e = explain(run.layout, run.programs);
  for (size_t rank = 0; rank < run.comm.size(); ++rank) {
    const auto rank_class = static_cast<size_t>(run.layout.mesh.rank_class_index(static_cast<int>(rank)));
    for (const CommRow& row : e.classes[rank_class].comm) {
      if (row.group == GroupKind::kPp) continue;
      const CommStats& stats = run.comm[rank][static_cast<size_t>(row.group)];
      CommTally moved;
      for (size_t op = 0; op < kCommOpCount; ++op)
        if (static_cast<CommOp>(op) != CommOp::kRecv) moved += stats.by_op[op];
      const auto steps = static_cast<int64_t>(run.steps.size());
      EXPECT_EQ(static_cast<int64_t>(moved.calls), steps * row.calls) << name(row.group);
      EXPECT_EQ(static_cast<double>(moved.wire_bytes), static_cast<double>(steps) * row.wire_bytes) << name(row.group);
    }
  }
}

void context(Config& c, int64_t size) {
  c.parallel.context_parallel_size = size;
  c.parallel.gpus *= size;
}
void chunks(Config& c, int64_t count) {
  c.parallel.virtual_pipeline_model_parallel_size = count;
}

class DataParallelForms : public testing::TestWithParam<Form> {};

TEST_P(DataParallelForms, TrainLikeOneRank) {
  static const Result<Recorded> one = record_training(small_llama(), 5);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  Config c = small_llama();
  mapped(c, GetParam());
  const auto many = record_training(c, 5);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  expect_equal_training(*many, *one);
  expect_bytes_as_explained(*many);
  EXPECT_LT(one->steps.back().loss, one->steps.front().loss);
}

const Form kForms[] = {
    {"replicated", 1, 1, 4, [](Config& c) { strategy(c, Strategy::kNoShard); }},
    {"optim", 1, 1, 4},
    {"buckets", 1, 1, 2, [](Config& c) { c.data_parallel.bucket_size = 3000; }},
    {"buckets_tp2_pp2", 2, 2, 2, [](Config& c) { c.data_parallel.bucket_size = 2000; }},
    {"replicated_overlapped", 2, 1, 2,
     [](Config& c) {
       strategy(c, Strategy::kNoShard);
       c.data_parallel.bucket_size = 3000;
       c.data_parallel.overlap_grad_reduce = true;
     }},
    {"overlapped", 1, 1, 4,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.bucket_size = 3000;
     }},
    {"overlapped_tp2_pp2", 2, 2, 2,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.bucket_size = 2000;
     }},
    {"aligned_pp2", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.align_param_gather = true;
       c.data_parallel.bucket_size = 3000;
     }},
    {"gather_with_optimizer", 1, 1, 2,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.overlap_param_gather_with_optimizer_step = true;
       c.data_parallel.bucket_size = 3000;
     }},
    {"optimizer_with_forward", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.overlap_optimizer_with_forward = true;
       c.data_parallel.bucket_size = 3000;
     }},
    {"optimizer_with_forward_one_rank", 1, 1, 1,
     [](Config& c) {
       c.data_parallel.overlap_optimizer_with_forward = true;
       c.data_parallel.bucket_size = 3000;
       c.data_parallel.overlap_param_gather = true;
     }},
    {"instances", 1, 1, 4, [](Config& c) { instances(c, 2); }},
    {"instances_overlapped_tp2", 2, 1, 4,
     [](Config& c) {
       instances(c, 2);
       overlapped(c);
       c.data_parallel.bucket_size = 2000;
     }},
    {"optim_grads", 1, 1, 4, [](Config& c) { strategy(c, Strategy::kOptimGrads); }},
    {"optim_grads_overlapped_tp2_pp2", 2, 2, 2,
     [](Config& c) {
       strategy(c, Strategy::kOptimGrads);
       overlapped(c);
     }},
    {"optim_grads_instances", 1, 1, 4,
     [](Config& c) {
       strategy(c, Strategy::kOptimGrads);
       instances(c, 2);
       overlapped(c);
     }},
    {"fsdp", 1, 1, 2, [](Config& c) { strategy(c, Strategy::kOptimGradsParams); }},
    {"fsdp2", 1, 1, 4, [](Config& c) { c.data_parallel.use_torch_fsdp2 = true; }},
    {"fsdp2_one_micro_batch", 1, 1, 8, [](Config& c) { c.data_parallel.use_torch_fsdp2 = true; }},
    {"fsdp2_kept", 1, 1, 4,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.reshard_after_forward = false;
     }},
    {"fsdp2_no_prefetch", 1, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.fsdp_prefetch_units = 0;
     }},
    {"fsdp2_prefetch2_tp2", 2, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.fsdp_prefetch_units = 2;
     }},
    {"fsdp2_tp2_pp2", 2, 2, 2, [](Config& c) { c.data_parallel.use_torch_fsdp2 = true; }},
    {"fsdp2_kept_pp2", 1, 2, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.reshard_after_forward = false;
     }},
    {"fsdp2_optimizer_with_forward", 1, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.data_parallel.overlap_optimizer_with_forward = true;
     }},
    {"hsdp", 1, 1, 4,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       instances(c, 2);
     }},
    {"hsdp_tp2_pp2", 2, 2, 4,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       instances(c, 2);
     }},
    {"vpp2_overlapped", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       chunks(c, 2);
     }},
    {"vpp2_aligned_instances", 1, 2, 4,
     [](Config& c) {
       overlapped(c);
       chunks(c, 2);
       instances(c, 2);
       c.data_parallel.align_param_gather = true;
     }},
    {"vpp2_gather_with_optimizer", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       chunks(c, 2);
       c.data_parallel.overlap_param_gather_with_optimizer_step = true;
     }},
    {"vpp2_optimizer_with_forward_deferred_wgrad", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       chunks(c, 2);
       c.data_parallel.overlap_optimizer_with_forward = true;
       c.data_parallel.defer_embedding_wgrad_compute = true;
     }},
    {"vpp2_fsdp2_tp2", 2, 2, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       chunks(c, 2);
     }},
    {"vpp2_optim_grads", 1, 2, 2,
     [](Config& c) {
       strategy(c, Strategy::kOptimGrads);
       overlapped(c);
       chunks(c, 2);
     }},
    {"overlapped_cp2_pp2", 1, 2, 2,
     [](Config& c) {
       overlapped(c);
       context(c, 2);
       c.data_parallel.bucket_size = 3000;
     }},
    {"fsdp2_tp2_cp2", 2, 1, 1,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       context(c, 2);
     }},
    {"hsdp_tp2_cp2", 2, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       context(c, 2);
       instances(c, 2);
     }},
    {"fsdp2_recompute", 1, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.memory.recompute_granularity = RecomputeGranularity::kFull;
     }},
    {"fsdp2_recompute_in_groups", 2, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.memory.recompute_granularity = RecomputeGranularity::kFull;
       c.memory.recompute_num_layers = 2;
     }},
    {"fsdp2_offloaded_weights", 1, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.memory.cpu_offloading = c.memory.cpu_offloading_weights = true;
     }},
    {"overlapped_offloaded_weights", 1, 1, 2,
     [](Config& c) {
       overlapped(c);
       c.data_parallel.bucket_size = 3000;
       c.memory.cpu_offloading = c.memory.cpu_offloading_weights = true;
     }},
    {"fsdp2_unfused_accumulation", 1, 1, 2,
     [](Config& c) {
       c.data_parallel.use_torch_fsdp2 = true;
       c.fusion.gradient_accumulation_fusion = false;
     }},
    {"deferred_unfused_accumulation", 1, 2, 1,
     [](Config& c) {
       c.data_parallel.defer_embedding_wgrad_compute = true;
       c.fusion.gradient_accumulation_fusion = false;
     }},
    {"deferred_wgrad_optim_grads", 1, 2, 2,
     [](Config& c) {
       c.data_parallel.defer_embedding_wgrad_compute = true;
       strategy(c, Strategy::kOptimGrads);
     }},
    {"deferred_wgrad_fsdp2_tp2", 2, 2, 2,
     [](Config& c) {
       c.data_parallel.defer_embedding_wgrad_compute = true;
       c.data_parallel.use_torch_fsdp2 = true;
     }},
    {"deferred_wgrad_pp2", 1, 2, 1, [](Config& c) { c.data_parallel.defer_embedding_wgrad_compute = true; }},
    {"deferred_wgrad_tp2_pp2_dp2", 2, 2, 2,
     [](Config& c) {
       c.data_parallel.defer_embedding_wgrad_compute = true;
       overlapped(c);
     }},
};

INSTANTIATE_TEST_SUITE_P(All, DataParallelForms, testing::ValuesIn(kForms),
                         [](const auto& test) { return std::string(test.param.name); });

class ShardedFamilies : public testing::TestWithParam<Small> {};

// Shared weights (tied embeddings, T5's bias table), experts, multi-token prediction, biases: all fully sharded.
TEST_P(ShardedFamilies, TrainLikeOneRank) {
  Config small = config_of(GetParam());
  small.train.micro_batch_size = 1;
  const auto one = record_training(small, 3);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const Strategy sharding : {Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    Config c = small;
    c.parallel.gpus = 2;
    strategy(c, sharding);
    overlapped(c);
    const auto many = record_training(c, 3);
    ASSERT_TRUE(many.has_value()) << format(many.error());
    expect_equal_training(*many, *one);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardedFamilies, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

// Weights of the first and the last stage are reduced over both, sharded or not.
TEST(SharedWeights, OfTwoStagesTrainLikeOneRank) {
  for (const Small& family : kFamilies) {
    if (std::string_view(family.name) != "gpt" && std::string_view(family.name) != "qwen25_tied") continue;
    Config small = config_of(family);
    small.train.micro_batch_size = 1;
    const auto one = record_training(small, 3);
    ASSERT_TRUE(one.has_value()) << format(one.error());
    for (const Strategy sharding : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      Config c = small;
      c.parallel.pipeline_model_parallel_size = 2;
      c.parallel.gpus = 4;
      strategy(c, sharding);
      overlapped(c);
      const auto many = record_training(c, 3);
      ASSERT_TRUE(many.has_value()) << format(many.error());
      expect_equal_training(*many, *one);
    }
  }
}

// Rounded gradients are another arithmetic: one rank with bf16 main gradients is the reference.
TEST(Bf16Gradients, AreReducedInBf16AndStayNearFp32) {
  Config c = small_llama();
  c.precision.recipe = Recipe::kBf16;
  const auto exact = record_training(c, 5);
  ASSERT_TRUE(exact.has_value()) << format(exact.error());
  c.data_parallel.grad_reduce_in_fp32 = false;
  for (const Strategy sharding : {Strategy::kOptim, Strategy::kOptimGradsParams}) {
    strategy(c, sharding);
    c.parallel.gpus = 2;
    const auto rounded = record_training(c, 5);
    ASSERT_TRUE(rounded.has_value()) << format(rounded.error());
    for (size_t step = 0; step < 5; ++step)
      EXPECT_NEAR(rounded->steps[step].loss, exact->steps[step].loss, 1e-2 * exact->steps[step].loss);
    EXPECT_NE(rounded->steps[4].loss, exact->steps[4].loss);
    for (const Tensor& t : rounded->programs.programs[0].tensors) {
      const bool grads = t.category == Category::kMainGrad && t.view_of == kNoTensor;
      EXPECT_EQ(grads && t.dtype != DType::kBf16, false) << t.path;
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
