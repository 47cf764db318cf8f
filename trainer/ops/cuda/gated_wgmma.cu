// Launch of products with SwiGLU in their epilogue: the operands' boxes, then one persistent kernel.
#include "trainer/ops/cuda/gated_wgmma.h"

#include "trainer/ops/cuda/gated_wgmma_kernel.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/tensor_map.h"

namespace mbb::trainer::cuda {
namespace {

// A matrix in boxes of 64 columns.
Result<CUtensorMap> matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return bf16_map(data, {{columns, 2, 64}, {rows, columns * 2, box_rows}});
}

template <bool kForward>
Status start(const GatedGemm& g, const CUtensorMap& left, const CUtensorMap& right, const GatedWork& work,
             const Launch& launch) {
  const KernelPlan plan = plan_gated(kForward, g, launch.sms);
  MB_TRY(ok(
      cudaFuncSetAttribute(gated_wgmma_kernel<kForward>, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes),
      plan.kernel));
  gated_wgmma_kernel<kForward>
      <<<static_cast<unsigned>(plan.grid_x), plan.block, static_cast<size_t>(plan.smem_bytes), launch.stream>>>(
          left, right, work);
  return launched(plan.kernel);
}

GatedWork work_of(const GatedGemm& g, const void* from, void* gate_up, void* y) {
  return {static_cast<int>(g.tokens),     static_cast<int>(g.ffn),     static_cast<int>(g.hidden),
          static_cast<const bf16*>(from), static_cast<bf16*>(gate_up), static_cast<bf16*>(y)};
}

}  // namespace

bool gated_on_hopper(const GatedGemm& g, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  if (g.tokens == 0 || g.hidden % 8 != 0 || g.ffn % 8 != 0 || all % 16 != 0) return false;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

Status gated_forward(const GatedGemm& g, const void* x, const void* w, void* gate_up, void* y, const Launch& launch) {
  MB_ASSIGN(const CUtensorMap left, matrix_map(x, g.tokens, g.hidden, kGroupedRows));
  MB_ASSIGN(const CUtensorMap right, matrix_map(w, 2 * g.ffn, g.hidden, kGroupedColumns / 2));
  return start<true>(g, left, right, work_of(g, nullptr, gate_up, y), launch);
}

Status gated_backward(const GatedGemm& g, const void* dy, const void* w, const void* gate_up, void* dgate_up,
                      const Launch& launch) {
  MB_ASSIGN(const CUtensorMap left, matrix_map(dy, g.tokens, g.hidden, kGroupedRows));
  MB_ASSIGN(const CUtensorMap right, matrix_map(w, g.hidden, g.ffn, kGroupedDepth));
  return start<false>(g, left, right, work_of(g, gate_up, dgate_up, nullptr), launch);
}

}  // namespace mbb::trainer::cuda
