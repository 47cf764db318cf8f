// Attention core and rotary embedding on the CPU: one query row at a time, softmax in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// Offsets of head vectors in packed qkv [s, b, (heads + 2·kv_heads)·d].
struct Packed {
  int64_t s, b, width, d;
  int heads, kv_heads;
  Packed(const Shape& shape, int heads_in, int kv_heads_in, int head_dim)
      : s(shape[0]), b(shape[1]), width(shape[2]), d(head_dim), heads(heads_in), kv_heads(kv_heads_in) {}
  int64_t row(int64_t position, int64_t sample) const { return (position * b + sample) * width; }
  int64_t q(int64_t position, int64_t sample, int head) const { return row(position, sample) + head * d; }
  int64_t k(int64_t position, int64_t sample, int head) const {
    return row(position, sample) + (heads + group(head)) * d;
  }
  int64_t v(int64_t position, int64_t sample, int head) const { return k(position, sample, head) + kv_heads * d; }
  int group(int head) const { return head / (heads / kv_heads); }
};

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

Status cpu_rope(const CpuCall& call) {
  const auto& a = call.attrs<RopeAttrs>();
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  const Packed p(call.in[0].tensor->shape, a.heads, a.kv_heads, a.head_dim);
  const int64_t half = p.d / 2;
  for (int64_t s = 0; s < p.s; ++s) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(a.theta, -2.0 * static_cast<double>(i) / static_cast<double>(p.d));
      const double angle = static_cast<double>(s) * frequency * (a.inverse ? -1.0 : 1.0);
      const double cosine = std::cos(angle);
      const double sine = std::sin(angle);
      for (int64_t b = 0; b < p.b; ++b) {
        for (int head = 0; head < a.heads + a.kv_heads; ++head) {
          const int64_t at = p.row(s, b) + head * p.d + i;
          const double lo = static_cast<double>(x[at]);
          const double hi = static_cast<double>(x[at + half]);
          y[at] = static_cast<float>(lo * cosine - hi * sine);
          y[at + half] = static_cast<float>(hi * cosine + lo * sine);
        }
      }
    }
    for (int64_t b = 0; b < p.b; ++b) {
      const int64_t values = p.row(s, b) + (a.heads + a.kv_heads) * p.d;
      for (int64_t i = 0; i < a.kv_heads * p.d; ++i) y[values + i] = x[values + i];
    }
  }
  return {};
}

Status cpu_attention(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 qkv(call.in[0]);
  WriteF32 out(call.out[0]);
  WriteF32 lse(call.out[1]);
  const Packed p(call.in[0].tensor->shape, a.heads, a.kv_heads, a.head_dim);
  std::vector<double> scores(static_cast<size_t>(p.s));
  std::vector<double> row(static_cast<size_t>(p.d));
  for (int64_t b = 0; b < p.b; ++b) {
    for (int head = 0; head < a.heads; ++head) {
      for (int64_t i = 0; i < p.s; ++i) {
        const int64_t keys = a.causal ? i + 1 : p.s;
        double top = -INFINITY;
        for (int64_t j = 0; j < keys; ++j) {
          auto& score = scores[static_cast<size_t>(j)];
          score = static_cast<double>(a.scale) * dot(qkv.data() + p.q(i, b, head), qkv.data() + p.k(j, b, head), p.d);
          top = std::max(top, score);
        }
        double sum = 0;
        std::fill(row.begin(), row.end(), 0.0);
        for (int64_t j = 0; j < keys; ++j) {
          const double weight = std::exp(scores[static_cast<size_t>(j)] - top);
          sum += weight;
          const float* v = qkv.data() + p.v(j, b, head);
          for (int64_t c = 0; c < p.d; ++c) row[static_cast<size_t>(c)] += weight * static_cast<double>(v[c]);
        }
        const int64_t at = ((i * p.b + b) * a.heads + head) * p.d;
        for (int64_t c = 0; c < p.d; ++c) out[at + c] = static_cast<float>(row[static_cast<size_t>(c)] / sum);
        lse[(b * a.heads + head) * p.s + i] = static_cast<float>(top + std::log(sum));
      }
    }
  }
  return {};
}

// P = exp(scale·QKᵀ − lse); dV = Pᵀ·dO; dS = P ∘ (dO·Vᵀ − rowsum(dO ∘ O)); dQ = scale·dS·K; dK = scale·dSᵀ·Q.
Status cpu_attention_grad(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 dout(call.in[0]);
  const ReadF32 qkv(call.in[1]);
  const ReadF32 out(call.in[2]);
  const ReadF32 lse(call.in[3]);
  const Packed p(call.in[1].tensor->shape, a.heads, a.kv_heads, a.head_dim);
  std::vector<double> grad(static_cast<size_t>(call.out[0].elements()), 0.0);
  for (int64_t b = 0; b < p.b; ++b) {
    for (int head = 0; head < a.heads; ++head) {
      for (int64_t i = 0; i < p.s; ++i) {
        const int64_t at = ((i * p.b + b) * a.heads + head) * p.d;
        const double delta = dot(dout.data() + at, out.data() + at, p.d);
        const int64_t keys = a.causal ? i + 1 : p.s;
        const int64_t q = p.q(i, b, head);
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t k = p.k(j, b, head);
          const int64_t v = p.v(j, b, head);
          const double score = static_cast<double>(a.scale) * dot(qkv.data() + q, qkv.data() + k, p.d);
          const double weight = std::exp(score - static_cast<double>(lse[(b * a.heads + head) * p.s + i]));
          const double ds =
              static_cast<double>(a.scale) * weight * (dot(dout.data() + at, qkv.data() + v, p.d) - delta);
          for (int64_t c = 0; c < p.d; ++c) {
            grad[static_cast<size_t>(v + c)] += weight * static_cast<double>(dout[at + c]);
            grad[static_cast<size_t>(q + c)] += ds * static_cast<double>(qkv[k + c]);
            grad[static_cast<size_t>(k + c)] += ds * static_cast<double>(qkv[q + c]);
          }
        }
      }
    }
  }
  WriteF32 dqkv(call.out[0]);
  for (size_t i = 0; i < grad.size(); ++i) dqkv[static_cast<int64_t>(i)] = static_cast<float>(grad[i]);
  return {};
}

}  // namespace mbb::trainer
