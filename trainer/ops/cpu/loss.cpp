// Vocabulary-parallel cross entropy on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_mask_vocabulary(const CpuCall& call) {
  const Shape& shape = call.in[0].tensor->shape;
  const DType dtype = call.in[0].tensor->dtype;
  if (call.in[0].data != call.out[0].data)
    std::memcpy(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].tensor->bytes()));
  const int64_t real = call.attrs<VocabularyAttrs>().vocabulary - shape.cols() * call.rank.coordinates.tp;
  const auto kept = static_cast<size_t>(std::clamp<int64_t>(real, 0, shape.cols()));
  const auto cols = static_cast<size_t>(shape.cols());
  for (size_t r = 0; r < static_cast<size_t>(shape.rows()); ++r)
    std::memset(static_cast<char*>(call.out[0].data) + bytes_of(dtype, r * cols + kept), kPaddingByte,
                bytes_of(dtype, cols - kept));
  return {};
}

Status cpu_cross_entropy_max(const CpuCall& call) {
  const ReadF32 logits(call.in[0]);
  WriteF32 maxima(call.out[0]);
  const int64_t v = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r)
    maxima[r] = *std::max_element(logits.data() + r * v, logits.data() + (r + 1) * v);
  return {};
}

Status cpu_cross_entropy_sum(const CpuCall& call) {
  const ReadF32 logits(call.in[0]);
  const ReadF32 maxima(call.in[1]);
  const int32_t* labels = ints(call.in[2]);
  WriteF32 sums(call.out[0]);
  const int64_t v = call.in[0].tensor->shape.cols();
  const int64_t rows = call.in[0].tensor->shape.rows();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < v; ++i)
      sum += std::exp(static_cast<double>(logits[r * v + i]) - static_cast<double>(maxima[r]));
    const int64_t target = labels[r] - v * call.rank.coordinates.tp;
    sums[r] = static_cast<float>(sum);
    sums[rows + r] = labels[r] >= 0 && target >= 0 && target < v ? logits[r * v + target] - maxima[r] : 0.0F;
  }
  return {};
}

Status cpu_cross_entropy_loss(const CpuCall& call) {
  const ReadF32 sums(call.in[2]);
  const int32_t* labels = ints(call.in[3]);
  const int64_t rows = call.in[3].elements();
  double* total = doubles(call.out[0]);
  if (!call.attrs<EmbeddingAttrs>().accumulate) total[0] = total[1] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (labels[r] < 0) continue;
    total[0] += std::log(static_cast<double>(sums[r])) - static_cast<double>(sums[rows + r]);
    total[1] += 1;
  }
  return {};
}

Status cpu_cross_entropy_grad(const CpuCall& call) {
  const ReadF32 logits(call.in[0]);
  const ReadF32 maxima(call.in[1]);
  const ReadF32 sums(call.in[2]);
  const int32_t* labels = ints(call.in[3]);
  WriteF32 grad(call.out[0]);
  const int64_t v = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r) {
    const int64_t target = labels[r] - v * call.rank.coordinates.tp;
    for (int64_t i = 0; i < v; ++i) {
      const double p = std::exp(static_cast<double>(logits[r * v + i]) - static_cast<double>(maxima[r])) /
                       static_cast<double>(sums[r]);
      grad[r * v + i] = labels[r] < 0 ? 0.0F : static_cast<float>(p - (i == target ? 1.0 : 0.0));
    }
  }
  return {};
}

}  // namespace mbb::trainer
