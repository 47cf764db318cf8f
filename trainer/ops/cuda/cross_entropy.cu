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

// Rows from here on are held in shared memory by a block, or by a cluster of blocks: three an SM, so that one computes
// while others copy. A block also has 1 KiB of the driver's.
constexpr int64_t kHeldVocab = 16384, kBlockBytes = 228 * 1024 / 3 - 1024;
constexpr int kOneBlock = 512, kOfCluster = 384;  // threads

// The part of a row, what the warps of all its blocks tell each other, and the barriers of both.
int64_t held_bytes(int64_t vocab, int parts) {
  return ((vocab / 8 + parts - 1) / parts + parts * (parts == 1 ? kOneBlock : kOfCluster) / 32) * 16 +
         (kPieces + 2) * 8;
}

// Blocks of a row; 0: rows that are not held.
int parts_of(const CrossEntropy& a) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(a.logits) | reinterpret_cast<uintptr_t>(a.gradient);
  if (a.element != Element::kBf16 || a.scalar || a.vocab % 8 != 0 || a.vocab < kHeldVocab || a.rows == 0 ||
      addresses % 16 != 0)
    return 0;
  for (int parts = 1; parts <= kMostParts; parts *= 2)
    if (held_bytes(a.vocab, parts) <= kBlockBytes) return parts;
  return 0;
}

template <int kThreads>
Status start_held(const CrossEntropy& a, int parts, float* sum_exp, float* target_logit, const Launch& launch) {
  const auto kernel = ce_fused_held_kernel<kThreads>;
  const auto part = static_cast<int>((a.vocab / 8 + parts - 1) / parts);
  const auto bytes = static_cast<int>(held_bytes(a.vocab, parts));
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "ce_fused_held"));
  MB_TRY(
      ok(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
         "ce_fused_held"));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((a.rows + kRowsOfCluster - 1) / kRowsOfCluster * parts));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return ok(cudaLaunchKernelEx(&config, kernel, params<bf16>(a), a.rows, part, sum_exp, target_logit), "ce_fused_held");
}

}  // namespace

Status ce_row_max(const CrossEntropy& args, float* max, const Launch& launch) {
  return over_rows("ce_row_max", args, launch, [&](auto p, auto width, unsigned grid, unsigned, cudaStream_t stream) {
    ce_row_max_kernel<decltype(width)::value><<<grid, kOnePassThreads, 0, stream>>>(p, max);
  });
}

Status ce_sum_exp(const CrossEntropy& args, const float* max, float* sum_exp, float* target_logit,
                  const Launch& launch) {
  return over_rows("ce_sum_exp", args, launch, [&](auto p, auto width, unsigned grid, unsigned, cudaStream_t stream) {
    ce_sum_exp_kernel<decltype(width)::value><<<grid, kOnePassThreads, 0, stream>>>(p, max, sum_exp, target_logit);
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
  if (const int parts = parts_of(args); parts == 1)
    return start_held<kOneBlock>(args, parts, sum_exp, target_logit, launch);
  else if (parts > 1)
    return start_held<kOfCluster>(args, parts, sum_exp, target_logit, launch);
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
