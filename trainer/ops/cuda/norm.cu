// Launches of the norm kernels.
#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/norm_backward_kernel.cuh"
#include "trainer/ops/cuda/norm_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

template <typename T, bool kLayer>
Status forward(const NormForward& a, const KernelPlan& plan, cudaStream_t stream) {
  const NormForwardParams<T> p{static_cast<const T*>(a.x),
                               static_cast<const T*>(a.residual),
                               static_cast<const T*>(a.weight),
                               static_cast<const T*>(a.bias),
                               static_cast<T*>(a.sum),
                               static_cast<T*>(a.y),
                               a.mean,
                               a.rstd,
                               a.amax,
                               a.shape.rows,
                               a.shape.cols,
                               a.eps,
                               a.weight_offset};
  const dim3 grid(static_cast<unsigned>(plan.grid_x)), block(static_cast<unsigned>(plan.block));
  if (plan.rows > 1) {
    norm_forward_row_kernel<T, kLayer, 4><<<grid, block, 0, stream>>>(p);
    return launched("norm_forward");
  }
  if (plan.vectors == 1) norm_forward_kernel<T, 1, kLayer><<<grid, block, 0, stream>>>(p);
  if (plan.vectors == 2) norm_forward_row_kernel<T, kLayer, 2><<<grid, block, 0, stream>>>(p);
  if constexpr (kLayer)
    if (plan.vectors == 3) norm_forward_row_kernel<T, kLayer, 3><<<grid, block, 0, stream>>>(p);
  if (plan.vectors == 4) norm_forward_kernel<T, 4, kLayer><<<grid, block, 0, stream>>>(p);
  return launched("norm_forward");
}

// Of a block's shared memory, what sums and barriers leave to rows on their way.
constexpr int kNormStageBytes = (227 << 10) - (3 << 9);

template <typename T, bool kLayer>
Status backward(const NormBackward& a, const KernelPlan& plan, cudaStream_t stream) {
  const NormBackwardParams<T> p{static_cast<const T*>(a.x),
                                static_cast<const T*>(a.dy),
                                static_cast<const T*>(a.dresidual),
                                static_cast<const T*>(a.weight),
                                a.mean,
                                a.rstd,
                                static_cast<T*>(a.dx),
                                a.partials,
                                a.amax,
                                a.shape.rows,
                                a.shape.cols,
                                a.weight_offset};
  const auto grid = static_cast<unsigned>(plan.grid_x);
  if (plan.vectors > 1) {
    norm_backward_wide_kernel<T, kLayer, 4><<<grid, plan.block, 0, stream>>>(p);
    return launched("norm_backward");
  }
  auto kernel = norm_backward_kernel<T, kLayer, 1, 1024>;
  if constexpr (sizeof(T) == 2) {
    if (plan.rows == 2) kernel = norm_backward_kernel < T, kLayer, 2, kLayer ? kLayerThreads : 1024 > ;
    if (kLayer && norm_layer_alone(plan)) kernel = norm_backward_kernel<T, kLayer, 1, kLayerThreads>;
  }
  // The same for every shape: it is the function's, and rank threads that share a device launch it in several.
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kNormStageBytes), plan.kernel));
  MB_TRY(
      ok(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
         plan.kernel));
  kernel<<<grid, plan.block, static_cast<size_t>(plan.smem_bytes), stream>>>(p, plan.stages);
  return launched("norm_backward");
}

// Started before the rows are done, for whose end it waits itself.
Status weight_grad(const NormBackward& a, int64_t partials, cudaStream_t stream) {
  const KernelPlan plan = plan_norm_weight_grad(partials, a.shape.cols);
  return start_early(plan.kernel, norm_weight_grad_kernel, dim3(static_cast<unsigned>(plan.grid_x), a.layer ? 2 : 1),
                     plan.block, stream, a.partials, partials, a.shape.cols, a.dweight, a.dbias, a.accumulate);
}

}  // namespace

Status norm_forward(const NormForward& args, const Launch& launch) {
  if (args.shape.rows == 0) return {};
  MB_ASSIGN(const auto plan, plan_norm_forward(args.shape, args.element, args.element, args.residual != nullptr,
                                               launch.sms, args.layer));
  if (args.element == Element::kF32)
    return args.layer ? forward<float, true>(args, plan, launch.stream)
                      : forward<float, false>(args, plan, launch.stream);
  return args.layer ? forward<bf16, true>(args, plan, launch.stream) : forward<bf16, false>(args, plan, launch.stream);
}

int64_t norm_backward_partials(RowShape shape, bool layer, Sms sms) {
  const auto plan = plan_norm_backward(shape, Element::kF32, true, sms, layer);  // no element has more blocks
  return plan ? plan->grid_x * shape.cols * 4 * (layer ? 2 : 1) : 0;
}

Status norm_backward(const NormBackward& args, const Launch& launch) {
  if (args.shape.rows == 0) return {};
  MB_ASSIGN(const auto plan,
            plan_norm_backward(args.shape, args.element, args.dresidual != nullptr, launch.sms, args.layer));
  if (args.element == Element::kF32) {
    MB_TRY((args.layer ? backward<float, true>(args, plan, launch.stream)
                       : backward<float, false>(args, plan, launch.stream)));
  } else {
    MB_TRY((args.layer ? backward<bf16, true>(args, plan, launch.stream)
                       : backward<bf16, false>(args, plan, launch.stream)));
  }
  return weight_grad(args, plan.grid_x, launch.stream);
}

}  // namespace mbb::trainer::cuda
