// Steps of a configuration with every rank's gradients put together: what tests compare between mappings.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/data/rng.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/optim/schedule.h"
#include "trainer/program/verify.h"
#include "trainer/run/initial_state.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

// Tokens below `vocabulary` with structure to learn: each follows from the one before, with noise.
inline Status patterned_sample(int64_t index, std::span<int32_t> tokens, int32_t vocabulary) {
  const RandomStream random(7, "test.tokens", 0);
  int32_t token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0) % 64);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>((bits >> 8) & 63) : (token * 5 + 17) % vocabulary;
    tokens[i] = token;
  }
  return {};
}

struct RecordedStep {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, std::vector<double>> gradients;  // summed over the batch, of unsharded tensors
};

struct Recorded {
  Layout layout;
  StepPrograms programs;
  std::vector<RecordedStep> steps;
  std::vector<std::array<CommStats, 32>> comm;  // by rank and GroupKind
};

// Adds what this rank holds of the buckets' summed gradients, wherever the optimizer reads them.
inline void record_gradients(const Program& program, const Mesh& mesh, int world_rank, CpuRank& rank,
                             std::map<std::string, std::vector<double>>& all) {
  std::map<std::string_view, const Tensor*> weights;
  for (const Tensor& t : program.tensors)
    if (t.main_grad != kNoTensor) weights[t.path] = &t;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const auto* adam = std::get_if<AdamAttrs>(&op.attrs);
      if (adam == nullptr) continue;
      const BucketAttrs& bucket = adam->bucket;
      const Tensor& grads = program.tensor(op.in[0]);
      const int64_t shard = program.tensor(op.in[2]).shape.elements();
      const int64_t begin = bucket.sharded ? shard * mesh.group_index(bucket.shard_group, world_rank) : 0;
      const int64_t first = grads.shape.elements() == shard ? begin : 0;
      const auto value = [&](int64_t i) {
        const std::byte* data = rank.data(op.in[0]);
        return grads.dtype == DType::kBf16 ? static_cast<double>(to_float(reinterpret_cast<const Bf16*>(data)[i]))
                                           : static_cast<double>(reinterpret_cast<const float*>(data)[i]);
      };
      for (const BucketRange& range : bucket.ranges) {
        const Tensor& weight = *weights.at(range.path);
        auto& whole = all[range.path];
        whole.resize(static_cast<size_t>(weight.full_shape.elements()), NAN);
        const int64_t from = std::max(range.offset, begin);
        const int64_t to = std::min(range.offset + range.count, begin + shard);
        for (int64_t i = from; i < to; ++i)
          whole[static_cast<size_t>(unsharded_index(weight, mesh.coordinates(world_rank), i - range.offset))] =
              value(i - first);
      }
    }
  }
}

inline StepInput patterned_input(const Layout& l, const Mesh& mesh, int world_rank, int64_t step) {
  const MeshCoordinates coordinates = mesh.coordinates(world_rank);
  const int dp_rank = coordinates.dp;
  const Positions positions = l.positions(coordinates.cp), encoder_positions = l.encoder_positions(coordinates.cp);
  const auto index = [&l, dp_rank, step](int m, size_t i) {
    return step * l.global_batch + (int64_t{m} * l.dp + dp_rank) * l.micro_batch + static_cast<int64_t>(i);
  };
  const auto b = static_cast<size_t>(l.micro_batch), first = static_cast<size_t>(l.encoder_sequence);
  const auto read = [&l](int64_t at, std::vector<int32_t>& sample) {
    sample.resize(static_cast<size_t>(l.sample_tokens()));
    return patterned_sample(at, sample, static_cast<int32_t>(std::min<int64_t>(l.vocab, 64)));
  };
  StepInput input;
  const OptimizerConfig& o = l.config.optimizer;
  input.record = {static_cast<float>(learning_rate(o, 100, step)),
                  static_cast<float>(1.0 - std::pow(o.adam_beta1, static_cast<double>(step + 1))),
                  static_cast<float>(1.0 - std::pow(o.adam_beta2, static_cast<double>(step + 1))),
                  static_cast<float>(step)};
  input.batch = [=, &l](int m, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
    std::vector<int32_t> sample;
    for (size_t i = 0; i < b; ++i) {
      MB_TRY(read(index(m, i), sample));
      for (size_t s = 0; s < static_cast<size_t>(l.local_sequence()); ++s) {
        const size_t at = first + static_cast<size_t>(positions.at(static_cast<int64_t>(s)));
        if (!tokens.empty()) tokens[s * b + i] = sample[at];
        if (!labels.empty()) labels[s * b + i] = sample[at + 1];
      }
    }
    return {};
  };
  input.extra = [=, &l](int m, std::span<int32_t> samples, std::span<int32_t> encoder_tokens) -> Status {
    std::vector<int32_t> sample;
    for (size_t i = 0; i < b; ++i) {
      if (!samples.empty()) samples[i] = static_cast<int32_t>(index(m, i));
      if (encoder_tokens.empty()) continue;
      MB_TRY(read(index(m, i), sample));
      for (int64_t s = 0; s < l.local_encoder_sequence(); ++s)
        encoder_tokens[static_cast<size_t>(s) * b + i] = sample[static_cast<size_t>(encoder_positions.at(s))];
    }
    return {};
  };
  return input;
}

inline Result<Recorded> record_training(const Config& config, int64_t steps) {
  Recorded out;
  MB_ASSIGN(out.layout, resolve(config));
  MB_ASSIGN(out.programs, build_programs(out.layout));
  const Mesh& mesh = out.layout.mesh;
  MB_TRY(verify_world(mesh, out.programs.by_rank(mesh)));
  out.steps.resize(static_cast<size_t>(steps));
  out.comm.resize(static_cast<size_t>(mesh.world_size()));
  std::mutex mutex;
  MB_TRY(run_ranks(
      mesh.world_size(),
      [&](World& world) -> Status {
        const auto rank_class = static_cast<size_t>(mesh.rank_class_index(world.rank()));
        const Program& program = out.programs.programs[rank_class];
        MB_ASSIGN(auto rank, CpuRank::create(program, out.programs.plans[rank_class], mesh, world,
                                             static_cast<uint64_t>(config.train.seed)));
        for (int64_t step = 0; step < steps; ++step) {
          MB_ASSIGN(const StepOutput output, rank->step(patterned_input(out.layout, mesh, world.rank(), step)));
          const std::lock_guard lock(mutex);
          RecordedStep& record = out.steps[static_cast<size_t>(step)];
          record_gradients(program, mesh, world.rank(), *rank, record.gradients);
          record.loss = output.loss();
          record.grad_norm = output.grad_norm;
        }
        for (size_t kind = 0; kind < kGroupKinds.size(); ++kind)
          out.comm[static_cast<size_t>(world.rank())][kind] = rank->stats(static_cast<GroupKind>(kind));
        return {};
      },
      LocalOptions{.no_progress_ms = 60'000}));
  return out;
}

inline double norm_of(const std::vector<double>& values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares);
}

// Losses within 1e-5 relative; every gradient within 1e-5 of its own norm or of a thousandth of the global norm.
inline void expect_equal_training(const Recorded& many, const Recorded& one, double tolerance = 1e-5) {
  ASSERT_EQ(many.steps.size(), one.steps.size());
  for (size_t step = 0; step < one.steps.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const RecordedStep& a = many.steps[step];
    const RecordedStep& b = one.steps[step];
    EXPECT_NEAR(a.loss, b.loss, tolerance * b.loss);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, tolerance * b.grad_norm);
    ASSERT_EQ(a.gradients.size(), b.gradients.size());
    double global = 0;
    for (const auto& [path, values] : b.gradients) global += std::pow(norm_of(values), 2);
    global = std::sqrt(global);
    for (const auto& [path, values] : b.gradients) {
      ASSERT_TRUE(a.gradients.contains(path)) << path;
      const std::vector<double>& mine = a.gradients.at(path);
      ASSERT_EQ(mine.size(), values.size()) << path;
      std::vector<double> difference(values.size());
      for (size_t i = 0; i < values.size(); ++i) difference[i] = mine[i] - values[i];
      EXPECT_LE(norm_of(difference), tolerance * std::max(norm_of(values), 1e-3 * global)) << path;
    }
  }
}

}  // namespace mbb::trainer
