// Dispatch, grouped products and combination of experts on the CPU.
#include <algorithm>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

// visit(expert, row) for every filled row.
template <typename Visit>
void for_rows(const CpuOperand& segments, Visit&& visit) {
  const int32_t* of = ints(segments);
  const int64_t experts = segments.tensor->shape[1];
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = of[e]; r < of[e] + of[experts + e]; ++r) visit(e, r);
}

void fill_zero(WriteF32& out, int64_t elements) {
  std::fill(out.data(), out.data() + elements, 0.0F);
}

}  // namespace

Status cpu_dispatch_plan(const CpuCall& call) {
  const auto& a = call.attrs<DispatchAttrs>();
  const int32_t* experts = ints(call.in[0]);
  const ReadF32 weights(call.in[1]);
  auto* rows = static_cast<int32_t*>(call.out[0].data);
  auto* segments = static_cast<int32_t*>(call.out[1].data);
  std::vector<std::vector<int64_t>> pairs(static_cast<size_t>(a.experts));
  for (int64_t i = 0; i < call.in[0].elements(); ++i) pairs[static_cast<size_t>(experts[i])].push_back(i);
  int64_t next = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    auto& mine = pairs[static_cast<size_t>(e)];
    if (a.capacity > 0) {
      next = e * a.capacity;
      const auto keep = static_cast<size_t>(std::min<int64_t>(a.capacity, static_cast<int64_t>(mine.size())));
      if (!a.by_position)
        std::stable_sort(mine.begin(), mine.end(), [&](int64_t x, int64_t y) { return weights[x] > weights[y]; });
      for (size_t i = keep; i < mine.size(); ++i) rows[mine[i]] = -1;
      mine.resize(keep);
      std::sort(mine.begin(), mine.end());
    }
    segments[e] = static_cast<int32_t>(next);
    segments[a.experts + e] = static_cast<int32_t>(mine.size());
    for (int64_t pair : mine) rows[pair] = static_cast<int32_t>(next++);
  }
  return {};
}

Status cpu_permute(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  const int32_t* rows = ints(call.in[1]);
  WriteF32 buffer(call.out[0]);
  const int64_t h = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
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
  const ReadF32 x(call.in[0]);
  const ReadF32 w(call.in[1]);
  WriteF32 y(call.out[0]);
  const int64_t n = call.in[1].tensor->shape[1];
  const int64_t k = call.in[1].tensor->shape[2];
  fill_zero(y, call.out[0].elements());
  for_rows(call.in[2], [&](int64_t e, int64_t r) {
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
  const ReadF32 dy(call.in[0]);
  const ReadF32 w(call.in[1]);
  WriteF32 dx(call.out[0]);
  const int64_t n = call.in[1].tensor->shape[1];
  const int64_t k = call.in[1].tensor->shape[2];
  fill_zero(dx, call.out[0].elements());
  for_rows(call.in[2], [&](int64_t e, int64_t r) {
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
  const bool accumulate = call.attrs<GroupedGemmAttrs>().accumulate;
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  WriteF32 dw(call.out[0], accumulate);
  const int64_t n = call.in[0].tensor->shape.cols();
  const int64_t k = call.in[1].tensor->shape.cols();
  std::vector<double> sums(static_cast<size_t>(call.out[0].elements()), 0.0);
  for_rows(call.in[2], [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i)
        sums[static_cast<size_t>((e * n + j) * k + i)] +=
            static_cast<double>(dy[r * n + j]) * static_cast<double>(x[r * k + i]);
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    dw[at] = static_cast<float>((accumulate ? static_cast<double>(dw[at]) : 0.0) + sums[i]);
  }
  return {};
}

Status cpu_grouped_bias(const CpuCall& call) {
  const float scale = call.attrs<BiasAttrs>().scale;
  const ReadF32 x(call.in[0]);
  const ReadF32 bias(call.in[1]);
  WriteF32 y(call.out[0]);
  const int64_t n = call.in[0].tensor->shape.cols();
  for (int64_t i = 0; i < call.out[0].elements(); ++i) y[i] = x[i];
  for_rows(call.in[2], [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j) y[r * n + j] = x[r * n + j] + scale * bias[e * n + j];
  });
  return {};
}

Status cpu_grouped_bias_grad(const CpuCall& call) {
  const auto& a = call.attrs<BiasAttrs>();
  const ReadF32 dy(call.in[0]);
  WriteF32 db(call.out[0], a.accumulate);
  const int64_t n = call.in[0].tensor->shape.cols();
  std::vector<double> sums(static_cast<size_t>(call.out[0].elements()), 0.0);
  for_rows(call.in[1], [&](int64_t e, int64_t r) {
    for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(e * n + j)] += static_cast<double>(dy[r * n + j]);
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    db[at] =
        static_cast<float>((a.accumulate ? static_cast<double>(db[at]) : 0.0) + static_cast<double>(a.scale) * sums[i]);
  }
  return {};
}

}  // namespace mbb::trainer
