// Attention core on the CPU: one query row at a time, softmax in double. Self-attention reads packed qkv, cross
// attention queries and packed key-values; both are views over one core.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "trainer/ops/cpu/dropout.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/relative_bucket.h"

namespace mbb::trainer {
namespace {

// Head vectors of one of q, k, v inside [s, b, width].
struct Side {
  int64_t s, b, width, offset, d;
  int64_t at(int64_t position, int64_t sample, int64_t head) const {
    return (position * b + sample) * width + offset + head * d;
  }
};

struct Sides {
  Side q, k, v;
};

Sides packed(const Shape& shape, const AttentionAttrs& a) {
  const int64_t d = a.head_dim;
  const auto side = [&](int64_t offset, int64_t dim) { return Side{shape[0], shape[1], shape[2], offset, dim}; };
  return {side(0, d), side(a.heads * d, d), side((a.heads + a.kv_heads) * d, a.value_dim())};
}

Sides crossed(const Shape& q, const Shape& kv, const AttentionAttrs& a) {
  const int64_t d = a.head_dim;
  return {{q[0], q[1], q[2], 0, d}, {kv[0], kv[1], kv[2], 0, d}, {kv[0], kv[1], kv[2], a.kv_heads * d, a.value_dim()}};
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Operands besides q, k and v, and where rows lie.
class Extras {
 public:
  Extras(const CpuCall& call, const AttentionAttrs& a, size_t first, const Sides& sides) : a_(a), rank_(call.rank) {
    const size_t at = first + (a.has_weight() ? 1 : 0) + (a.dropout > 0 ? 2 : 0);
    const bool apart = at + 1 < call.in.size() && call.in[at + 1].tensor->dtype == DType::kI32;  // queries' and keys'
    const CpuOperand* starts = a.packed ? &call.in[at] : nullptr;
    queries_ = rows_of(a.queries, starts, sides.q.s);
    keys_ = rows_of(a.keys, a.packed && apart ? &call.in[at + 1] : starts, sides.k.s);
    if (a.has_weight()) weight_.emplace(call.in[first++]);
    if (a.dropout == 0) return;
    samples_ = ints(call.in[first]);
    const ReadF32 record(call.in[first + 1]);
    mask_.emplace(a.dropout, a.dropout_stream, record.data());
  }
  double bias(int64_t head, int64_t query, int64_t key) const {
    if (a_.relative_buckets == 0) return 0;
    return static_cast<double>((*weight_)[table_at(head, query, key)]);
  }
  // Of the bias table: the element that query and key rows of a head read.
  int64_t table_at(int64_t head, int64_t query, int64_t key) const {
    return weight_at(head) * a_.relative_buckets + relative_bucket(key_at(key) - query_at(query), a_);
  }
  int64_t weight_at(int64_t head) const { return a_.first_head + head; }
  std::optional<double> sink(int64_t head) const {
    return a_.sinks ? std::optional(static_cast<double>((*weight_)[weight_at(head)])) : std::nullopt;
  }
  // Key rows that a query row looks at, ascending: those of its own sequence, causally up to its own place.
  const std::vector<int64_t>& visible(int64_t query, std::vector<int64_t>& rows) const {
    rows.clear();
    const PackedRow& q = queries_[static_cast<size_t>(query)];
    for (size_t j = 0; j < keys_.size(); ++j) {
      const PackedRow& k = keys_[j];
      if (k.sequence != q.sequence) continue;
      if (a_.causal && (k.at > q.at || (a_.window > 0 && k.at <= q.at - a_.window))) continue;
      rows.push_back(static_cast<int64_t>(j));
    }
    return rows;
  }
  double kept(int64_t sample, int64_t head, int64_t query, int64_t key, const Sides& sides) const {
    if (!mask_) return 1.0;
    const int64_t queries = a_.queries.whole() ? sides.q.s : a_.queries.sequence;
    const int64_t keys = a_.keys.whole() ? sides.k.s : a_.keys.sequence;
    const int64_t global_head = rank_.coordinates.tp * a_.tp_heads() + weight_at(head);
    return mask_->factor(samples_[sample], (global_head * queries + query_at(query)) * keys + key_at(key));
  }

 private:
  int64_t query_at(int64_t row) const { return queries_[static_cast<size_t>(row)].at; }
  int64_t key_at(int64_t row) const { return keys_[static_cast<size_t>(row)].at; }

  const AttentionAttrs& a_;
  const RankContext& rank_;
  std::vector<PackedRow> queries_, keys_;
  std::optional<ReadF32> weight_;
  const int32_t* samples_ = nullptr;
  std::optional<DropoutMask> mask_;
};

void forward(const AttentionAttrs& a, const Sides& sides, const Extras& extras, const float* q, const float* kv,
             float* out, float* lse) {
  const int64_t dv = a.value_dim();
  std::vector<double> scores(static_cast<size_t>(sides.k.s));
  std::vector<int64_t> rows;
  std::vector<double> row(static_cast<size_t>(dv));
  for (int64_t b = 0; b < sides.q.b; ++b) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t group = head / (a.heads / a.kv_heads);
      for (int64_t i = 0; i < sides.q.s; ++i) {
        const std::vector<int64_t>& keys = extras.visible(i, rows);
        const std::optional<double> sink = extras.sink(head);
        double top = sink.value_or(-INFINITY);
        for (int64_t j : keys) {
          auto& score = scores[static_cast<size_t>(j)];
          score =
              static_cast<double>(a.scale) * dot(q + sides.q.at(i, b, head), kv + sides.k.at(j, b, group), sides.q.d) +
              extras.bias(head, i, j);
          top = std::max(top, score);
        }
        double sum = sink ? std::exp(*sink - top) : 0.0;
        std::fill(row.begin(), row.end(), 0.0);
        for (int64_t j : keys) {
          const double weight = std::exp(scores[static_cast<size_t>(j)] - top);
          sum += weight;
          const double kept = weight * extras.kept(b, head, i, j, sides);
          const float* v = kv + sides.v.at(j, b, group);
          for (int64_t c = 0; c < dv; ++c) row[static_cast<size_t>(c)] += kept * static_cast<double>(v[c]);
        }
        const int64_t at = ((i * sides.q.b + b) * a.heads + head) * dv;
        // A part of the keys may show nothing: zeros with weight exp(-inf).
        const double over = sum > 0 ? sum : 1.0;
        for (int64_t c = 0; c < dv; ++c) out[at + c] = static_cast<float>(row[static_cast<size_t>(c)] / over);
        lse[(b * a.heads + head) * sides.q.s + i] = static_cast<float>(sum > 0 ? top + std::log(sum) : -INFINITY);
      }
    }
  }
}

struct Saved {
  const float *dout, *q, *kv, *out, *lse;
  int64_t lse_rows;  // queries from a.first_query on have theirs here
};

// P = exp(scale·QKᵀ + bias − lse), M the dropout mask: dV = (P∘M)ᵀ·dO; dS = P ∘ (M∘(dO·Vᵀ) − rowsum(dO ∘ O));
// dQ = scale·dS·K; dK = scale·dSᵀ·Q. `dq` and `dkv` may be one buffer (packed qkv).
void backward(const AttentionAttrs& a, const Sides& sides, const Extras& extras, const Saved& saved, double* dq,
              double* dkv, double* dweight) {
  const int64_t d = a.head_dim;
  const int64_t dv = a.value_dim();
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < sides.q.b; ++b) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t group = head / (a.heads / a.kv_heads);
      for (int64_t i = 0; i < sides.q.s; ++i) {
        const float* dout = saved.dout + ((i * sides.q.b + b) * a.heads + head) * dv;
        const double delta = dot(dout, saved.out + ((i * sides.q.b + b) * a.heads + head) * dv, dv);
        const double lse = static_cast<double>(saved.lse[(b * a.heads + head) * saved.lse_rows + a.first_query + i]);
        const int64_t q = sides.q.at(i, b, head);
        if (const auto sink = extras.sink(head)) dweight[extras.weight_at(head)] -= std::exp(*sink - lse) * delta;
        for (int64_t j : extras.visible(i, rows)) {
          const int64_t k = sides.k.at(j, b, group);
          const int64_t v = sides.v.at(j, b, group);
          const double score =
              static_cast<double>(a.scale) * dot(saved.q + q, saved.kv + k, d) + extras.bias(head, i, j);
          const double weight = std::exp(score - lse);
          const double kept = extras.kept(b, head, i, j, sides);
          const double ds = weight * (kept * dot(dout, saved.kv + v, dv) - delta);
          if (a.relative_buckets > 0) dweight[extras.table_at(head, i, j)] += ds;
          const double scaled = static_cast<double>(a.scale) * ds;
          for (int64_t c = 0; c < dv; ++c) dkv[v + c] += weight * kept * static_cast<double>(dout[c]);
          for (int64_t c = 0; c < d; ++c) {
            dq[q + c] += scaled * static_cast<double>(saved.kv[k + c]);
            dkv[k + c] += scaled * static_cast<double>(saved.q[q + c]);
          }
        }
      }
    }
  }
}

void store(const CpuOperand& operand, const std::vector<double>& values, bool accumulate = false) {
  WriteF32 out(operand, accumulate);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    out[at] = static_cast<float>((accumulate ? static_cast<double>(out[at]) : 0.0) + values[i]);
  }
}

std::vector<double> zeros(const CpuOperand& like) {
  return std::vector<double>(static_cast<size_t>(like.elements()), 0.0);
}

}  // namespace

Status cpu_attention(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 qkv(call.in[0]);
  WriteF32 out(call.out[0]);
  WriteF32 lse(call.out[1]);
  const Sides sides = packed(call.in[0].tensor->shape, a);
  forward(a, sides, Extras(call, a, 1, sides), qkv.data(), qkv.data(), out.data(), lse.data());
  return {};
}

Status cpu_attention_grad(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 dout(call.in[0]);
  const ReadF32 qkv(call.in[1]);
  const ReadF32 out(call.in[2]);
  const ReadF32 lse(call.in[3]);
  std::vector<double> grad = zeros(call.in[1]);
  std::vector<double> weight_grad = a.has_weight() ? zeros(call.out[0]) : std::vector<double>{};
  const Sides sides = packed(call.in[1].tensor->shape, a);
  backward(a, sides, Extras(call, a, 4, sides),
           {dout.data(), qkv.data(), qkv.data(), out.data(), lse.data(), call.in[3].tensor->shape[2]}, grad.data(),
           grad.data(), weight_grad.data());
  if (a.has_weight()) store(call.out[0], weight_grad, a.accumulate);
  store(call.out[a.has_weight() ? 1 : 0], grad);
  return {};
}

Status cpu_cross_attention(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 q(call.in[0]);
  const ReadF32 kv(call.in[1]);
  WriteF32 out(call.out[0]);
  WriteF32 lse(call.out[1]);
  const Sides sides = crossed(call.in[0].tensor->shape, call.in[1].tensor->shape, a);
  forward(a, sides, Extras(call, a, 2, sides), q.data(), kv.data(), out.data(), lse.data());
  return {};
}

Status cpu_cross_attention_grad(const CpuCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const ReadF32 dout(call.in[0]);
  const ReadF32 q(call.in[1]);
  const ReadF32 kv(call.in[2]);
  const ReadF32 out(call.in[3]);
  const ReadF32 lse(call.in[4]);
  std::vector<double> dq = zeros(call.in[1]);
  std::vector<double> dkv = zeros(call.in[2]);
  std::vector<double> weight_grad = a.has_weight() ? zeros(call.out[0]) : std::vector<double>{};
  const Sides sides = crossed(call.in[1].tensor->shape, call.in[2].tensor->shape, a);
  backward(a, sides, Extras(call, a, 5, sides),
           {dout.data(), q.data(), kv.data(), out.data(), lse.data(), call.in[4].tensor->shape[2]}, dq.data(),
           dkv.data(), weight_grad.data());
  if (a.has_weight()) store(call.out[0], weight_grad, a.accumulate);
  store(call.out[a.has_weight() ? 1 : 0], dq);
  store(call.out[a.has_weight() ? 2 : 1], dkv);
  return {};
}

}  // namespace mbb::trainer
