// Launch of grouped matrix products on Hopper: the operands' boxes, then one persistent kernel.
#include "trainer/ops/cuda/grouped_wgmma.h"

#include "trainer/ops/cuda/grouped_wgmma_kernel.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/tensor_map.h"

namespace mbb::trainer::cuda {
namespace {

// Boxes of 64 columns and as many rows, of a matrix of rows of the buffer and of the experts' weights.
constexpr int kBox = 64;
Result<CUtensorMap> rows_map(const void* data, int64_t rows, int64_t columns) {
  return bf16_map(data, {{columns, 2, kBox}, {rows, columns * 2, kBox}});
}
Result<CUtensorMap> weights_map(const void* data, const GroupedGemm& g) {
  return bf16_map(data, {{g.k, 2, kBox}, {g.n, g.k * 2, kBox}, {g.experts, g.n * g.k * 2, 1}});
}

struct Operands {
  CUtensorMap left{}, right{};
};

template <GroupedForm kForm, GroupedShare kShare, typename Out>
Status start(const GroupedGemm& g, const Operands& operands, void* out, bool accumulate, const Launch& launch) {
  const KernelPlan plan = plan_grouped(kForm, kShare, g.rows, g.experts, g.n, g.k, launch.sms);
  GroupedWork work;
  work.segments = g.segments;
  work.left_scale = g.a_scale, work.right_scale = g.b_scale;
  work.experts = static_cast<int>(g.experts);
  work.rows = static_cast<int>(g.n);
  work.columns = static_cast<int>(kForm == GroupedForm::kFprop ? g.n : g.k);
  work.depth = static_cast<int>(kForm == GroupedForm::kFprop ? g.k : g.n);
  const auto kernel = grouped_wgmma_kernel<kForm, kShare, Out>;
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kShare == GroupedShare::kNone ? 1u : 2u, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid_x));
  config.blockDim = dim3(static_cast<unsigned>(plan.block));
  config.dynamicSmemBytes = static_cast<size_t>(plan.smem_bytes);
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return ok(
      cudaLaunchKernelEx(&config, kernel, operands.left, operands.right, work, static_cast<Out*>(out), accumulate),
      plan.kernel);
}

// With the operand that two blocks share, or with none.
template <GroupedForm kForm, GroupedShare kShare, typename Out>
Status start_shared(const GroupedGemm& g, const Operands& operands, void* out, bool accumulate, const Launch& launch) {
  const bool share = g.kernel == GroupedKernel::kClusters && grouped_share(kForm, g.n, g.k) == kShare;
  return share ? start<kForm, kShare, Out>(g, operands, out, accumulate, launch)
               : start<kForm, GroupedShare::kNone, Out>(g, operands, out, accumulate, launch);
}

Status clear_unfilled(const GroupedGemm& g, int64_t columns, void* y, const Launch& launch) {
  clear_unfilled_kernel<<<static_cast<unsigned>(launch.sms.count), 1024, 0, launch.stream>>>(
      g.segments, static_cast<int>(g.experts), static_cast<int>(g.rows), static_cast<int>(columns),
      static_cast<bf16*>(y));
  return launched("clear_unfilled");
}

}  // namespace

bool grouped_on_hopper(const GroupedGemm& g, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  if (g.kernel == GroupedKernel::kPortable || g.element != Element::kBf16 || g.rows == 0 || g.n % 8 != 0 ||
      g.k % 8 != 0 || all % 16 != 0)
    return false;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

Status grouped_wgmma(GroupedForm form, const GroupedGemm& g, const void* left, const void* right, void* out,
                     bool accumulate, const Launch& launch) {
  Operands operands;
  const bool forward = form == GroupedForm::kFprop;
  MB_ASSIGN(operands.left, rows_map(left, g.rows, forward ? g.k : g.n));
  if (form == GroupedForm::kWgrad) {
    MB_ASSIGN(operands.right, rows_map(right, g.rows, g.k));
    using enum GroupedShare;
    return g.gradient == Element::kF32
               ? start_shared<GroupedForm::kWgrad, kRight, float>(g, operands, out, accumulate, launch)
               : start_shared<GroupedForm::kWgrad, kRight, bf16>(g, operands, out, accumulate, launch);
  }
  MB_ASSIGN(operands.right, weights_map(right, g));
  MB_TRY(clear_unfilled(g, forward ? g.n : g.k, out, launch));
  return forward ? start_shared<GroupedForm::kFprop, GroupedShare::kLeft, bf16>(g, operands, out, false, launch)
                 : start_shared<GroupedForm::kDgrad, GroupedShare::kLeft, bf16>(g, operands, out, false, launch);
}

}  // namespace mbb::trainer::cuda
