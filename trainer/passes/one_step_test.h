// One training step of a configuration, for tests that compare programs before and after a pass: the loss, and every
// rank's main gradients byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/data/rng.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/program/verify.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

struct Stepped {
  Layout layout;
  StepPrograms programs;
  std::vector<StepOutput> outputs;                               // by rank
  std::vector<std::map<std::string, std::vector<float>>> grads;  // by rank and weight; sums over tokens
};

// Tokens by a formula: micro-batch m of data-parallel rank d holds samples of their own.
inline StepInput one_step_input(const Layout& layout, int dp) {
  StepInput in;
  in.record = {1e-2F, 0.1F, 0.05F, 3.0F};
  const auto vocab = static_cast<uint32_t>(layout.model.vocab_size);
  const auto token = [=](int m, int64_t s, int64_t b, int64_t salt) {
    const uint64_t sample = static_cast<uint64_t>((int64_t{m} * layout.dp + dp) * layout.micro_batch + b);
    return static_cast<int32_t>(RandomStream(7, "one_step", 0).bits(sample, static_cast<uint64_t>(s + salt)) % vocab);
  };
  in.batch = [=](int m, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
    for (int64_t s = 0; s < layout.sequence; ++s)
      for (int64_t b = 0; b < layout.micro_batch; ++b) {
        const auto at = static_cast<size_t>(s * layout.micro_batch + b);
        if (!tokens.empty()) tokens[at] = token(m, s, b, 0);
        if (!labels.empty()) labels[at] = token(m, s, b, 1);
      }
    return {};
  };
  in.extra = [=](int m, std::span<int32_t> samples, std::span<int32_t> encoder) -> Status {
    for (size_t b = 0; b < samples.size(); ++b)
      samples[b] = static_cast<int32_t>((int64_t{m} * layout.dp + dp) * layout.micro_batch + static_cast<int64_t>(b));
    for (size_t i = 0; i < encoder.size(); ++i) encoder[i] = token(m, static_cast<int64_t>(i), 0, 1000);
    return {};
  };
  return in;
}

inline Stepped step_once(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  if (!layout) return {};
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  if (!programs) return {};
  Stepped out{std::move(*layout), std::move(*programs), {}, {}};
  const auto by_rank = out.programs.by_rank(out.layout.mesh);
  const Status world = verify_world(out.layout.mesh, by_rank);
  EXPECT_TRUE(world.has_value()) << (world ? "" : format(world.error()));
  const auto ranks = static_cast<size_t>(out.layout.mesh.world_size());
  out.outputs.resize(ranks);
  out.grads.resize(ranks);
  const auto one_rank = [&](World& w) -> Status {
    const auto r = static_cast<size_t>(w.rank());
    const auto c = static_cast<size_t>(out.layout.mesh.rank_class_index(w.rank()));
    const Program& program = out.programs.programs[c];
    MB_ASSIGN(auto rank, CpuRank::create(program, out.programs.plans[c], out.layout.mesh, w, 1234));
    MB_ASSIGN(out.outputs[r], rank->step(one_step_input(out.layout, out.layout.mesh.coordinates(w.rank()).dp)));
    for (const Tensor& t : program.tensors) {
      if (t.main_grad == kNoTensor) continue;
      std::vector<float>& values = out.grads[r][t.path];
      values.resize(static_cast<size_t>(t.shape.elements()));
      std::memcpy(values.data(), rank->data(t.main_grad), values.size() * sizeof(float));
    }
    return {};
  };
  const Status ran = run_ranks(static_cast<int>(ranks), one_rank, LocalOptions{});
  EXPECT_TRUE(ran.has_value()) << (ran ? "" : format(ran.error()));
  return out;
}

// Bit for bit.
inline void expect_equal(const Stepped& a, const Stepped& b) {
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t rank = 0; rank < a.grads.size(); ++rank) {
    EXPECT_EQ(a.outputs[rank].loss_sum, b.outputs[rank].loss_sum);
    EXPECT_EQ(a.outputs[rank].grad_norm, b.outputs[rank].grad_norm);
    ASSERT_EQ(a.grads[rank].size(), b.grads[rank].size());
    for (const auto& [path, values] : a.grads[rank]) {
      const std::vector<float>& others = b.grads[rank].at(path);
      ASSERT_EQ(values.size(), others.size()) << path;
      EXPECT_EQ(std::memcmp(values.data(), others.data(), values.size() * sizeof(float)), 0)
          << path << " on rank " << rank;
    }
  }
}

}  // namespace mbb::trainer
