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

BlockScales scales_of(GroupedForm form, const GroupedFp8& f) {
  const auto blocks = [](int64_t side) { return static_cast<int>((side + kGroupedFp8Depth - 1) / kGroupedFp8Depth); };
  const GroupedGemm& g = f.g;
  BlockScales s;
  s.left = f.left_blocks, s.right = f.right_blocks;
  const bool forward = form == GroupedForm::kFprop, wgrad = form == GroupedForm::kWgrad;
  s.left_lines = static_cast<int>(wgrad ? g.n : g.rows);
  s.left_across = blocks(wgrad ? g.rows : forward ? g.k : g.n);
  s.right_of_expert = blocks(g.n);
  s.right_across = form == GroupedForm::kDgrad ? static_cast<int>(g.experts) * blocks(g.n) : s.left_across;
  return s;
}

template <GroupedForm kForm, Fp8Sum kSum, bool kLeftE5m2, typename Out>
Status start(const GroupedFp8& f, const Maps& maps, void* out, bool accumulate, const Launch& launch) {
  const GroupedGemm& g = f.g;
  const KernelPlan plan = plan_grouped_fp8(kForm, f.fast, g.rows, g.experts, g.n, g.k, launch.sms);
  const GroupedWork work = grouped_work(kForm, g);
  const auto kernel = grouped_fp8_kernel<kForm, kSum, kLeftE5m2, Out>;
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  kernel<<<static_cast<unsigned>(plan.grid_x), plan.block, static_cast<size_t>(plan.smem_bytes), launch.stream>>>(
      maps.left, maps.right, work, scales_of(kForm, f), static_cast<Out*>(out), accumulate);
  return launched(plan.kernel);
}

template <Fp8Sum kSum, bool kLeftE5m2>
Status start_backward(GroupedForm form, const GroupedFp8& f, const Maps& maps, void* out, bool accumulate,
                      const Launch& launch) {
  if (form == GroupedForm::kDgrad)
    return start<GroupedForm::kDgrad, kSum, kLeftE5m2, bf16>(f, maps, out, accumulate, launch);
  return f.g.gradient == Element::kF32
             ? start<GroupedForm::kWgrad, kSum, kLeftE5m2, float>(f, maps, out, accumulate, launch)
             : start<GroupedForm::kWgrad, kSum, kLeftE5m2, bf16>(f, maps, out, accumulate, launch);
}

Status start_forward(const GroupedFp8& f, const Maps& maps, void* out, const Launch& launch) {
  if (f.left_blocks != nullptr)
    return start<GroupedForm::kFprop, Fp8Sum::kBlocks, false, bf16>(f, maps, out, false, launch);
  return f.fast ? start<GroupedForm::kFprop, Fp8Sum::kFast, false, bf16>(f, maps, out, false, launch)
                : start<GroupedForm::kFprop, Fp8Sum::kPlain, false, bf16>(f, maps, out, false, launch);
}

}  // namespace

bool grouped_fp8_takes(GroupedForm form, const GroupedFp8& f, std::initializer_list<const void*> addresses) {
  const GroupedGemm& g = f.g;
  uintptr_t all = 0;
  for (const void* p : addresses) all |= reinterpret_cast<uintptr_t>(p);
  const bool forward = form == GroupedForm::kFprop, blocks = f.left_blocks != nullptr;
  if (f.right != Element::kE4m3 || (f.left != Element::kE4m3 && f.left != Element::kE5m2)) return false;
  if (f.left == Element::kE5m2 && (forward || blocks)) return false;
  if (f.fast && (!forward || blocks)) return false;
  if (!blocks && g.a_scale == nullptr) return false;
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
  if (forward) return start_forward(f, maps, out, launch);
  if (f.left_blocks != nullptr) return start_backward<Fp8Sum::kBlocks, false>(form, f, maps, out, accumulate, launch);
  return f.left == Element::kE5m2 ? start_backward<Fp8Sum::kPlain, true>(form, f, maps, out, accumulate, launch)
                                  : start_backward<Fp8Sum::kPlain, false>(form, f, maps, out, accumulate, launch);
}

}  // namespace mbb::trainer::cuda
