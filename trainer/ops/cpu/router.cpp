// The router on the CPU: selection, weights, balancing losses, load and selection bias.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

using Row = std::vector<double>;

Row row_of(const float* logits, int64_t experts, int64_t row) {
  return Row(logits + row * experts, logits + (row + 1) * experts);
}

Row softmax(Row x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - top);
  for (double& v : x) v /= sum;
  return x;
}

Row sigmoid(Row x) {
  for (double& v : x) v = 1.0 / (1.0 + std::exp(-v));
  return x;
}

// Indices of the `count` greatest values, greatest first; of equal ones the lower index.
std::vector<size_t> greatest(const Row& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

// Experts outside the best groups can no longer win.
void limit_groups(Row& choice, const RouterAttrs& a) {
  if (a.groups == 1) return;
  const size_t size = choice.size() / static_cast<size_t>(a.groups);
  Row group_scores;
  for (size_t g = 0; g < choice.size(); g += size) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g);
    const Row group(begin, begin + static_cast<std::ptrdiff_t>(size));
    const auto best = greatest(group, 2);
    group_scores.push_back(group[best[0]] + group[best[1]]);
  }
  std::vector<bool> wins(group_scores.size(), false);
  for (size_t g : greatest(group_scores, static_cast<size_t>(a.top_k_groups))) wins[g] = true;
  for (size_t e = 0; e < choice.size(); ++e)
    if (!wins[e / size]) choice[e] = -INFINITY;
}

// The kept weights of a token before scaling, and what the backward needs of them.
struct Kept {
  Row scores;   // of all experts, or of the kept ones when those are chosen first
  Row weights;  // normalized where asked
  double sum = 1;
};

constexpr double kTiny = 1e-20;  // keeps a sum of sigmoids from zero

Kept kept_of(const RouterAttrs& a, const Row& logits, const int32_t* experts) {
  Kept kept;
  const auto k = static_cast<size_t>(a.top_k);
  if (a.top_k_first) {
    Row chosen;
    for (size_t j = 0; j < k; ++j) chosen.push_back(logits[static_cast<size_t>(experts[j])]);
    kept.scores = kept.weights = softmax(std::move(chosen));
    return kept;
  }
  kept.scores = a.sigmoid ? sigmoid(logits) : softmax(logits);
  for (size_t j = 0; j < k; ++j) kept.weights.push_back(kept.scores[static_cast<size_t>(experts[j])]);
  if (!a.normalize) return kept;
  kept.sum = std::accumulate(kept.weights.begin(), kept.weights.end(), kTiny);
  for (double& w : kept.weights) w /= kept.sum;
  return kept;
}

// The sequences of the `tokens` an op has, where it has an operand `at`; else null.
const int32_t* sequences_of(const CpuCall& call, size_t at, int64_t tokens) {
  if (call.in.size() <= at || call.in[at].tensor->dtype != DType::kI32) return nullptr;
  const bool part = call.in[at].elements() > tokens;
  return ints(call.in[at]) + (part ? call.rank.coordinates.tp * tokens : 0);
}

// The set of sequences that token t counts in, -1: padding.
int64_t set_of(const int32_t* sequences, int64_t sets, int64_t t) {
  if (sequences == nullptr) return t % sets;
  return sequences[t] < 0 || sets > 1 ? sequences[t] : 0;
}

double product(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

Status cpu_router_select(const CpuCall& call) {
  const auto& a = call.attrs<RouterAttrs>();
  const ReadF32 logits(call.in[0]);
  auto* experts = static_cast<int32_t*>(call.out[0].data);
  const int64_t count = call.in[0].tensor->shape.cols();
  const int64_t tokens = call.in[0].tensor->shape.rows();
  const Shape& shape = call.in[0].tensor->shape;
  const int64_t sequences = shape.rank() == 3 ? shape[1] : 1;
  const int64_t before = a.sequence_sharded ? call.rank.coordinates.tp * tokens : 0;
  const int32_t* sequence = sequences_of(call, a.biased ? 2 : 1, tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    if (sequence != nullptr && sequence[t] < 0) {
      std::fill_n(experts + t * a.top_k, a.top_k, -1);
      continue;
    }
    if (a.balanced) {
      const int64_t row = before + t;
      const int64_t token = a.positions.at(row / sequences) * sequences + row % sequences;
      for (int64_t j = 0; j < a.top_k; ++j)
        experts[t * a.top_k + j] = static_cast<int32_t>((token * a.top_k + j) % count);
      continue;
    }
    const Row row = row_of(logits.data(), count, t);
    Row choice = a.sigmoid ? sigmoid(row) : a.groups > 1 || a.biased ? softmax(row) : row;
    if (a.biased) {
      const ReadF32 bias(call.in[1]);
      for (int64_t e = 0; e < count; ++e) choice[static_cast<size_t>(e)] += static_cast<double>(bias[e]);
    }
    limit_groups(choice, a);
    const auto best = greatest(choice, static_cast<size_t>(a.top_k));
    for (size_t j = 0; j < best.size(); ++j)
      experts[t * a.top_k + static_cast<int64_t>(j)] = static_cast<int32_t>(best[j]);
  }
  return {};
}

Status cpu_router_weights(const CpuCall& call) {
  const auto& a = call.attrs<RouterAttrs>();
  const ReadF32 logits(call.in[0]);
  const int32_t* experts = ints(call.in[1]);
  WriteF32 weights(call.out[0]);
  const int64_t count = call.in[0].tensor->shape.cols();
  for (int64_t t = 0; t < call.in[0].tensor->shape.rows(); ++t) {
    if (experts[t * a.top_k] < 0) {
      std::fill_n(weights.data() + t * a.top_k, a.top_k, 0.0F);
      continue;
    }
    const Kept kept = kept_of(a, row_of(logits.data(), count, t), experts + t * a.top_k);
    for (int64_t j = 0; j < a.top_k; ++j)
      weights[t * a.top_k + j] = static_cast<float>(a.scaling * kept.weights[static_cast<size_t>(j)]);
  }
  return {};
}

Status cpu_router_weights_grad(const CpuCall& call) {
  const auto& a = call.attrs<RouterAttrs>();
  const ReadF32 dweights(call.in[0]);
  const ReadF32 logits(call.in[1]);
  const int32_t* experts = ints(call.in[2]);
  WriteF32 dlogits(call.out[0]);
  const int64_t count = call.in[1].tensor->shape.cols();
  const auto k = static_cast<size_t>(a.top_k);
  for (int64_t t = 0; t < call.in[1].tensor->shape.rows(); ++t) {
    const int32_t* chosen = experts + t * a.top_k;
    if (chosen[0] < 0) {
      std::fill_n(dlogits.data() + t * count, count, 0.0F);
      continue;
    }
    const Kept kept = kept_of(a, row_of(logits.data(), count, t), chosen);
    Row d(k);
    for (size_t j = 0; j < k; ++j)
      d[j] = a.scaling * static_cast<double>(dweights[t * a.top_k + static_cast<int64_t>(j)]);
    Row out(static_cast<size_t>(count), 0.0);
    if (a.top_k_first) {
      const double mean = product(d, kept.weights);
      for (size_t j = 0; j < k; ++j) out[static_cast<size_t>(chosen[j])] += kept.weights[j] * (d[j] - mean);
    } else {
      const double mean = a.normalize ? product(d, kept.weights) : 0.0;
      Row dscores(static_cast<size_t>(count), 0.0);
      for (size_t j = 0; j < k; ++j) dscores[static_cast<size_t>(chosen[j])] += (d[j] - mean) / kept.sum;
      const double all = a.sigmoid ? 0.0 : product(dscores, kept.scores);
      for (size_t e = 0; e < out.size(); ++e) {
        const double s = kept.scores[e];
        out[e] = a.sigmoid ? dscores[e] * s * (1.0 - s) : s * (dscores[e] - all);
      }
    }
    for (int64_t e = 0; e < count; ++e) dlogits[t * count + e] = static_cast<float>(out[static_cast<size_t>(e)]);
  }
  return {};
}

Status cpu_router(const CpuCall& call) {
  MB_TRY(cpu_router_select({call.op, call.in, call.out.first(1), call.rank}));
  const std::array in{call.in[0], call.out[0]};
  return cpu_router_weights({call.op, in, call.out.subspan(1), call.rank});
}

namespace {

// Scores that sum to one.
Row balance_scores(const MoeLossAttrs& a, const Row& logits, double* sum = nullptr) {
  if (!a.sigmoid) return softmax(logits);
  Row s = sigmoid(logits);
  const double total = std::accumulate(s.begin(), s.end(), kTiny);
  for (double& v : s) v /= total;
  if (sum != nullptr) *sum = total;
  return s;
}

// Share of the pairs that each expert got, set by set.
std::vector<Row> shares(const CpuOperand& counts) {
  const ReadF32 of(counts);
  const int64_t experts = counts.tensor->shape[1];
  std::vector<Row> sets;
  for (int64_t set = 0; set < counts.tensor->shape[0]; ++set) {
    Row f = row_of(of.data(), experts, set);
    const double all = std::max(1.0, std::accumulate(f.begin(), f.end(), 0.0));  // a set may be empty
    for (double& share : f) share /= all;
    sets.push_back(std::move(f));
  }
  return sets;
}

double log_sum_exp(const Row& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

}  // namespace

Status cpu_router_loss(const CpuCall& call) {
  const auto& a = call.attrs<MoeLossAttrs>();
  const ReadF32 logits(call.in[0]);
  WriteF32 losses(call.out[0]);
  const int64_t tokens = call.in[0].tensor->shape.rows();
  const int64_t count = call.in[0].tensor->shape.cols();
  const std::vector<Row> f = shares(call.in[1]);
  const int32_t* sequences = sequences_of(call, 2, tokens);
  double balance = 0;
  double z = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t set = set_of(sequences, static_cast<int64_t>(f.size()), t);
    if (set < 0) continue;
    const Row row = row_of(logits.data(), count, t);
    balance += product(f[static_cast<size_t>(set)], balance_scores(a, row));
    z += std::pow(log_sum_exp(row), 2);
  }
  losses[0] = static_cast<float>(a.aux * static_cast<double>(count) * balance);
  losses[1] = static_cast<float>(a.z * z);
  return {};
}

Status cpu_router_loss_grad(const CpuCall& call) {
  const auto& a = call.attrs<MoeLossAttrs>();
  const ReadF32 logits(call.in[0]);
  double by_balance = a.gradient;
  double by_z = a.gradient;
  const int64_t tokens = call.in[0].tensor->shape.rows();
  const int32_t* sequences = sequences_of(call, 2, tokens);
  if (const size_t at = sequences == nullptr ? 2 : 3; call.in.size() > at) {
    const ReadF32 given(call.in[at]);
    by_balance *= static_cast<double>(given[0]);
    by_z *= static_cast<double>(given[1]);
  }
  WriteF32 dlogits(call.out[0]);
  const int64_t count = call.in[0].tensor->shape.cols();
  const double factor = by_balance * a.aux * static_cast<double>(count);
  const std::vector<Row> shares_of = shares(call.in[1]);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t set = set_of(sequences, static_cast<int64_t>(shares_of.size()), t);
    if (set < 0) {
      std::fill_n(dlogits.data() + t * count, count, 0.0F);
      continue;
    }
    const Row& f = shares_of[static_cast<size_t>(set)];
    const Row row = row_of(logits.data(), count, t);
    double sum = 1;
    const Row p = balance_scores(a, row, &sum);
    const Row probabilities = softmax(row);
    const double mean = product(f, p);
    const double lse = log_sum_exp(row);
    for (size_t e = 0; e < p.size(); ++e) {
      // Of p = σ/Σσ: dσ = (f − mean)/Σσ, dx = dσ·σ(1 − σ), and σ = p·Σσ.
      const double slope = a.sigmoid ? 1.0 - p[e] * sum : 1.0;
      const double balance = p[e] * slope * (f[e] - mean);
      dlogits[t * count + static_cast<int64_t>(e)] =
          static_cast<float>(factor * balance + by_z * a.z * 2.0 * lse * probabilities[e]);
    }
  }
  return {};
}

Status cpu_loss_sum(const CpuCall& call) {
  const auto& a = call.attrs<LossSumAttrs>();
  const ReadF32 losses(call.in[0]);
  double* total = doubles(call.out[0]);
  for (int64_t i = 0; i < call.in[0].elements(); ++i)
    total[i] = (a.accumulate ? total[i] : 0.0) + a.scale * static_cast<double>(losses[i]);
  return {};
}

Status cpu_expert_counts(const CpuCall& call) {
  const auto& a = call.attrs<CountAttrs>();
  const int32_t* experts = ints(call.in[0]);
  WriteF32 counts(call.out[0]);
  std::fill(counts.data(), counts.data() + call.out[0].elements(), 0.0F);
  const int64_t top_k = call.in[0].tensor->shape.cols();
  const int32_t* sequences = sequences_of(call, 1, call.in[0].tensor->shape[0]);
  for (int64_t i = 0; i < call.in[0].elements(); ++i) {
    const int64_t set = set_of(sequences, a.sets, i / top_k);
    if (experts[i] >= 0 && set >= 0) counts[set * a.experts + experts[i]] += 1.0F;
  }
  return {};
}

Status cpu_expert_load(const CpuCall& call) {
  const auto& a = call.attrs<CountAttrs>();
  const ReadF32 counts(call.in[0]);
  WriteF32 load(call.out[0], a.accumulate);
  if (!a.accumulate) std::fill(load.data(), load.data() + a.experts, 0.0F);
  for (int64_t i = 0; i < call.in[0].elements(); ++i) load[i % a.experts] += counts[i];
  return {};
}

Status cpu_expert_bias(const CpuCall& call) {
  const double rate = call.attrs<ExpertBiasAttrs>().rate;
  const ReadF32 load(call.in[0]);
  WriteF32 bias(call.out[0], true);
  const int64_t experts = call.in[0].elements();
  double mean = 0;
  for (int64_t e = 0; e < experts; ++e) mean += static_cast<double>(load[e]) / static_cast<double>(experts);
  for (int64_t e = 0; e < experts; ++e) {
    const double short_of = mean - static_cast<double>(load[e]);
    const double sign = short_of > 0 ? 1.0 : short_of < 0 ? -1.0 : 0.0;
    bias[e] = static_cast<float>(static_cast<double>(bias[e]) + rate * sign);
  }
  return {};
}

}  // namespace mbb::trainer
