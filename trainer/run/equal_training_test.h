// What equality tests compare: a configuration trained on synthetic tokens, with every step's loss and every weight's
// whole gradient put together from the ranks' shards.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/data/rng.h"
#include "trainer/program/verify.h"
#include "trainer/run/initial_state.h"
#include "trainer/run/train.h"

namespace mbb::trainer {

// Each token follows from the one before, with noise.
inline Status structured_sample(int64_t index, std::span<int32_t> tokens, int32_t vocabulary) {
  const RandomStream random(7, "test.tokens", 0);
  int32_t token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0)) & 0x7fffffff;
  token %= vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>(bits >> 8) % vocabulary : (token * 5 + 17) % vocabulary;
    tokens[i] = token;
  }
  return {};
}

using Gradients = std::map<std::string, std::vector<double>>;  // by weight, in the unsharded tensor's order

struct Trained {
  std::vector<StepReport> steps;
  std::vector<Gradients> gradients;  // by step
  TrainResult result;
};

// `change` may plant a fault in the programs, `set` add to what a run is asked for.
inline Result<Trained> train_and_collect(const Config& config, const std::function<void(StepPrograms&)>& change = {},
                                         const std::function<void(TrainOptions&)>& set = {}) {
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(StepPrograms programs, build_programs(layout));
  if (change) change(programs);
  const auto by_rank = programs.by_rank(layout.mesh);
  MB_TRY(verify_world(layout.mesh, by_rank));
  Trained out;
  out.gradients.resize(static_cast<size_t>(config.train.train_iters));
  std::mutex mutex;
  TrainOptions options;
  options.on_gradient = [&](const MeshCoordinates& at, int64_t step, const Tensor& weight, int64_t first,
                            std::span<const float> gradient) {
    const Shape& full = weight.full_shape.rank() > 0 ? weight.full_shape : weight.shape;
    const std::lock_guard lock(mutex);
    auto& values = out.gradients[static_cast<size_t>(step)][weight.path];
    values.resize(static_cast<size_t>(full.elements()), std::nan(""));
    for (size_t i = 0; i < gradient.size(); ++i)
      values[static_cast<size_t>(unsharded_index(weight, at, first + static_cast<int64_t>(i)))] =
          static_cast<double>(gradient[i]);
  };
  if (set) set(options);
  const auto vocabulary = static_cast<int32_t>(layout.model.vocab_size);
  MB_ASSIGN(out.result,
            train(
                layout, programs,
                [&](int64_t index, std::span<int32_t> tokens) { return structured_sample(index, tokens, vocabulary); },
                options));
  out.steps = out.result.steps;
  return out;
}

// The largest ‖a − b‖ / max(‖b‖, 1e-3 · global norm) of the weights b of `one`; infinite where `many` lacks one.
inline double gradient_error(const Gradients& many, const Gradients& one) {
  double global = 0;
  for (const auto& [path, values] : one)
    for (double v : values) global += v * v;
  double worst = 0;
  for (const auto& [path, b] : one) {
    const auto found = many.find(path);
    if (found == many.end() || found->second.size() != b.size()) return INFINITY;
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < b.size(); ++i) error += std::pow(found->second[i] - b[i], 2), norm += b[i] * b[i];
    const double relative = std::sqrt(error) / std::max(std::sqrt(norm), 1e-3 * std::sqrt(global));
    worst = std::isnan(relative) ? INFINITY : std::max(worst, relative);
  }
  return worst;
}

// ‖a − b‖ ≤ tolerance · max(‖b‖, 1e-3 · global norm) for every weight b of `one`.
inline void expect_equal_gradients(const Gradients& many, const Gradients& one, double tolerance) {
  double global = 0;
  for (const auto& [path, values] : one)
    for (double v : values) global += v * v;
  global = std::sqrt(global);
  EXPECT_EQ(many.size(), one.size());
  for (const auto& [path, b] : one) {
    const auto found = many.find(path);
    if (found == many.end() || found->second.size() != b.size()) {
      ADD_FAILURE() << path << " has no gradient of that size";
      continue;
    }
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < b.size(); ++i) error += std::pow(found->second[i] - b[i], 2), norm += b[i] * b[i];
    EXPECT_LE(std::sqrt(error), tolerance * std::max(std::sqrt(norm), 1e-3 * global)) << path;
  }
}

}  // namespace mbb::trainer
