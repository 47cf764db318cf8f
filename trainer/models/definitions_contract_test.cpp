// What no other library computes, against second definitions written out here: multi-token prediction, token drop,
// balancing by sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/models/model.h"
#include "trainer/ops/table.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

// One op on plain arrays.
class Bench {
 public:
  template <typename T>
  Bench& in(const std::vector<T>& values, Shape shape) {
    return add(in_, values, shape);
  }
  template <typename T>
  Bench& out(std::vector<T>& values, Shape shape) {
    return add(out_, values, shape);
  }
  Status run(const OpKind& kind, Attrs attrs) {
    Op op;
    op.kind = &kind;
    op.attrs = std::move(attrs);
    std::vector<CpuOperand> in, out;
    for (const auto& [tensor, data] : in_) in.push_back({data, &tensor});
    for (const auto& [tensor, data] : out_) out.push_back({data, &tensor});
    const RankContext rank;
    return kind.cpu(CpuCall{op, in, out, rank});
  }

 private:
  using Operands = std::vector<std::pair<Tensor, void*>>;
  template <typename T>
  Bench& add(Operands& operands, const std::vector<T>& values, Shape shape) {
    Tensor t;
    t.shape = shape;
    t.dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
    operands.emplace_back(t, const_cast<T*>(values.data()));
    return *this;
  }
  Operands in_, out_;
};

TEST(TokenDrop, KeepsTheGreatestWeightsOrTheFirstTokens) {
  std::mt19937 random(std::random_device{}());
  constexpr int kTokens = 20, kTopK = 2, kExperts = 4, kCapacity = 7;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  for (int t = 0; t < kTokens; ++t) {
    const auto first = static_cast<int32_t>(random() % 3);  // crowds the first experts
    experts.insert(experts.end(), {first, first + 1});
    for (int j = 0; j < kTopK; ++j) weights.push_back(static_cast<float>(random() % 8) / 8.0F);
  }
  for (const bool by_position : {false, true}) {
    std::vector<int32_t> rows(kTokens * kTopK, -7), segments(2 * kExperts, -7);
    ASSERT_TRUE(Bench()
                    .in(experts, Shape{kTokens, kTopK})
                    .in(weights, Shape{kTokens, kTopK})
                    .out(rows, Shape{kTokens, kTopK})
                    .out(segments, Shape{2, kExperts})
                    .run(kDispatchPlan, DispatchAttrs{.experts = kExperts,
                                                      .rows = kExperts * kCapacity,
                                                      .capacity = kCapacity,
                                                      .by_position = by_position}));
    std::map<int32_t, int> used;
    for (size_t i = 0; i < rows.size(); ++i) {
      int before = 0;  // pairs of the same expert that go first
      for (size_t j = 0; j < rows.size(); ++j) {
        if (experts[j] != experts[i] || j == i) continue;
        const bool stronger = weights[j] > weights[i] || (weights[j] == weights[i] && j < i);
        if (by_position ? j < i : stronger) ++before;
      }
      EXPECT_EQ(rows[i] >= 0, before < kCapacity) << "pair " << i;
      if (rows[i] < 0) continue;
      EXPECT_EQ(rows[i] / kCapacity, experts[i]);
      EXPECT_EQ(++used[rows[i]], 1) << "row " << rows[i];
    }
    for (int e = 0; e < kExperts; ++e) {
      EXPECT_EQ(segments[static_cast<size_t>(e)], e * kCapacity);
      const auto wanted = std::count(experts.begin(), experts.end(), e);
      EXPECT_EQ(segments[static_cast<size_t>(kExperts + e)], std::min<int64_t>(wanted, kCapacity));
    }
  }
}

// DeepSeek-V3's equation: α Σ f_i P_i with f_i = E/(K·T) · (times chosen), P_i the mean of s_i / Σ s, sequence by
// sequence.
TEST(SequenceBalance, EqualsItsEquation) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  constexpr int kLength = 5, kSequences = 3, kExperts = 6, kTopK = 2;
  std::vector<float> logits(kLength * kSequences * kExperts);
  for (float& x : logits) x = normal(random);
  std::vector<int32_t> experts;
  for (int t = 0; t < kLength * kSequences; ++t) {
    const auto first = static_cast<int32_t>(random() % (kExperts - 1));
    experts.insert(experts.end(), {first, first + 1});
  }
  double loss = 0;
  for (int b = 0; b < kSequences; ++b) {
    for (int i = 0; i < kExperts; ++i) {
      double chosen = 0, probability = 0;
      for (int s = 0; s < kLength; ++s) {
        const int t = s * kSequences + b;
        for (int j = 0; j < kTopK; ++j) chosen += experts[static_cast<size_t>(t * kTopK + j)] == i ? 1 : 0;
        double all = 0, mine = 0;
        for (int e = 0; e < kExperts; ++e) {
          const double score = 1 / (1 + std::exp(-static_cast<double>(logits[static_cast<size_t>(t * kExperts + e)])));
          all += score;
          if (e == i) mine = score;
        }
        probability += mine / all / kLength;
      }
      loss += chosen * kExperts / (kTopK * kLength) * probability / kSequences;
    }
  }
  std::vector<float> counts(kSequences * kExperts);
  ASSERT_TRUE(Bench()
                  .in(experts, Shape{kLength * kSequences, kTopK})
                  .out(counts, Shape{kSequences, kExperts})
                  .run(kExpertCounts, CountAttrs{.experts = kExperts, .sets = kSequences}));
  std::vector<float> out(2);
  ASSERT_TRUE(Bench()
                  .in(logits, Shape{kLength, kSequences, kExperts})
                  .in(counts, Shape{kSequences, kExperts})
                  .out(out, Shape{2})
                  .run(kRouterLoss, MoeLossAttrs{.aux = 0.01, .sigmoid = true}));
  EXPECT_NEAR(out[0], 0.01 * kLength * kSequences * loss, 1e-6);
  EXPECT_EQ(out[1], 0.0F);
}

// A transformer in plain loops: one sequence, double precision, no attention to speed.
class Plain {
 public:
  using Matrix = std::vector<std::vector<double>>;  // [position][feature]
  using Weights = std::map<std::string, std::vector<float>>;

  Plain(const ModelShape& model, const Weights& weights) : m_(model), w_(weights) {}

  Matrix embed(const std::vector<int32_t>& tokens) const {
    Matrix x;
    for (int32_t t : tokens) {
      x.emplace_back(static_cast<size_t>(m_.hidden_size), 0.0);
      for (size_t i = 0; t >= 0 && i < x.back().size(); ++i)
        x.back()[i] = static_cast<double>(w_.at("embedding.weight")[static_cast<size_t>(t) * x.back().size() + i]);
    }
    return x;
  }
  Matrix norm(const std::string& path, Matrix x) const {
    const auto& w = w_.at(path + ".weight");
    for (auto& row : x) {
      double squares = 0;
      for (double v : row) squares += v * v;
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(row.size()) + m_.norm_eps);
      for (size_t i = 0; i < row.size(); ++i) row[i] *= inverse * static_cast<double>(w[i]);
    }
    return x;
  }
  Matrix linear(const std::string& path, const Matrix& x) const {
    const auto& w = w_.at(path + ".weight");
    Matrix y;
    for (const auto& row : x) {
      y.emplace_back(w.size() / row.size(), 0.0);
      for (size_t o = 0; o < y.back().size(); ++o)
        for (size_t i = 0; i < row.size(); ++i) y.back()[o] += row[i] * static_cast<double>(w[o * row.size() + i]);
    }
    return y;
  }
  static Matrix sum(Matrix a, const Matrix& b) {
    for (size_t r = 0; r < a.size(); ++r)
      for (size_t i = 0; i < a[r].size(); ++i) a[r][i] += b[r][i];
    return a;
  }
  Matrix layer(const std::string& path, Matrix x) const {
    x = sum(x, linear(path + ".attn.proj", attend(linear(path + ".attn.qkv", norm(path + ".attn.norm", x)))));
    Matrix up = linear(path + ".mlp.fc1", norm(path + ".mlp.norm", x));
    for (auto& row : up) {
      const size_t f = row.size() / 2;
      for (size_t i = 0; i < f; ++i) row[i] = row[i] / (1 + std::exp(-row[i])) * row[f + i];
      row.resize(f);
    }
    return sum(x, linear(path + ".mlp.fc2", up));
  }
  // Summed over labels that are tokens.
  double loss(const Matrix& normed, const std::vector<int32_t>& labels) const {
    const Matrix logits = linear("lm_head", normed);
    double total = 0;
    for (size_t p = 0; p < labels.size(); ++p) {
      if (labels[p] < 0) continue;
      double all = 0;
      for (double v : logits[p]) all += std::exp(v);
      total += std::log(all) - logits[p][static_cast<size_t>(labels[p])];
    }
    return total;
  }

 private:
  Matrix attend(Matrix qkv) const {
    const auto d = static_cast<size_t>(m_.head_dim);
    const auto heads = static_cast<size_t>(m_.num_attention_heads), keys = static_cast<size_t>(m_.num_query_groups);
    for (size_t p = 0; p < qkv.size(); ++p)
      for (size_t head = 0; head < heads + keys; ++head)
        for (size_t i = 0; i < d / 2; ++i) {
          const double angle =
              static_cast<double>(p) * std::pow(m_.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          double& low = qkv[p][head * d + i];
          double& high = qkv[p][head * d + i + d / 2];
          const double turned = low * std::cos(angle) - high * std::sin(angle);
          high = high * std::cos(angle) + low * std::sin(angle);
          low = turned;
        }
    Matrix out(qkv.size(), std::vector<double>(heads * d, 0.0));
    for (size_t head = 0; head < heads; ++head) {
      const size_t key = (heads + head / (heads / keys)) * d;
      for (size_t p = 0; p < qkv.size(); ++p) {
        std::vector<double> weights;
        double all = 0;
        for (size_t j = 0; j <= p; ++j) {
          double score = 0;
          for (size_t i = 0; i < d; ++i) score += qkv[p][head * d + i] * qkv[j][key + i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          all += weights.back();
        }
        for (size_t j = 0; j <= p; ++j)
          for (size_t i = 0; i < d; ++i) out[p][head * d + i] += weights[j] / all * qkv[j][key + keys * d + i];
      }
    }
    return out;
  }

  const ModelShape& m_;
  const Weights& w_;
};

constexpr int kLength = 6;
const std::vector<int32_t> kTokens{3, 1, 4, 1, 5, 9, 2};

// Main loss and that of each depth, as DeepSeek-V3's report defines them.
struct Losses {
  double main = 0;
  std::vector<double> depths;
};

Losses scalar_losses(const ModelShape& m, const Plain::Weights& weights) {
  const Plain plain(m, weights);
  const std::vector<int32_t> inputs(kTokens.begin(), kTokens.end() - 1), labels(kTokens.begin() + 1, kTokens.end());
  Plain::Matrix x = plain.embed(inputs);
  for (int64_t i = 0; i < m.num_layers; ++i) x = plain.layer("layers." + std::to_string(i), x);
  Losses losses{plain.loss(plain.norm("final_norm", x), labels), {}};
  for (int64_t depth = 0; depth < m.num_mtp_layers; ++depth) {
    // Position p sees token p + depth + 1 and predicts token p + depth + 2; past the end there is neither.
    const auto ahead = [&](int64_t by) {
      std::vector<int32_t> moved;
      for (int64_t p = 0; p < kLength; ++p)
        moved.push_back(p + by < static_cast<int64_t>(kTokens.size()) ? kTokens[static_cast<size_t>(p + by)] : -1);
      return moved;
    };
    const std::string path = "mtp." + std::to_string(depth);
    const auto embedded = plain.norm(path + ".embedding_norm", plain.embed(ahead(depth + 1)));
    x = plain.layer(path + ".layer",
                    Plain::sum(plain.linear(path + ".proj_embedding", embedded),
                               plain.linear(path + ".proj_hidden", plain.norm(path + ".hidden_norm", x))));
    losses.depths.push_back(plain.loss(plain.norm(path + ".final_norm", x), ahead(depth + 2)));
  }
  return losses;
}

TEST(MultiTokenPrediction, EqualsItsScalarDefinition) {
  Config config;
  config.model.num_layers = config.model.make_vocab_size_divisible_by = 1;
  config.model.hidden_size = 16;
  config.model.ffn_hidden_size = 12;
  config.model.vocab_size = 11;
  config.model.mtp_num_layers = 2;
  config.train.seq_length = kLength;
  config.train.micro_batch_size = config.train.global_batch_size = 1;
  config.optimizer.init_method_std = 0.3;
  const auto layout = resolve(config);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  const Program& program = programs->programs[0];
  Plain::Weights weights, gradients;
  std::map<std::string, double> sums;
  const Status ran = run_ranks(
      1,
      [&](World& world) -> Status {
        MB_ASSIGN(auto rank, CpuRank::create(program, programs->plans[0], layout->mesh, world, 3));
        const auto copy = [&](TensorId id) {
          const auto* data = reinterpret_cast<const float*>(rank->data(id));
          return std::vector<float>(data, data + program.tensor(id).shape.elements());
        };
        for (size_t i = 0; i < program.tensors.size(); ++i)
          if (program.tensors[i].main_grad != kNoTensor)
            weights[program.tensors[i].path] = copy(static_cast<TensorId>(i));
        StepInput input;
        input.record = {0.0F, 1.0F, 1.0F, 0.0F};
        input.batch = [](int, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
          std::copy_n(kTokens.begin(), kLength, tokens.begin());
          std::copy_n(kTokens.begin() + 1, kLength, labels.begin());
          return {};
        };
        MB_ASSIGN(const StepOutput step, rank->step(input));
        sums["main"] = step.loss_sum;
        for (TensorId id : program.ports.step_sums)
          sums[program.tensor(id).path] = *reinterpret_cast<const double*>(rank->data(id));
        for (const Tensor& t : program.tensors)
          if (t.main_grad != kNoTensor) gradients[t.path] = copy(t.main_grad);
        return {};
      },
      LocalOptions{});
  ASSERT_TRUE(ran.has_value()) << format(ran.error());

  const Losses losses = scalar_losses(layout->model, weights);
  EXPECT_NEAR(sums.at("main"), losses.main, 1e-5 * losses.main);
  ASSERT_EQ(losses.depths.size(), 2U);
  for (size_t depth = 0; depth < 2; ++depth)
    EXPECT_NEAR(sums.at("mtp." + std::to_string(depth) + ".loss_sum"), losses.depths[depth], 1e-5 * losses.main);

  // Each depth weighs mtp_loss_scale over their number.
  const auto objective = [&] {
    const Losses l = scalar_losses(layout->model, weights);
    return l.main + layout->model.mtp_loss_scale * (l.depths[0] + l.depths[1]) / 2;
  };
  for (auto& [path, values] : weights) {
    for (const size_t at : {size_t{0}, values.size() / 2, values.size() - 1}) {
      const float held = values[at];
      constexpr double kStep = 1e-3;
      values[at] = held + static_cast<float>(kStep);
      const double up = objective(), above = static_cast<double>(values[at]);
      values[at] = held - static_cast<float>(kStep);
      const double slope = (up - objective()) / (above - static_cast<double>(values[at]));
      values[at] = held;
      EXPECT_NEAR(gradients.at(path)[at], slope, 2e-4 * (1 + std::abs(slope))) << path << " " << at;
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
