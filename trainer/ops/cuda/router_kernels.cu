// Router kernels: a warp a token, scores in double in shared memory.
#include <algorithm>

#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr double kTiny = 1e-20;  // keeps a sum of sigmoids from zero

__device__ __forceinline__ double warp_sum_double(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ __forceinline__ double warp_max_double(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// A row of values in shared memory, worked on by one warp.
struct WarpRow {
  double* values;
  int count;

  template <typename Call>
  __device__ void each(Call&& call) {
    for (int e = threadIdx.x; e < count; e += 32) call(e, values[e]);
    __syncwarp();
  }
  __device__ double sum() {
    double total = 0.0;
    each([&](int, double& v) { total += v; });
    return warp_sum_double(total);
  }
  __device__ double max() {
    double top = -INFINITY;
    each([&](int, double& v) { top = fmax(top, v); });
    return warp_max_double(top);
  }
  __device__ void softmax() {
    const double top = max();
    each([&](int, double& v) { v = exp(v - top); });
    const double total = sum();
    each([&](int, double& v) { v /= total; });
  }
  __device__ void sigmoid() {
    each([&](int, double& v) { v = 1.0 / (1.0 + exp(-v)); });
  }
  // Index of the greatest value, of equal ones the lowest; NaN marks what is out of the contest.
  __device__ int greatest() {
    double top = -INFINITY;
    int at = count;
    each([&](int e, double& v) {
      if (!isnan(v) && (at == count || v > top)) top = v, at = e;
    });
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const double other = __shfl_xor_sync(0xffffffffu, top, offset);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
      if (other_at < count && (at == count || other > top || (other == top && other_at < at)))
        top = other, at = other_at;
    }
    return at;
  }
};

__device__ void load_row(WarpRow row, const float* logits, int64_t token) {
  row.each([&](int e, double& v) { v = static_cast<double>(logits[token * row.count + e]); });
}

// What kernels read of RouterAttrs, which has members that live on the host.
struct Rule {
  int top_k, groups, top_k_groups;
  bool sigmoid, top_k_first, normalize, biased, balanced;
  double scaling;

  explicit Rule(const RouterAttrs& a)
      : top_k(a.top_k),
        groups(static_cast<int>(a.groups)),
        top_k_groups(static_cast<int>(a.top_k_groups)),
        sigmoid(a.sigmoid),
        top_k_first(a.top_k_first),
        normalize(a.normalize),
        biased(a.biased),
        balanced(a.balanced),
        scaling(a.scaling) {}
};

// Experts outside the best groups can no longer win. A lane walks a group; `scores` has room for the groups.
__device__ void limit_groups(WarpRow row, const Rule& a, double* scores) {
  const int size = row.count / a.groups;
  for (int g = threadIdx.x; g < a.groups; g += 32) {
    double first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const double v = row.values[e];
      if (v > first)
        second = first, first = v;
      else if (v > second)
        second = v;
    }
    scores[g] = first + second;
  }
  __syncwarp();
  WarpRow groups{scores, a.groups};
  // Winners leave the contest; what remains after top_k_groups rounds has lost.
  for (int round = 0; round < a.top_k_groups; ++round) {
    const int best = groups.greatest();
    if (threadIdx.x == 0) scores[best] = NAN;
    __syncwarp();
  }
  row.each([&](int e, double& v) {
    if (!isnan(scores[e / size])) v = -INFINITY;
  });
}

__global__ void router_select_kernel(Rule a, RouterShape s, TokenPlaces places, const float* logits, const float* bias,
                                     const int32_t* sequences, int32_t* experts) {
  extern __shared__ double memory[];
  const int64_t token = blockIdx.x;
  if (sequences != nullptr && sequences[token] < 0) {
    for (int j = threadIdx.x; j < a.top_k; j += 32) experts[token * a.top_k + j] = -1;
    return;
  }
  if (a.balanced) {
    int64_t place = places.first + token;
    if (places.at != nullptr) place = int64_t{places.at[place / places.batch]} * places.batch + place % places.batch;
    for (int j = threadIdx.x; j < a.top_k; j += 32)
      experts[token * a.top_k + j] = static_cast<int32_t>((place * a.top_k + j) % s.experts);
    return;
  }
  WarpRow row{memory, static_cast<int>(s.experts)};
  load_row(row, logits, token);
  if (a.sigmoid)
    row.sigmoid();
  else if (a.groups > 1 || a.biased)
    row.softmax();
  if (a.biased) row.each([&](int e, double& v) { v += static_cast<double>(bias[e]); });
  if (a.groups > 1) limit_groups(row, a, memory + s.experts);
  for (int j = 0; j < a.top_k; ++j) {
    const int best = row.greatest();
    if (threadIdx.x == 0) {
      experts[token * a.top_k + j] = best;
      row.values[best] = NAN;  // no comparison finds it again
    }
    __syncwarp();
  }
}

// Scores of all experts (or raw logits when the kept ones are chosen first) into the row; the sum that normalizes.
__device__ double kept_sum(WarpRow row, const Rule& a, const int32_t* chosen) {
  if (!a.normalize || a.top_k_first) return 1.0;
  double sum = kTiny;
  for (int j = 0; j < a.top_k; ++j) sum += row.values[chosen[j]];
  return sum;
}

// Weight of the j-th kept expert before scaling; `top` and `total` are of the kept logits' softmax.
struct Kept {
  double sum = 1.0, top = 0.0, total = 1.0;
  __device__ double weight(const WarpRow& row, const Rule& a, int expert) const {
    return a.top_k_first ? exp(row.values[expert] - top) / total : row.values[expert] / sum;
  }
};

__device__ Kept kept_of(WarpRow row, const Rule& a, const float* logits, int64_t token, const int32_t* chosen) {
  Kept kept;
  load_row(row, logits, token);
  if (a.top_k_first) {
    kept.top = -INFINITY, kept.total = 0.0;
    for (int j = 0; j < a.top_k; ++j) kept.top = fmax(kept.top, row.values[chosen[j]]);
    for (int j = 0; j < a.top_k; ++j) kept.total += exp(row.values[chosen[j]] - kept.top);
    return kept;
  }
  if (a.sigmoid)
    row.sigmoid();
  else
    row.softmax();
  kept.sum = kept_sum(row, a, chosen);
  return kept;
}

__global__ void router_weights_kernel(Rule a, RouterShape s, const float* logits, const int32_t* experts,
                                      float* weights) {
  extern __shared__ double memory[];
  const int64_t token = blockIdx.x;
  WarpRow row{memory, static_cast<int>(s.experts)};
  const int32_t* chosen = experts + token * a.top_k;
  if (chosen[0] < 0) {  // padding
    for (int j = threadIdx.x; j < a.top_k; j += 32) weights[token * a.top_k + j] = 0.0f;
    return;
  }
  const Kept kept = kept_of(row, a, logits, token, chosen);
  for (int j = threadIdx.x; j < a.top_k; j += 32)
    weights[token * a.top_k + j] = static_cast<float>(a.scaling * kept.weight(row, a, chosen[j]));
}

__global__ void router_weights_grad_kernel(Rule a, RouterShape s, const float* dweights, const float* logits,
                                           const int32_t* experts, float* dlogits) {
  extern __shared__ double memory[];
  const int64_t token = blockIdx.x;
  WarpRow row{memory, static_cast<int>(s.experts)}, d{memory + s.experts, static_cast<int>(s.experts)};
  const int32_t* chosen = experts + token * a.top_k;
  if (chosen[0] < 0) {
    for (int e = threadIdx.x; e < row.count; e += 32) dlogits[token * s.experts + e] = 0.0f;
    return;
  }
  const Kept kept = kept_of(row, a, logits, token, chosen);
  d.each([](int, double& v) { v = 0.0; });
  double mean = 0.0;
  if (a.top_k_first || a.normalize)
    for (int j = 0; j < a.top_k; ++j)
      mean += a.scaling * static_cast<double>(dweights[token * a.top_k + j]) * kept.weight(row, a, chosen[j]);
  if (threadIdx.x == 0)
    for (int j = 0; j < a.top_k; ++j) {
      const double g = a.scaling * static_cast<double>(dweights[token * a.top_k + j]) - mean;
      d.values[chosen[j]] += a.top_k_first ? kept.weight(row, a, chosen[j]) * g : g / kept.sum;
    }
  __syncwarp();
  double all = 0.0;
  if (!a.top_k_first && !a.sigmoid) {
    d.each([&](int e, double& v) { all += v * row.values[e]; });
    all = warp_sum_double(all);
  }
  d.each([&](int e, double& v) {
    const double score = row.values[e];
    const double out = a.top_k_first ? v : a.sigmoid ? v * score * (1.0 - score) : score * (v - all);
    dlogits[token * s.experts + e] = static_cast<float>(out);
  });
}

// Counts of chosen pairs by (token set, expert): a block an expert. Sets are the tokens' sequences, or token mod sets.
__global__ void count_kernel(const int32_t* experts, const int32_t* sequences, int64_t tokens, int64_t top_k,
                             int64_t sets, int64_t count, float* counts) {
  __shared__ int total;
  const int64_t expert = blockIdx.x, set = blockIdx.y;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int mine = 0;
  if (sequences != nullptr && sets > 1)
    for (int64_t i = threadIdx.x; i < tokens * top_k; i += blockDim.x)
      mine += experts[i] == expert && sequences[i / top_k] == set ? 1 : 0;
  else
    for (int64_t i = threadIdx.x; i < tokens / sets * top_k; i += blockDim.x)
      mine += experts[(i / top_k * sets + set) * top_k + i % top_k] == expert ? 1 : 0;
  atomicAdd(&total, mine);
  __syncthreads();
  if (threadIdx.x == 0) counts[set * count + expert] = static_cast<float>(total);
}

// Shares of a set's pairs from their counts: a warp a set.
__global__ void share_kernel(const float* counts, int64_t experts, double* shares) {
  const float* of = counts + blockIdx.x * experts;
  double all = 0.0;
  for (int64_t e = threadIdx.x; e < experts; e += 32) all += static_cast<double>(of[e]);
  all = fmax(1.0, warp_sum_double(all));  // a set may be empty
  for (int64_t e = threadIdx.x; e < experts; e += 32)
    shares[blockIdx.x * experts + e] = static_cast<double>(of[e]) / all;
}

struct RouterLossArgs {
  MoeLossAttrs a;
  RouterShape s;
  int64_t sets;
  const float* logits;
  const double* shares;
  const int32_t* sequences;

  // The set that a token counts in, -1: padding.
  __device__ int64_t set_of(int64_t token) const {
    if (sequences == nullptr) return token % sets;
    return sequences[token] < 0 || sets > 1 ? sequences[token] : 0;
  }
};

// Scores of a token that sum to one, and what the backward needs.
__device__ void balance_scores(WarpRow row, const MoeLossAttrs& a, double& sum) {
  sum = 1.0;
  if (!a.sigmoid) {
    row.softmax();
    return;
  }
  row.sigmoid();
  sum = row.sum() + kTiny;
  row.each([&](int, double& v) { v /= sum; });
}

__global__ void router_loss_kernel(RouterLossArgs r, double* balance, double* z) {
  extern __shared__ double memory[];
  const int64_t token = blockIdx.x;
  const int64_t set = r.set_of(token);
  if (set < 0) {
    if (threadIdx.x == 0) balance[token] = z[token] = 0.0;
    return;
  }
  WarpRow row{memory, static_cast<int>(r.s.experts)};
  load_row(row, r.logits, token);
  const double top = row.max();
  double lse = 0.0;
  row.each([&](int, double& v) { lse += exp(v - top); });
  lse = top + log(warp_sum_double(lse));
  double sum;
  balance_scores(row, r.a, sum);
  const double* f = r.shares + set * r.s.experts;
  double dot = 0.0;
  row.each([&](int e, double& v) { dot += f[e] * v; });
  dot = warp_sum_double(dot);
  if (threadIdx.x == 0) balance[token] = dot, z[token] = lse * lse;
}

__global__ void router_loss_sum_kernel(RouterLossArgs r, const double* balance, const double* z, float* losses) {
  __shared__ double sums[2][256];
  double total[2] = {};
  for (int64_t t = threadIdx.x; t < r.s.tokens; t += 256) total[0] += balance[t], total[1] += z[t];
  sums[0][threadIdx.x] = total[0], sums[1][threadIdx.x] = total[1];
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      for (auto& s : sums) s[threadIdx.x] += s[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  // The mean over a set's tokens, times tokens and experts, then the mean over sets: sets cancel out.
  losses[0] = static_cast<float>(r.a.aux * static_cast<double>(r.s.experts) * sums[0][0]);
  losses[1] = static_cast<float>(r.a.z * sums[1][0]);
}

__global__ void router_loss_grad_kernel(RouterLossArgs r, const float* given, float* dlogits) {
  extern __shared__ double memory[];
  const int64_t token = blockIdx.x;
  const int count = static_cast<int>(r.s.experts);
  const int64_t set = r.set_of(token);
  if (set < 0) {
    for (int e = threadIdx.x; e < count; e += 32) dlogits[token * count + e] = 0.0f;
    return;
  }
  WarpRow row{memory, count}, probabilities{memory + count, count};
  load_row(row, r.logits, token);
  load_row(probabilities, r.logits, token);
  const double top = row.max();
  double lse = 0.0;
  row.each([&](int, double& v) { lse += exp(v - top); });
  lse = top + log(warp_sum_double(lse));
  probabilities.softmax();
  double sum;
  balance_scores(row, r.a, sum);
  const double* f = r.shares + set * r.s.experts;
  double mean = 0.0;
  row.each([&](int e, double& v) { mean += f[e] * v; });
  mean = warp_sum_double(mean);
  const double by_balance = r.a.gradient * (given != nullptr ? static_cast<double>(given[0]) : 1.0);
  const double by_z = r.a.gradient * (given != nullptr ? static_cast<double>(given[1]) : 1.0);
  const double factor = by_balance * r.a.aux * static_cast<double>(r.s.experts);
  row.each([&](int e, double& p) {
    const double slope = r.a.sigmoid ? 1.0 - p * sum : 1.0;
    dlogits[token * count + e] =
        static_cast<float>(factor * p * slope * (f[e] - mean) + by_z * r.a.z * 2.0 * lse * probabilities.values[e]);
  });
}

__global__ void expert_load_kernel(const float* counts, int64_t sets, int64_t experts, bool accumulate, float* load) {
  const int64_t e = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (e >= experts) return;
  float sum = accumulate ? load[e] : 0.0f;
  for (int64_t set = 0; set < sets; ++set) sum += counts[set * experts + e];
  load[e] = sum;
}

__global__ void loss_sum_kernel(const float* losses, int64_t count, double scale, bool accumulate, double* total) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    total[i] = (accumulate ? total[i] : 0.0) + scale * static_cast<double>(losses[i]);
}

__global__ void expert_bias_kernel(const float* load, int64_t experts, double rate, float* bias) {
  double mean = 0.0;
  for (int64_t e = 0; e < experts; ++e) mean += static_cast<double>(load[e]) / static_cast<double>(experts);
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
    const double short_of = mean - static_cast<double>(load[e]);
    const double sign = short_of > 0.0 ? 1.0 : short_of < 0.0 ? -1.0 : 0.0;
    bias[e] = static_cast<float>(static_cast<double>(bias[e]) + rate * sign);
  }
}

Status fits(RouterShape s) {
  if (s.experts >= 1 && s.experts <= 4096) return {};
  return fail(ErrorCode::kUnavailable, "CUDA router: " + std::to_string(s.experts) + " experts; at most 4096");
}
unsigned tokens_of(RouterShape s) {
  return static_cast<unsigned>(s.tokens);
}
size_t shared_for(int64_t doubles) {
  return static_cast<size_t>(doubles) * sizeof(double);
}
// Above 48 KiB a kernel must be told.
template <typename Kernel>
Status allow(Kernel kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return {};
  return ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "router of many experts");
}

Result<RouterLossArgs> prepare(const MoeLossAttrs& attrs, RouterShape s, int64_t sets, const float* logits,
                               const float* counts, const int32_t* sequences, void* workspace, cudaStream_t stream) {
  auto* shares = static_cast<double*>(workspace);
  share_kernel<<<static_cast<unsigned>(sets), 32, 0, stream>>>(counts, s.experts, shares);
  MB_TRY(launched("router_loss_shares"));
  return RouterLossArgs{attrs, s, sets, logits, shares, sequences};
}

}  // namespace

Status router_select(const RouterAttrs& attrs, RouterShape s, const float* logits, const float* bias,
                     const int32_t* sequences, int32_t* experts, const Launch& launch, const TokenPlaces& places) {
  MB_TRY(fits(s));
  const size_t bytes = shared_for(s.experts + attrs.groups);
  MB_TRY(allow(router_select_kernel, bytes));
  router_select_kernel<<<tokens_of(s), 32, bytes, launch.stream>>>(Rule(attrs), s, places, logits, bias, sequences,
                                                                   experts);
  return launched("router_select");
}

Status router_weights(const RouterAttrs& attrs, RouterShape s, const float* logits, const int32_t* experts,
                      float* weights, const Launch& launch) {
  MB_TRY(fits(s));
  router_weights_kernel<<<tokens_of(s), 32, shared_for(s.experts), launch.stream>>>(Rule(attrs), s, logits, experts,
                                                                                    weights);
  return launched("router_weights");
}

Status router_weights_grad(const RouterAttrs& attrs, RouterShape s, const float* dweights, const float* logits,
                           const int32_t* experts, float* dlogits, const Launch& launch) {
  MB_TRY(fits(s));
  MB_TRY(allow(router_weights_grad_kernel, shared_for(2 * s.experts)));
  router_weights_grad_kernel<<<tokens_of(s), 32, shared_for(2 * s.experts), launch.stream>>>(Rule(attrs), s, dweights,
                                                                                             logits, experts, dlogits);
  return launched("router_weights_grad");
}

int64_t router_loss_workspace(RouterShape s, int64_t sets) {
  return (sets * s.experts + 2 * s.tokens) * 8;
}

Status router_loss(const MoeLossAttrs& attrs, RouterShape s, int64_t sets, const float* logits, const float* counts,
                   const int32_t* sequences, float* losses, void* workspace, const Launch& launch) {
  MB_TRY(fits(s));
  MB_ASSIGN(const RouterLossArgs r, prepare(attrs, s, sets, logits, counts, sequences, workspace, launch.stream));
  double* balance = static_cast<double*>(workspace) + r.sets * s.experts;
  double* z = balance + s.tokens;
  router_loss_kernel<<<tokens_of(s), 32, shared_for(s.experts), launch.stream>>>(r, balance, z);
  router_loss_sum_kernel<<<1, 256, 0, launch.stream>>>(r, balance, z, losses);
  return launched("router_loss");
}

Status router_loss_grad(const MoeLossAttrs& attrs, RouterShape s, int64_t sets, const float* logits,
                        const float* counts, const int32_t* sequences, const float* given, float* dlogits,
                        void* workspace, const Launch& launch) {
  MB_TRY(fits(s));
  MB_ASSIGN(const RouterLossArgs r, prepare(attrs, s, sets, logits, counts, sequences, workspace, launch.stream));
  MB_TRY(allow(router_loss_grad_kernel, shared_for(2 * s.experts)));
  router_loss_grad_kernel<<<tokens_of(s), 32, shared_for(2 * s.experts), launch.stream>>>(r, given, dlogits);
  return launched("router_loss_grad");
}

Status expert_counts(const CountAttrs& attrs, int64_t tokens, int64_t top_k, const int32_t* experts,
                     const int32_t* sequences, float* counts, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(attrs.experts), static_cast<unsigned>(attrs.sets));
  count_kernel<<<grid, 256, 0, launch.stream>>>(experts, sequences, tokens, top_k, attrs.sets, attrs.experts, counts);
  return launched("expert_counts");
}

Status expert_load(const float* counts, int64_t sets, int64_t experts, bool accumulate, float* load,
                   const Launch& launch) {
  expert_load_kernel<<<static_cast<unsigned>((experts + 255) / 256), 256, 0, launch.stream>>>(counts, sets, experts,
                                                                                              accumulate, load);
  return launched("expert_load");
}

Status loss_sum(const LossSumAttrs& attrs, const float* losses, int64_t count, double* total, const Launch& launch) {
  loss_sum_kernel<<<1, 32, 0, launch.stream>>>(losses, count, attrs.scale, attrs.accumulate, total);
  return launched("loss_sum");
}

Status expert_bias(const float* load, int64_t experts, double rate, float* bias, const Launch& launch) {
  expert_bias_kernel<<<1, 256, 0, launch.stream>>>(load, experts, rate, bias);
  return launched("expert_bias");
}

}  // namespace mbb::trainer::cuda
