// Dispatch, grouped products and combination of experts on the CPU.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// visit(expert, row) for every filled row, of one expert only where `only` is not negative.
template <typename Visit>
void for_rows(const CpuOperand& segments, int64_t only, Visit&& visit) {
  const int32_t* of = ints(segments);
  const int64_t experts = segments.tensor->shape[1];
  for (int64_t e = 0; e < experts; ++e) {
    if (only >= 0 && e != only) continue;
    for (int64_t r = of[e]; r < of[e] + of[experts + e]; ++r) visit(e, r);
  }
}

void fill_zero(WriteF32& out, int64_t elements) {
  std::fill(out.data(), out.data() + elements, 0.0F);
}

// `end`: where the rows of peer's slot would end.
Status overflow(const DispatchAttrs& a, int64_t peer, int64_t end, int64_t pairs) {
  const int64_t slot = a.rows / a.peers;
  const int64_t needed = end - peer * slot;
  const double balanced = static_cast<double>(pairs) / static_cast<double>(a.peers);
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("the experts of peer {} get {} rows of this micro-batch and its slot has {}: "
                          "parallel.moe_dropless_bound must be at least {:.3f}",
                          peer, needed, slot, static_cast<double>(needed) / balanced),
              "0 makes room for the worst case");
}

}  // namespace

Status cpu_dispatch_plan(const CpuCall& call) {
  const auto& a = call.attrs<DispatchAttrs>();
  const int32_t* experts = ints(call.in[0]);
  const ReadF32 weights(call.in[1]);
  auto* rows = static_cast<int32_t*>(call.out[0].data);
  auto* segments = static_cast<int32_t*>(call.out[1].data);
  std::vector<std::vector<int64_t>> pairs(static_cast<size_t>(a.experts));
  for (int64_t i = 0; i < call.in[0].elements(); ++i) {
    rows[i] = -1;
    if (experts[i] >= 0) pairs[static_cast<size_t>(experts[i])].push_back(i);
  }
  const int64_t slot = a.rows / a.peers;
  const int64_t experts_a_peer = a.experts / a.peers;
  int64_t next = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    auto& mine = pairs[static_cast<size_t>(e)];
    if (e % experts_a_peer == 0) {
      if (next > e / experts_a_peer * slot) return overflow(a, e / experts_a_peer - 1, next, call.in[0].elements());
      next = e / experts_a_peer * slot;
    }
    if (a.capacity > 0) {
      next = e * a.capacity;
      const auto keep = static_cast<size_t>(std::min<int64_t>(a.capacity, static_cast<int64_t>(mine.size())));
      if (!a.by_position)
        std::stable_sort(mine.begin(), mine.end(), [&](int64_t x, int64_t y) { return weights[x] > weights[y]; });
      mine.resize(keep);
      std::sort(mine.begin(), mine.end());
    }
    segments[e] = static_cast<int32_t>(next);
    segments[a.experts + e] = static_cast<int32_t>(mine.size());
    for (int64_t pair : mine) rows[pair] = static_cast<int32_t>(next++);
  }
  if (next > a.rows) return overflow(a, a.peers - 1, next, call.in[0].elements());
  return {};
}

Status cpu_kept_experts(const CpuCall& call) {
  const int64_t pairs = call.in[0].elements();
  const int32_t* experts = ints(call.in[0]);
  const int32_t* rows = ints(call.in[1]) + call.rank.coordinates.tp * pairs;
  auto* kept = static_cast<int32_t*>(call.out[0].data);
  for (int64_t i = 0; i < pairs; ++i) kept[i] = rows[i] < 0 ? -1 : experts[i];
  return {};
}

Status cpu_segment_counts(const CpuCall& call) {
  const int64_t pieces = call.out[0].elements();
  std::copy_n(ints(call.in[0]) + pieces, pieces, static_cast<int32_t*>(call.out[0].data));
  return {};
}

Status cpu_receive_plan(const CpuCall& call) {
  const auto& a = call.attrs<ReceiveAttrs>();
  const int32_t* counts = ints(call.in[0]);
  auto* segments = static_cast<int32_t*>(call.out[0].data);
  const int64_t pieces = call.in[0].elements();
  const int64_t sources = pieces / (a.members * a.experts);
  for (int64_t member = 0; member < a.members; ++member) {
    int64_t next = member * a.member_rows;
    for (int64_t source = 0; source < sources; ++source) {
      if (a.slot_rows > 0) next = member * a.member_rows + source * a.slot_rows;
      for (int64_t e = 0; e < a.experts; ++e) {
        const int64_t piece = (member * sources + source) * a.experts + e;
        segments[piece] = static_cast<int32_t>(next);
        segments[pieces + piece] = counts[piece];
        next += a.capacity > 0 ? a.capacity : counts[piece];
      }
    }
  }
  return {};
}

Status cpu_merge_pieces(const CpuCall& call) {
  const auto& a = call.attrs<DispatchAttrs>();
  const int32_t* segments = ints(call.in[0]);
  auto* rows = static_cast<int32_t*>(call.out[0].data);
  auto* merged = static_cast<int32_t*>(call.out[1].data);
  const int64_t pieces = call.in[0].tensor->shape[1];
  std::fill_n(rows, call.out[0].elements(), -1);
  int32_t next = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    merged[e] = next;
    for (int64_t p = e; p < pieces; p += a.experts)
      for (int32_t r = 0; r < segments[pieces + p]; ++r) rows[segments[p] + r] = next++;
    merged[a.experts + e] = next - merged[e];
  }
  return {};
}

Status cpu_permute(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  const int32_t* rows = ints(call.in[1]);
  WriteF32 buffer(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].elements() / call.in[0].tensor->shape.rows();  // pairs of one row of x
  fill_zero(buffer, call.out[0].elements());
  for (int64_t i = 0; i < call.in[1].elements(); ++i)
    if (rows[i] >= 0) std::copy(x.data() + i / k * h, x.data() + (i / k + 1) * h, buffer.data() + rows[i] * h);
  return {};
}

Status cpu_permute_grad(const CpuCall& call) {
  const ReadF32 dbuffer(call.in[0]);
  const int32_t* rows = ints(call.in[1]);
  WriteF32 dx(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
  for (int64_t t = 0; t < call.in[1].tensor->shape[0]; ++t) {
    for (int64_t c = 0; c < h; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        if (rows[t * k + j] >= 0) sum += static_cast<double>(dbuffer[rows[t * k + j] * h + c]);
      dx[t * h + c] = static_cast<float>(sum);
    }
  }
  return {};
}

Status cpu_combine(const CpuCall& call) {
  const ReadF32 buffer(call.in[0]);
  const int32_t* rows = ints(call.in[1]);
  const ReadF32 weights(call.in[2]);
  WriteF32 y(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
  for (int64_t t = 0; t < call.in[1].tensor->shape[0]; ++t) {
    for (int64_t c = 0; c < h; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) {
        const int32_t row = rows[t * k + j];
        if (row >= 0) sum += static_cast<double>(weights[t * k + j]) * static_cast<double>(buffer[row * h + c]);
      }
      y[t * h + c] = static_cast<float>(sum);
    }
  }
  return {};
}

Status cpu_combine_grad(const CpuCall& call) {
  const ReadF32 dy(call.in[0]);
  const ReadF32 buffer(call.in[1]);
  const int32_t* rows = ints(call.in[2]);
  const ReadF32 weights(call.in[3]);
  WriteF32 dbuffer(call.out[0]);
  WriteF32 dweights(call.out[1]);
  const int64_t h = call.in[1].tensor->shape.cols();
  const int64_t k = call.in[2].tensor->shape.cols();
  fill_zero(dbuffer, call.out[0].elements());
  for (int64_t i = 0; i < call.in[2].elements(); ++i) {
    double dot = 0;
    if (rows[i] >= 0) {
      for (int64_t c = 0; c < h; ++c) {
        const double d = static_cast<double>(dy[i / k * h + c]);
        dot += d * static_cast<double>(buffer[rows[i] * h + c]);
        dbuffer[rows[i] * h + c] = static_cast<float>(d * static_cast<double>(weights[i]));
      }
    }
    dweights[i] = static_cast<float>(dot);
  }
  return {};
}

Status cpu_grouped_gemm(const CpuCall& call) {
  const auto& a = call.attrs<GroupedGemmAttrs>();
  const ReadF32 x(call.in[0]);
  const ReadF32 w(call.in[1]);
  WriteF32 y(call.out[0], a.only > 0);
  const int64_t n = call.in[1].tensor->shape[1];
  const int64_t k = call.in[1].tensor->shape[2];
  if (a.only <= 0) fill_zero(y, call.out[0].elements());
  for_rows(call.in[2], a.only, [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[r * k + i]) * static_cast<double>(w[(e * n + j) * k + i]);
      y[r * n + j] = static_cast<float>(sum);
    }
  });
  return {};
}

Status cpu_grouped_gemm_dgrad(const CpuCall& call) {
  const auto& a = call.attrs<GroupedGemmAttrs>();
  const ReadF32 dy(call.in[0]);
  const ReadF32 w(call.in[1]);
  WriteF32 dx(call.out[0], a.only > 0);
  const int64_t n = call.in[1].tensor->shape[1];
  const int64_t k = call.in[1].tensor->shape[2];
  if (a.only <= 0) fill_zero(dx, call.out[0].elements());
  for_rows(call.in[2], a.only, [&](int64_t e, int64_t r) {
    std::vector<double> sums(static_cast<size_t>(k), 0.0);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i)
        sums[static_cast<size_t>(i)] +=
            static_cast<double>(dy[r * n + j]) * static_cast<double>(w[(e * n + j) * k + i]);
    for (int64_t i = 0; i < k; ++i) dx[r * k + i] = static_cast<float>(sums[static_cast<size_t>(i)]);
  });
  return {};
}

Status cpu_grouped_gemm_wgrad(const CpuCall& call) {
  const auto& a = call.attrs<GroupedGemmAttrs>();
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  WriteF32 dw(call.out[0], a.accumulate || a.only > 0);
  const int64_t n = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
  std::vector<double> sums(static_cast<size_t>(call.out[0].elements()), 0.0);
  for_rows(call.in[2], a.only, [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i)
        sums[static_cast<size_t>((e * n + j) * k + i)] +=
            static_cast<double>(dy[r * n + j]) * static_cast<double>(x[r * k + i]);
  });
  const int64_t begin = a.only < 0 ? 0 : a.only * n * k;
  const int64_t end = a.only < 0 ? call.out[0].elements() : begin + n * k;
  for (int64_t i = begin; i < end; ++i)
    dw[i] = static_cast<float>((a.accumulate ? static_cast<double>(dw[i]) : 0.0) + sums[static_cast<size_t>(i)]);
  return {};
}

Status cpu_grouped_bias(const CpuCall& call) {
  const auto& a = call.attrs<GroupedBiasAttrs>();
  const ReadF32 x(call.in[0]);
  const ReadF32 bias(call.in[1]);
  WriteF32 y(call.out[0]);
  const int64_t n = call.in[0].tensor->shape.cols();
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = x[i];
  for_rows(call.in[2], -1, [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j) y[r * n + j] = x[r * n + j] + a.scale * bias[e * n + j];
  });
  return {};
}

Status cpu_grouped_bias_grad(const CpuCall& call) {
  const auto& a = call.attrs<GroupedBiasAttrs>();
  const ReadF32 dy(call.in[0]);
  WriteF32 db(call.out[0], a.accumulate);
  const int64_t n = call.in[0].tensor->shape.cols();
  std::vector<double> sums(static_cast<size_t>(call.out[0].elements()), 0.0);
  for_rows(call.in[1], -1, [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(e * n + j)] += static_cast<double>(dy[r * n + j]);
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    db[at] = static_cast<float>((a.accumulate ? static_cast<double>(db[at]) : 0.0) +
                                static_cast<double>(a.gradient) * sums[i]);
  }
  return {};
}

}  // namespace mbb::trainer
