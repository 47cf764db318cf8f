// Attention taken apart, on the CPU: products over whole matrices, masks and softmax between them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "trainer/ops/cpu/dropout.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// What a masked score is: far below every score, and finite.
constexpr float kMasked = -1e30F;

// Where heads lie in packed qkv, and elements in a matrix [b, heads, s, s].
struct Places {
  Places(const Shape& qkv, const AttentionAttrs& attrs)
      : a(attrs), s(qkv[0]), b(qkv[1]), width(qkv[2]), group(a.heads / a.kv_heads) {}
  int64_t row(int64_t position, int64_t sample) const { return (position * b + sample) * width; }
  int64_t q(int64_t i, int64_t n, int64_t head) const { return row(i, n) + head * a.head_dim; }
  int64_t k(int64_t j, int64_t n, int64_t head) const {
    return row(j, n) + (a.heads + head / group) * int64_t{a.head_dim};
  }
  int64_t v(int64_t j, int64_t n, int64_t head) const {
    return row(j, n) + (a.heads + a.kv_heads) * int64_t{a.head_dim} + head / group * a.value_dim();
  }
  int64_t out(int64_t i, int64_t n, int64_t head) const { return ((i * b + n) * a.heads + head) * a.value_dim(); }
  int64_t at(int64_t n, int64_t head, int64_t i, int64_t j) const { return ((n * a.heads + head) * s + i) * s + j; }

  // visit(sample, head, query, key) over all of the matrix.
  template <typename Visit>
  void each(Visit&& visit) const {
    for (int64_t n = 0; n < b; ++n)
      for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t i = 0; i < s; ++i)
          for (int64_t j = 0; j < s; ++j) visit(n, head, i, j);
  }

  const AttentionAttrs& a;
  int64_t s, b, width, group;
};

double dot(const float* x, const float* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

// Whether query i sees key j.
class Mask {
 public:
  Mask(const CpuCall& call, size_t starts) : a_(call.attrs<AttentionAttrs>()) {
    if (a_.packed) rows_ = rows_of({}, &call.in[starts], call.in[0].tensor->shape[3]);
  }
  bool sees(int64_t i, int64_t j) const {
    if (!rows_.empty() && rows_[static_cast<size_t>(i)].sequence != rows_[static_cast<size_t>(j)].sequence)
      return false;
    return !a_.causal || (j <= i && (a_.window == 0 || j > i - a_.window));
  }

 private:
  const AttentionAttrs& a_;
  std::vector<PackedRow> rows_;
};

// visit(row's first element, query) over the rows of [b, heads, s, s].
template <typename Visit>
void each_row(const Shape& matrix, Visit&& visit) {
  const int64_t s = matrix[3];
  for (int64_t r = 0; r < matrix.elements() / s; ++r) visit(r * s, r % s);
}

void softmax_row(const float* x, float* y, int64_t n) {
  const float top = *std::max_element(x, x + n);
  double sum = 0;
  std::vector<double> weights(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j)
    sum += weights[static_cast<size_t>(j)] = std::exp(static_cast<double>(x[j]) - static_cast<double>(top));
  for (int64_t j = 0; j < n; ++j) y[j] = static_cast<float>(weights[static_cast<size_t>(j)] / sum);
}

// dx = scale · P ∘ (dP − Σ dP∘P).
void softmax_grad(const CpuCall& call, double scale) {
  const ReadF32 dp(call.in[0]);
  const ReadF32 p(call.in[1]);
  WriteF32 dx(call.out[0]);
  const int64_t s = call.in[1].tensor->shape[3];
  each_row(call.in[1].tensor->shape, [&](int64_t row, int64_t) {
    const double sum = dot(dp.data() + row, p.data() + row, s);
    for (int64_t j = row; j < row + s; ++j)
      dx[j] = static_cast<float>(scale * static_cast<double>(p[j]) * (static_cast<double>(dp[j]) - sum));
  });
}

void store(const CpuOperand& operand, const std::vector<double>& values) {
  WriteF32 out(operand);
  for (size_t i = 0; i < values.size(); ++i) out[static_cast<int64_t>(i)] = static_cast<float>(values[i]);
}

class Dropped {
 public:
  Dropped(const CpuCall& call, size_t samples) : a_(call.attrs<AttentionAttrs>()), tp_(call.rank.coordinates.tp) {
    if (a_.dropout == 0) return;
    samples_ = ints(call.in[samples]);
    const ReadF32 record(call.in[samples + 1]);
    mask_.emplace(a_.dropout, a_.dropout_stream, record.data());
  }
  // As in the fused core: the same weights are dropped.
  double kept(int64_t sample, int64_t head, int64_t i, int64_t j, int64_t s) const {
    if (!mask_) return 1.0;
    return mask_->factor(samples_[sample], ((tp_ * int64_t{a_.heads} + head) * s + i) * s + j);
  }

 private:
  const AttentionAttrs& a_;
  int64_t tp_;
  const int32_t* samples_ = nullptr;
  std::optional<DropoutMask> mask_;
};

}  // namespace

Status cpu_attention_scores(const CpuCall& call) {
  const Places p(call.in[0].tensor->shape, call.attrs<AttentionAttrs>());
  const ReadF32 qkv(call.in[0]);
  WriteF32 scores(call.out[0]);
  p.each([&](int64_t n, int64_t head, int64_t i, int64_t j) {
    scores[p.at(n, head, i, j)] =
        static_cast<float>(dot(qkv.data() + p.q(i, n, head), qkv.data() + p.k(j, n, head), p.a.head_dim));
  });
  return {};
}

Status cpu_attention_scores_grad(const CpuCall& call) {
  const Places p(call.in[1].tensor->shape, call.attrs<AttentionAttrs>());
  const ReadF32 ds(call.in[0]);
  const ReadF32 qkv(call.in[1]);
  std::vector<double> grad(static_cast<size_t>(call.in[1].elements()), 0.0);
  p.each([&](int64_t n, int64_t head, int64_t i, int64_t j) {
    const double d = static_cast<double>(ds[p.at(n, head, i, j)]);
    for (int64_t c = 0; c < p.a.head_dim; ++c) {
      grad[static_cast<size_t>(p.q(i, n, head) + c)] += d * static_cast<double>(qkv[p.k(j, n, head) + c]);
      grad[static_cast<size_t>(p.k(j, n, head) + c)] += d * static_cast<double>(qkv[p.q(i, n, head) + c]);
    }
  });
  store(call.out[0], grad);
  return {};
}

Status cpu_scale_mask(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const Mask mask(call, 1);
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const int64_t s = call.in[0].tensor->shape[3];
  each_row(call.in[0].tensor->shape, [&](int64_t row, int64_t i) {
    for (int64_t j = 0; j < s; ++j) y[row + j] = mask.sees(i, j) ? a.scale * x[row + j] : kMasked;
  });
  return {};
}

Status cpu_scale_mask_grad(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const Mask mask(call, 1);
  const ReadF32 dy(call.in[0]);
  WriteF32 dx(call.out[0]);
  const int64_t s = call.in[0].tensor->shape[3];
  each_row(call.in[0].tensor->shape, [&](int64_t row, int64_t i) {
    for (int64_t j = 0; j < s; ++j) dx[row + j] = mask.sees(i, j) ? a.scale * dy[row + j] : 0.0F;
  });
  return {};
}

Status cpu_softmax(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const int64_t s = call.in[0].tensor->shape[3];
  each_row(call.in[0].tensor->shape, [&](int64_t row, int64_t) { softmax_row(x.data() + row, y.data() + row, s); });
  return {};
}

Status cpu_softmax_grad(const CpuCall& call) {
  softmax_grad(call, 1.0);
  return {};
}

Status cpu_masked_softmax(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const Mask mask(call, 1);
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const int64_t s = call.in[0].tensor->shape[3];
  std::vector<float> scaled(static_cast<size_t>(s));
  each_row(call.in[0].tensor->shape, [&](int64_t row, int64_t i) {
    for (int64_t j = 0; j < s; ++j) scaled[static_cast<size_t>(j)] = mask.sees(i, j) ? a.scale * x[row + j] : kMasked;
    softmax_row(scaled.data(), y.data() + row, s);
  });
  return {};
}

Status cpu_masked_softmax_grad(const CpuCall& call) {
  softmax_grad(call, static_cast<double>(call.attrs<AttentionAttrs>().scale));
  return {};
}

Status cpu_attention_context(const CpuCall& call) {
  const Places p(call.in[1].tensor->shape, call.attrs<AttentionAttrs>());
  const Dropped dropped(call, 2);
  const ReadF32 weights(call.in[0]);
  const ReadF32 qkv(call.in[1]);
  std::vector<double> sums(static_cast<size_t>(call.out[0].elements()), 0.0);
  p.each([&](int64_t n, int64_t head, int64_t i, int64_t j) {
    const double w = static_cast<double>(weights[p.at(n, head, i, j)]) * dropped.kept(n, head, i, j, p.s);
    for (int64_t c = 0; c < p.a.value_dim(); ++c)
      sums[static_cast<size_t>(p.out(i, n, head) + c)] += w * static_cast<double>(qkv[p.v(j, n, head) + c]);
  });
  store(call.out[0], sums);
  return {};
}

Status cpu_attention_context_grad(const CpuCall& call) {
  const Places p(call.in[2].tensor->shape, call.attrs<AttentionAttrs>());
  const Dropped dropped(call, 3);
  const ReadF32 dout(call.in[0]);
  const ReadF32 weights(call.in[1]);
  const ReadF32 qkv(call.in[2]);
  WriteF32 dweights(call.out[0]);
  std::vector<double> grad(static_cast<size_t>(call.in[2].elements()), 0.0);
  p.each([&](int64_t n, int64_t head, int64_t i, int64_t j) {
    const double kept = dropped.kept(n, head, i, j, p.s);
    const int64_t at = p.at(n, head, i, j);
    const double w = static_cast<double>(weights[at]) * kept;
    dweights[at] =
        static_cast<float>(kept * dot(dout.data() + p.out(i, n, head), qkv.data() + p.v(j, n, head), p.a.value_dim()));
    for (int64_t c = 0; c < p.a.value_dim(); ++c)
      grad[static_cast<size_t>(p.v(j, n, head) + c)] += w * static_cast<double>(dout[p.out(i, n, head) + c]);
  });
  store(call.out[1], grad);
  return {};
}

}  // namespace mbb::trainer
