// Block-scaled operands: quantization with a row and a column copy, and the GEMM of such operands.
//
// A quantized tensor [rows, cols] is two copies, each with its inner dimension last: q [.., cols] in blocks along cols
// and qᵀ [cols, rows] in blocks along rows. Blocks of 1 x n differ between the two, so that both come from the value
// itself; square blocks are the same, so that the second is a transpose of the first. Scales f32, E8M0 or E4M3:
// [rows of the copy, inner / block], or [rows / block, inner / block] of square blocks; a last block may be partial.
// E4M3 scales stand under an inverse scale f32 [1] of each copy.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

int64_t blocks(int64_t extent, int64_t block) {
  return (extent + block - 1) / block;
}

DType scale_dtype(BlockScale scale) {
  return scale == BlockScale::kE8M0 ? DType::kE8M0 : scale == BlockScale::kE4M3 ? DType::kE4M3 : DType::kF32;
}

Shape scales_shape(int64_t rows, int64_t inner, int64_t block, bool square) {
  return Shape{square ? blocks(rows, block) : rows, blocks(inner, block)};
}

// in: x [, samples i32 [b], step record]; out: q, scales, qᵀ, scales of qᵀ [, inverse scales f32 [1] of both copies].
Result<std::vector<TensorSpec>> quantize_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<QuantizeBlocksAttrs>(attrs);
  if (a.to != DType::kE4M3 && a.to != DType::kE5M2 && a.to != DType::kE2M1)
    return fail(ErrorCode::kBadArgument, fmt::format("blocks of {}; e4m3, e5m2 or e2m1 are quantized", name(a.to)));
  if (a.stochastic && in.size() != 3)
    return fail(ErrorCode::kBadArgument, "stochastic rounding needs samples and the step record");
  const Shape& x = in[0]->shape;
  const DType scales = scale_dtype(a.scale);
  std::vector<TensorSpec> out{{x, a.to},
                              {scales_shape(x.rows(), x.cols(), a.block, a.square), scales},
                              {Shape{x.cols(), x.rows()}, a.to},
                              {scales_shape(x.cols(), x.rows(), a.block, a.square), scales}};
  if (a.scale == BlockScale::kE4M3) out.insert(out.end(), 2, {Shape{1}, DType::kF32});
  return out;
}

// in: A [m, k], B [n, k], their scales [, their inverse scales f32 [1]] [, C]; out: D = A·Bᵀ (+ C), in attrs.out.
Result<std::vector<TensorSpec>> gemm_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<GemmBlocksAttrs>(attrs);
  const Shape& left = in[0]->shape;
  const Shape& right = in[1]->shape;
  if (left.cols() != right.cols())
    return fail(ErrorCode::kBadArgument, fmt::format("inner dimensions differ: {} · {}ᵀ", left.str(), right.str()));
  if (a.a_square && a.b_square) return fail(ErrorCode::kBadArgument, "at most one operand of a GEMM has square blocks");
  for (const auto& [scales, of, square] :
       {std::tuple{in[2], &left, a.a_square}, std::tuple{in[3], &right, a.b_square}}) {
    const Shape wanted = scales_shape(of->rows(), of->cols(), a.block, square);
    if (scales->shape == wanted) continue;
    return fail(ErrorCode::kBadArgument,
                fmt::format("scales {} for {} in blocks of {}", scales->shape.str(), of->str(), a.block));
  }
  if (a.accumulate && in.back()->shape.elements() != left.rows() * right.rows())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is added to a product of {} x {}", in.back()->shape.str(), left.rows(), right.rows()));
  return std::vector<TensorSpec>{{left.with_last(right.rows()), a.out}};
}

double gemm_flops(const OpView& op) {
  return 2.0 * static_cast<double>(op.in(0).shape.elements()) * static_cast<double>(op.in(1).shape.rows());
}

QuantizeBlocksAttrs form(DType to, BlockScale scale, int block, bool square = false) {
  return {.to = to, .scale = scale, .block = block, .square = square};
}

void quantize_cases(std::vector<OpCase>& all) {
  const std::vector<CaseInput> x{{{80, 2, 144}, DType::kBf16}};
  const auto add = [&](const char* name, const QuantizeBlocksAttrs& attrs, std::vector<CaseInput> in) {
    all.push_back({name, &kQuantizeBlocks, std::move(in), attrs, false});
  };
  add("quantize_blocks/1x128", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128), x);
  add("quantize_blocks/1x128-f32", form(DType::kE4M3, BlockScale::kF32, 128), x);
  add("quantize_blocks/128x128", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, true), x);
  add("quantize_blocks/mxfp8", form(DType::kE4M3, BlockScale::kE8M0, 32), x);
  add("quantize_blocks/nvfp4", form(DType::kE2M1, BlockScale::kE4M3, 16), x);
  add("quantize_blocks/nvfp4-square", form(DType::kE2M1, BlockScale::kE4M3, 16, true), x);
  QuantizeBlocksAttrs gradient = form(DType::kE2M1, BlockScale::kE4M3, 16);
  gradient.rotate = gradient.stochastic = true;
  gradient.rotate_signs = 0x5a3c;
  gradient.stream = 77;
  add("quantize_blocks/nvfp4-gradient", gradient,
      {x[0], {{2}, DType::kI32, Fill::kInts, 9}, {{4}, DType::kF32, Fill::kPositive}});
}

void gemm_cases(std::vector<OpCase>& all) {
  const auto fp8 = [](Shape shape) { return CaseInput{shape, DType::kE4M3}; };
  const auto scales = [](Shape shape) { return CaseInput{shape, DType::kF32, Fill::kPositive}; };
  all.push_back({"gemm_blocks/fprop",
                 &kGemmBlocks,
                 {fp8({24, 2, 256}), fp8({144, 256}), scales({48, 2}), scales({2, 2})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  all.push_back({"gemm_blocks/residual",
                 &kGemmBlocks,
                 {fp8({24, 2, 256}), fp8({144, 256}), scales({48, 2}), scales({2, 2}), {{24, 2, 144}, DType::kBf16}},
                 GemmBlocksAttrs{.accumulate = true, .b_square = true},
                 false});
  all.push_back({"gemm_blocks/wgrad-accumulate",
                 &kGemmBlocks,
                 {fp8({64, 256}), fp8({80, 256}), scales({64, 2}), scales({80, 2}), {{64, 80}}},
                 GemmBlocksAttrs{.accumulate = true, .out = DType::kF32},
                 false});
}

}  // namespace

const OpKind kQuantizeBlocks{.name = "quantize_blocks",
                             .shape = quantize_shape,
                             .cpu = cpu_quantize_blocks,
                             .cuda = "quantize_blocks",
                             .cases = quantize_cases};
const OpKind kGemmBlocks{.name = "gemm_blocks",
                         .shape = gemm_shape,
                         .flops = gemm_flops,
                         .cpu = cpu_gemm_blocks,
                         .cuda = "gemm_blocks",
                         .cases = gemm_cases,
                         .model_flops = true};

}  // namespace mbb::trainer
