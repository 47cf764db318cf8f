// Programs for tests of this room: built from a configuration, or from a random mapping of a small model.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "trainer/run/step_programs.h"

namespace mbb::trainer {

struct Built {
  Layout layout;
  StepPrograms programs;
};

inline Built build(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  return {std::move(*layout), std::move(*programs)};
}

// The quickstart model with `layers` layers under a mapping.
inline Config mapped(int tp, int pp, int dp, int64_t layers = 4) {
  Config config;
  config.model.num_layers = layers;
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  config.parallel.gpus = int64_t{tp} * pp * dp;
  config.train.global_batch_size = 12;
  return config;
}

// A mapping that resolves: TP, PP and DP up to 4, one to eight micro-batches, one or two chunks a stage, either dtype,
// with and without sharding.
inline Config random_mapping(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int tp = 1 << pick(0, 2);
  const int pp = pick(1, 4);
  const int dp = pick(1, 3);
  Config config = mapped(tp, pp, dp, int64_t{pp} * pick(1, 2));
  config.model.num_query_groups = 4;
  config.train.micro_batch_size = pick(1, 2);
  config.train.seq_length = 16 * pick(1, 2);
  config.train.global_batch_size = config.train.micro_batch_size * dp * pick(1, 6);
  config.precision.recipe = pick(0, 1) == 0 ? Recipe::kFp32 : Recipe::kBf16;
  config.parallel.use_distributed_optimizer = pick(0, 1) == 0;
  if (pp > 1 && pick(0, 1) == 0) {
    config.parallel.virtual_pipeline_model_parallel_size = 2;
    config.model.num_layers = 2 * pp;
    config.train.global_batch_size = config.train.micro_batch_size * dp * pp * pick(1, 2);
  }
  if (tp > 1) config.parallel.sequence_parallel = pick(0, 1) == 0;
  return config;
}

inline std::string mapping_of(const Built& built) {
  return describe(built.layout.mesh.sizes()) + ", " + std::to_string(built.layout.micro_batches) + " micro-batches";
}

}  // namespace mbb::trainer
