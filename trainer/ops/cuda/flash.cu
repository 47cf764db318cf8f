// Launches of our own flash attention.
#include <cmath>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/flash_backward_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

FlashParams params(const AttentionShape& s, float scale, const void* qkv) {
  const int64_t d = s.head_dim, row = (s.heads + 2 * s.kv_heads) * d, out_row = s.heads * d;
  const auto* base = static_cast<const bf16*>(qkv);
  FlashParams p{};
  p.q = {base, s.batch * row, row};
  p.k = {base + s.heads * d, s.batch * row, row};
  p.v = {base + (s.heads + s.kv_heads) * d, s.batch * row, row};
  p.out = {nullptr, s.batch * out_row, out_row};
  p.dout = p.out;
  p.seq = s.seq;
  p.heads = static_cast<int>(s.heads);
  p.kv_heads = static_cast<int>(s.kv_heads);
  p.scale = scale;
  p.scale_log2 = scale * 1.4426950408889634f;
  p.causal = s.causal;
  return p;
}

template <typename Kernel>
Status start(Kernel kernel, const KernelPlan& plan, const FlashParams& p, cudaStream_t stream) {
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  const dim3 grid(static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.grid_y));
  kernel<<<grid, static_cast<unsigned>(plan.block), static_cast<size_t>(plan.smem_bytes), stream>>>(p);
  return launched(plan.kernel);
}

}  // namespace

Status flash_forward(const AttentionForward& args, cudaStream_t stream) {
  MB_ASSIGN(const auto plan, plan_flash_forward(args.shape));
  FlashParams p = params(args.shape, args.scale, args.qkv);
  p.to_out = static_cast<bf16*>(args.out);
  p.lse = args.lse;
  return args.shape.head_dim == 64 ? start(flash_forward_kernel<64>, plan, p, stream)
                                   : start(flash_forward_kernel<128>, plan, p, stream);
}

int64_t flash_backward_workspace(const AttentionShape& s) {
  return s.batch * s.heads * s.seq * 4;
}

Status flash_backward(const AttentionBackward& args, cudaStream_t stream) {
  MB_ASSIGN(const auto kv, plan_flash_backward_kv(args.shape));
  MB_ASSIGN(const auto q, plan_flash_backward_q(args.shape));
  const AttentionShape& s = args.shape;
  FlashParams p = params(s, args.scale, args.qkv);
  auto* delta = static_cast<float*>(args.workspace);
  p.out.base = static_cast<const bf16*>(args.out);
  p.dout.base = static_cast<const bf16*>(args.dout);
  p.lse = const_cast<float*>(args.lse);
  p.delta = delta;
  p.dq = static_cast<bf16*>(args.dqkv);
  p.dk = p.dq + s.heads * s.head_dim;
  p.dv = p.dk + s.kv_heads * s.head_dim;
  const int64_t rows = s.batch * s.heads * s.seq;
  const auto blocks = static_cast<unsigned>((rows + 7) / 8);
  if (s.head_dim == 64) {
    flash_delta_kernel<64><<<blocks, 256, 0, stream>>>(p, delta, rows);
    MB_TRY(launched("flash_delta"));
    MB_TRY(start(flash_backward_kv_kernel<64>, kv, p, stream));
    return start(flash_backward_q_kernel<64>, q, p, stream);
  }
  flash_delta_kernel<128><<<blocks, 256, 0, stream>>>(p, delta, rows);
  MB_TRY(launched("flash_delta"));
  MB_TRY(start(flash_backward_kv_kernel<128>, kv, p, stream));
  return start(flash_backward_q_kernel<128>, q, p, stream);
}

}  // namespace mbb::trainer::cuda
