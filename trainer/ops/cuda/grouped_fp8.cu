// Launch of grouped matrix products of FP8 codes: the operands' boxes, then one persistent kernel.
#include <algorithm>

#include "trainer/ops/cuda/grouped_fp8_kernel.cuh"
#include "trainer/ops/cuda/grouped_wgmma.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/tensor_map.h"

namespace mbb::trainer::cuda {
namespace {

// Rows of codes; boxes of 128 of them.
Result<CUtensorMap> lines_map(const void* codes, int64_t lines, int64_t inner, int box_lines) {
  return codes_map(codes, {{inner, 1, kGroupedFp8Depth}, {lines, inner, box_lines}});
}

struct Maps {
  CUtensorMap left, right;
};
Result<Maps> maps_of(GroupedForm form, const GroupedFp8& f, const void* left, const void* right) {
  const GroupedGemm& g = f.g;
  const int columns = grouped_fp8_columns(f.fast);
  Maps maps{};
  switch (form) {
    case GroupedForm::kFprop: {
      MB_ASSIGN(maps.left, lines_map(left, g.rows, g.k, kGroupedRows));
      MB_ASSIGN(maps.right,
                codes_map(right, {{g.k, 1, kGroupedFp8Depth}, {g.n, g.k, columns}, {g.experts, g.n * g.k, 1}}));
      break;
    }
    case GroupedForm::kDgrad: {
      MB_ASSIGN(maps.left, lines_map(left, g.rows, g.n, kGroupedRows));
      MB_ASSIGN(maps.right, lines_map(right, g.k, g.experts * g.n, columns));
      break;
    }
    case GroupedForm::kWgrad: {
      MB_ASSIGN(maps.left, lines_map(left, g.n, g.rows, kGroupedRows));
      MB_ASSIGN(maps.right, lines_map(right, g.k, g.rows, columns));
      break;
    }
  }
  return maps;
}

template <GroupedForm kForm, bool kFast, bool kLeftE5m2, typename Out>
Status start(const GroupedFp8& f, const Maps& maps, void* out, bool accumulate, const Launch& launch) {
  const GroupedGemm& g = f.g;
  const KernelPlan plan = plan_grouped_fp8(kForm, kFast, g.rows, g.experts, g.n, g.k, launch.sms);
  GroupedWork work;
  work.segments = g.segments;
  work.left_scale = g.a_scale, work.right_scale = g.b_scale;
  work.experts = static_cast<int>(g.experts);
  work.rows = static_cast<int>(g.n);
  work.columns = static_cast<int>(kForm == GroupedForm::kFprop ? g.n : g.k);
  work.depth = static_cast<int>(kForm == GroupedForm::kFprop ? g.k : g.n);
  const auto kernel = grouped_fp8_kernel<kForm, kFast, kLeftE5m2, Out>;
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  kernel<<<static_cast<unsigned>(plan.grid_x), plan.block, static_cast<size_t>(plan.smem_bytes), launch.stream>>>(
      maps.left, maps.right, work, static_cast<Out*>(out), accumulate);
  return launched(plan.kernel);
}

template <bool kLeftE5m2>
Status start_backward(GroupedForm form, const GroupedFp8& f, const Maps& maps, void* out, bool accumulate,
                      const Launch& launch) {
  if (form == GroupedForm::kDgrad)
    return start<GroupedForm::kDgrad, false, kLeftE5m2, bf16>(f, maps, out, accumulate, launch);
  return f.g.gradient == Element::kF32
             ? start<GroupedForm::kWgrad, false, kLeftE5m2, float>(f, maps, out, accumulate, launch)
             : start<GroupedForm::kWgrad, false, kLeftE5m2, bf16>(f, maps, out, accumulate, launch);
}

}  // namespace

bool grouped_fp8_takes(GroupedForm form, const GroupedFp8& f, std::initializer_list<const void*> addresses) {
  const GroupedGemm& g = f.g;
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  const bool forward = form == GroupedForm::kFprop;
  if (g.a_scale == nullptr || f.right != Element::kE4m3 || (f.left != Element::kE4m3 && f.left != Element::kE5m2) ||
      (forward && f.left != Element::kE4m3) || (!forward && f.fast))
    return false;
  const int64_t innermost = form == GroupedForm::kWgrad ? g.rows : 16;
  if (g.rows == 0 || g.n % 16 != 0 || g.k % 16 != 0 || innermost % 16 != 0 || all % 16 != 0) return false;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

Status grouped_fp8(GroupedForm form, const GroupedFp8& f, const void* left, const void* right, void* out,
                   bool accumulate, const Launch& launch) {
  const bool forward = form == GroupedForm::kFprop;
  if (form != GroupedForm::kWgrad) MB_TRY(clear_unfilled(f.g, forward ? f.g.n : f.g.k, out, launch));
  MB_ASSIGN(const Maps maps, maps_of(form, f, left, right));
  if (forward)
    return f.fast ? start<GroupedForm::kFprop, true, false, bf16>(f, maps, out, accumulate, launch)
                  : start<GroupedForm::kFprop, false, false, bf16>(f, maps, out, accumulate, launch);
  return f.left == Element::kE5m2 ? start_backward<true>(form, f, maps, out, accumulate, launch)
                                  : start_backward<false>(form, f, maps, out, accumulate, launch);
}

}  // namespace mbb::trainer::cuda
