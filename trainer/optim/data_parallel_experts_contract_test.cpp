// Expert parallelism beside every data-parallel form: dense parameters over dp_cp, experts over edp, equal to one rank.
#include <functional>

#include "trainer/models/small_families.h"
#include "trainer/run/training_record_test.h"

namespace mbb::trainer {
namespace {

Config small_mixtral() {
  Config c;
  sizes(c, "mixtral-8x7b", 2);
  experts(c, 4, 2);
  c.train.seq_length = 16;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 8;
  c.optimizer.lr_warmup_iters = 1;
  return c;
}

struct Form {
  const char* name;
  int tp, pp, gpus, ep, etp;
  std::function<void(DataParallelConfig&)> set = [](DataParallelConfig&) {};
};

void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

class ExpertForms : public testing::TestWithParam<Form> {};

TEST_P(ExpertForms, TrainLikeOneRank) {
  static const Result<Recorded> one = record_training(small_mixtral(), 5);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  const Form& form = GetParam();
  Config c = small_mixtral();
  c.parallel.tensor_model_parallel_size = form.tp;
  c.parallel.pipeline_model_parallel_size = form.pp;
  c.parallel.gpus = form.gpus;
  c.parallel.expert_model_parallel_size = form.ep;
  c.parallel.expert_tensor_parallel_size = form.etp;
  form.set(c.data_parallel);
  const auto many = record_training(c, 5);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  expect_equal_training(*many, *one);
  bool expert_buckets = false;
  for (const auto& tally : many->comm.front()[static_cast<size_t>(GroupKind::kExpertModel)].by_op)
    expert_buckets = expert_buckets || tally.calls > 0;
  EXPECT_EQ(expert_buckets, form.ep * form.etp * form.pp > 1);
}

void overlapped(DataParallelConfig& d) {
  d.overlap_grad_reduce = d.overlap_param_gather = true;
}

const Form kForms[] = {
    {"optim_ep2", 1, 1, 4, 2, 1},
    {"replicated_ep2", 1, 1, 4, 2, 1,
     [](DataParallelConfig& d) { d.data_parallel_sharding_strategy = ShardingStrategy::kNoShard; }},
    {"buckets_overlapped_ep2_tp2", 2, 1, 4, 2, 1,
     [](DataParallelConfig& d) {
       overlapped(d);
       d.bucket_size = 2000;
     }},
    {"optim_grads_ep4", 1, 1, 4, 4, 1,
     [](DataParallelConfig& d) {
       overlapped(d);
       d.data_parallel_sharding_strategy = ShardingStrategy::kOptimGrads;
     }},
    {"fsdp2_ep2", 1, 1, 4, 2, 1, [](DataParallelConfig& d) { d.use_torch_fsdp2 = true; }},
    {"fsdp2_tp2_ep2", 2, 1, 4, 2, 1, [](DataParallelConfig& d) { d.use_torch_fsdp2 = true; }},
    {"fsdp2_ep2_etp2", 2, 1, 8, 2, 2, [](DataParallelConfig& d) { d.use_torch_fsdp2 = true; }},
    {"hsdp_ep2", 1, 1, 8, 2, 1,
     [](DataParallelConfig& d) {
       d.use_torch_fsdp2 = true;
       d.num_distributed_optimizer_instances = 2;
     }},
    {"optimizer_with_forward_ep2_pp2", 1, 2, 4, 2, 1,
     [](DataParallelConfig& d) {
       overlapped(d);
       d.overlap_optimizer_with_forward = true;
     }},
};

INSTANTIATE_TEST_SUITE_P(All, ExpertForms, testing::ValuesIn(kForms),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
