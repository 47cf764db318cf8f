// Launches of our own flash attention.
#include <cmath>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/flash_backward_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

FlashParams params(const AttentionShape& s, float scale, const void* qkv, const AttentionPacks& packs) {
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
  p.span = {packs.own, s.causal ? nullptr : packs.past, s.seq, s.window};
  return p;
}

// Windows are of causal attention.
Result<bool> bounded(const AttentionShape& s, const AttentionPacks& packs) {
  if (s.window > 0 && !s.causal)
    return fail(ErrorCode::kUnavailable, "flash attention: windows that look both ways",
                "use attention_backend = unfused");
  if (s.packs == 0) return s.window > 0;
  if (s.batch != 1) return fail(ErrorCode::kBadArgument, "flash attention: more than one pack a micro-batch");
  if (packs.own == nullptr || packs.past == nullptr)
    return fail(ErrorCode::kBadArgument, "flash attention: a pack without the rows of its sequences");
  return true;
}

template <typename Kernel>
Status start(Kernel kernel, const KernelPlan& plan, const FlashParams& p, cudaStream_t stream) {
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  const dim3 grid(static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.grid_y));
  kernel<<<grid, static_cast<unsigned>(plan.block), static_cast<size_t>(plan.smem_bytes), stream>>>(p);
  return launched(plan.kernel);
}

}  // namespace

namespace {

template <bool kBounded>
Status forward(const AttentionForward& args, const FlashParams& p, const KernelPlan& plan, cudaStream_t stream) {
  return args.shape.head_dim == 64 ? start(flash_forward_kernel<64, kBounded>, plan, p, stream)
                                   : start(flash_forward_kernel<128, kBounded>, plan, p, stream);
}

template <int kDim, bool kBounded>
Status backward(const AttentionBackward& args, const FlashParams& p, float* delta, cudaStream_t stream) {
  MB_ASSIGN(const auto kv, plan_flash_backward_kv(args.shape));
  MB_ASSIGN(const auto q, plan_flash_backward_q(args.shape));
  const int64_t rows = args.shape.batch * args.shape.heads * args.shape.seq;
  flash_delta_kernel<kDim><<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(p, delta, rows);
  MB_TRY(launched("flash_delta"));
  MB_TRY(start(flash_backward_kv_kernel<kDim, kBounded>, kv, p, stream));
  return start(flash_backward_q_kernel<kDim, kBounded>, q, p, stream);
}

}  // namespace

Status flash_forward(const AttentionForward& args, cudaStream_t stream) {
  MB_ASSIGN(const auto plan, plan_flash_forward(args.shape));
  MB_ASSIGN(const bool some, bounded(args.shape, args.packs));
  FlashParams p = params(args.shape, args.scale, args.qkv, args.packs);
  p.to_out = static_cast<bf16*>(args.out);
  p.lse = args.lse;
  return some ? forward<true>(args, p, plan, stream) : forward<false>(args, p, plan, stream);
}

int64_t flash_backward_workspace(const AttentionShape& s) {
  return s.batch * s.heads * s.seq * 4;
}

Status flash_backward(const AttentionBackward& args, cudaStream_t stream) {
  const AttentionShape& s = args.shape;
  MB_ASSIGN(const bool some, bounded(s, args.packs));
  FlashParams p = params(s, args.scale, args.qkv, args.packs);
  auto* delta = static_cast<float*>(args.workspace);
  p.out.base = static_cast<const bf16*>(args.out);
  p.dout.base = static_cast<const bf16*>(args.dout);
  p.lse = const_cast<float*>(args.lse);
  p.delta = delta;
  p.dq = static_cast<bf16*>(args.dqkv);
  p.dk = p.dq + s.heads * s.head_dim;
  p.dv = p.dk + s.kv_heads * s.head_dim;
  if (s.head_dim == 64)
    return some ? backward<64, true>(args, p, delta, stream) : backward<64, false>(args, p, delta, stream);
  return some ? backward<128, true>(args, p, delta, stream) : backward<128, false>(args, p, delta, stream);
}

}  // namespace mbb::trainer::cuda
