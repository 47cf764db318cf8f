// Launches of the cross entropy kernels.
#include <algorithm>

#include "trainer/ops/cuda/cross_entropy_kernel.cuh"
#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

template <typename T>
CrossEntropyParams<T> params(const CrossEntropy& a) {
  const int64_t real = a.real_vocab == 0 ? a.vocab : std::clamp<int64_t>(a.real_vocab - a.first, 0, a.vocab);
  return {static_cast<const T*>(a.logits), static_cast<T*>(a.gradient), a.targets, a.vocab, a.first, real};
}

template <int kWidth>
struct Width {
  static constexpr int value = kWidth;
};

// Calls with the element type's parameters and the width rows allow.
template <typename Call>
Status over_rows(const char* kernel, const CrossEntropy& args, const Launch& launch, Call&& call) {
  if (args.vocab % 8 != 0 && !args.scalar)
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": a vocabulary slice of " + std::to_string(args.vocab) +
                                             " columns is not a multiple of 8");
  if (args.rows == 0) return {};
  const auto plan = plan_cross_entropy(kernel, args.rows, args.vocab, bytes_of(args.element));
  const auto grid = static_cast<unsigned>(plan.grid_x), block = static_cast<unsigned>(plan.block);
  const auto with_width = [&](auto p) {
    if (args.scalar)
      call(p, Width<1>{}, grid, block, launch.stream);
    else
      call(p, Width<8>{}, grid, block, launch.stream);
  };
  if (args.element == Element::kF32)
    with_width(params<float>(args));
  else
    with_width(params<bf16>(args));
  return launched(kernel);
}

// Rows from here on are worth a block with an SM for itself.
constexpr int64_t kWideVocab = 65536;
constexpr int kRowBytes = 200 * 1024;

Status ce_fused_wide(const CrossEntropy& args, float* sum_exp, float* target_logit, const Launch& launch) {
  MB_TRY(ok(cudaFuncSetAttribute(ce_fused_wide_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRowBytes),
            "cross entropy of wide rows"));
  ce_fused_wide_kernel<<<static_cast<unsigned>(args.rows), kWideThreads, kRowBytes, launch.stream>>>(
      params<bf16>(args), kRowBytes / 16, sum_exp, target_logit);
  return launched("ce_fused_wide");
}

}  // namespace

Status ce_row_max(const CrossEntropy& args, float* max, const Launch& launch) {
  return over_rows("ce_row_max", args, launch,
                   [&](auto p, auto width, unsigned grid, unsigned block, cudaStream_t stream) {
                     ce_row_max_kernel<decltype(width)::value><<<grid, block, 0, stream>>>(p, max);
                   });
}

Status ce_sum_exp(const CrossEntropy& args, const float* max, float* sum_exp, float* target_logit,
                  const Launch& launch) {
  return over_rows(
      "ce_sum_exp", args, launch, [&](auto p, auto width, unsigned grid, unsigned block, cudaStream_t stream) {
        ce_sum_exp_kernel<decltype(width)::value><<<grid, block, 0, stream>>>(p, max, sum_exp, target_logit);
      });
}

Status ce_gradient(const CrossEntropy& args, const float* max, const float* sum_exp, const Launch& launch) {
  return over_rows("ce_gradient", args, launch,
                   [&](auto p, auto width, unsigned grid, unsigned block, cudaStream_t stream) {
                     ce_gradient_kernel<decltype(width)::value><<<grid, block, 0, stream>>>(p, max, sum_exp);
                   });
}

Status ce_fused(const CrossEntropy& args, float* sum_exp, float* target_logit, const Launch& launch) {
  if (args.first != 0)
    return fail(ErrorCode::kBadArgument, "ce_fused: needs the whole vocabulary; use the vocabulary-parallel pieces");
  if (args.element == Element::kBf16 && !args.scalar && args.vocab % 8 == 0 && args.vocab >= kWideVocab &&
      args.rows > 0)
    return ce_fused_wide(args, sum_exp, target_logit, launch);
  return over_rows("ce_fused", args, launch,
                   [&](auto p, auto width, unsigned grid, unsigned block, cudaStream_t stream) {
                     ce_fused_kernel<decltype(width)::value><<<grid, block, 0, stream>>>(p, sum_exp, target_logit);
                   });
}

Status ce_loss(const float* sum_exp, const float* target_logit, const int32_t* targets, int64_t rows, double* total,
               bool accumulate, const Launch& launch) {
  ce_loss_kernel<<<1, 256, 0, launch.stream>>>(sum_exp, target_logit, targets, rows, total, accumulate);
  return launched("ce_loss");
}

}  // namespace mbb::trainer::cuda
