// Launch of grouped matrix products on Hopper: the operands' boxes, then one persistent kernel.
#include "trainer/ops/cuda/grouped_wgmma.h"

#include "trainer/ops/cuda/grouped_wgmma_kernel.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/tensor_map.h"

namespace mbb::trainer::cuda {
namespace {

// Rows that no expert fills become zero; a warp a row.
__global__ void clear_unfilled_kernel(const int32_t* segments, int experts, int rows, int columns, bf16* y) {
  const int lane = static_cast<int>(threadIdx.x & 31), warps = static_cast<int>(gridDim.x * blockDim.x / 32);
  for (int row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32); row < rows; row += warps) {
    bool filled = false;
    for (int e = lane; e < experts; e += 32) {
      const int offset = row - segments[e];
      filled = filled || (offset >= 0 && offset < segments[experts + e]);
    }
    if (__any_sync(0xffffffffu, filled)) continue;
    auto* to = reinterpret_cast<uint4*>(y + int64_t{row} * columns);
    for (int i = lane; i < columns / 8; i += 32) to[i] = make_uint4(0, 0, 0, 0);
  }
}

// A matrix of rows of the buffer; boxes of 64 columns.
Result<CUtensorMap> rows_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return bf16_map(data, {{columns, 2, 64}, {rows, columns * 2, box_rows}});
}
Result<CUtensorMap> weights_map(const void* data, const GroupedGemm& g, int box_rows) {
  return bf16_map(data, {{g.k, 2, 64}, {g.n, g.k * 2, box_rows}, {g.experts, g.n * g.k * 2, 1}});
}

template <GroupedForm kForm, typename Out>
Status start(const GroupedGemm& g, const CUtensorMap& left, const CUtensorMap& right, void* out, bool accumulate,
             const Launch& launch) {
  const KernelPlan plan = plan_grouped(kForm, g.rows, g.experts, g.n, g.k, launch.sms);
  const GroupedWork work = grouped_work(kForm, g);
  MB_TRY(ok(cudaFuncSetAttribute(grouped_wgmma_kernel<kForm, Out>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 plan.smem_bytes),
            plan.kernel));
  grouped_wgmma_kernel<kForm, Out>
      <<<static_cast<unsigned>(plan.grid_x), plan.block, static_cast<size_t>(plan.smem_bytes), launch.stream>>>(
          left, right, work, static_cast<Out*>(out), accumulate);
  return launched(plan.kernel);
}

}  // namespace

Status clear_unfilled(const GroupedGemm& g, int64_t columns, void* y, const Launch& launch) {
  if (g.keep) return {};
  clear_unfilled_kernel<<<static_cast<unsigned>(launch.sms.count), 1024, 0, launch.stream>>>(
      g.segments, static_cast<int>(g.experts), static_cast<int>(g.rows), static_cast<int>(columns),
      static_cast<bf16*>(y));
  return launched("clear_unfilled");
}

bool grouped_on_hopper(const GroupedGemm& g, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  if (g.portable || g.element != Element::kBf16 || g.rows == 0 || g.n % 8 != 0 || g.k % 8 != 0 || all % 16 != 0)
    return false;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

Status grouped_wgmma(GroupedForm form, const GroupedGemm& g, const void* left, const void* right, void* out,
                     bool accumulate, const Launch& launch) {
  if (form == GroupedForm::kWgrad) {
    MB_ASSIGN(const CUtensorMap dy, rows_map(left, g.rows, g.n, kGroupedDepth));
    MB_ASSIGN(const CUtensorMap x, rows_map(right, g.rows, g.k, kGroupedDepth));
    return g.gradient == Element::kF32 ? start<GroupedForm::kWgrad, float>(g, dy, x, out, accumulate, launch)
                                       : start<GroupedForm::kWgrad, bf16>(g, dy, x, out, accumulate, launch);
  }
  const bool forward = form == GroupedForm::kFprop;
  MB_TRY(clear_unfilled(g, forward ? g.n : g.k, out, launch));
  MB_ASSIGN(const CUtensorMap rows, rows_map(left, g.rows, forward ? g.k : g.n, kGroupedRows));
  MB_ASSIGN(const CUtensorMap weights, weights_map(right, g, forward ? kGroupedColumns : kGroupedDepth));
  return forward ? start<GroupedForm::kFprop, bf16>(g, rows, weights, out, accumulate, launch)
                 : start<GroupedForm::kDgrad, bf16>(g, rows, weights, out, accumulate, launch);
}

}  // namespace mbb::trainer::cuda
