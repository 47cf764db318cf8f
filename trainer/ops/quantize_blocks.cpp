// Block-scaled operands: quantization with a row and a column copy, and the GEMM of such operands.
//
// A quantized tensor [rows, cols] is two copies, each with its inner dimension last: q [.., cols] in blocks along cols
// and qᵀ [cols, rows] in blocks along rows. Blocks of 1 x n differ between the two, so that both come from the value
// itself; square blocks are the same, so that the second is a transpose of the first. Scales f32, E8M0 or E4M3:
// block_table.h has their shape; a last block may be partial. E4M3 scales stand under an inverse scale f32 [1] of each
// copy.
#include <fmt/core.h>

#include "trainer/ops/block_table.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

DType scale_dtype(BlockScale scale) {
  return scale == BlockScale::kE8M0 ? DType::kE8M0 : scale == BlockScale::kE4M3 ? DType::kE4M3 : DType::kF32;
}

Shape scales_shape(const BlockTable& table) {
  return Shape{table.scale_lines(), table.across()};
}

// in: x [, samples i32 [b], step record]; out: q, scales, qᵀ, scales of qᵀ [, inverse scales f32 [1] of both copies].
Result<std::vector<TensorSpec>> quantize_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<QuantizeBlocksAttrs>(attrs);
  if (a.to != DType::kE4M3 && a.to != DType::kE5M2 && a.to != DType::kE2M1)
    return fail(ErrorCode::kBadArgument, fmt::format("blocks of {}; e4m3, e5m2 or e2m1 are quantized", name(a.to)));
  if (a.stochastic && in.size() != 3)
    return fail(ErrorCode::kBadArgument, "stochastic rounding needs samples and the step record");
  const Shape& x = in[0]->shape;
  if (a.stack < 1 || x.rows() % a.stack != 0 || (a.stack > 1 && (a.rotate || a.stochastic)))
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is no stack of {} weights to be rounded to nearest", x.str(), a.stack));
  const BlockTable rows{x.rows(), x.cols(), a.block, a.square, a.stack, 1};
  const BlockTable columns{x.cols(), x.rows(), a.block, a.square, 1, a.stack};
  const DType scales = scale_dtype(a.scale);
  std::vector<TensorSpec> out{
      {x, a.to}, {scales_shape(rows), scales}, {Shape{x.cols(), x.rows()}, a.to}, {scales_shape(columns), scales}};
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
    const Shape wanted = scales_shape({of->rows(), of->cols(), a.block, square});
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
  add("quantize_blocks/1x128-tall", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128), {{{576, 2, 136}, DType::kBf16}});
  add("quantize_blocks/128x128", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, true), x);
  QuantizeBlocksAttrs stacked = form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, true);
  stacked.stack = 3;  // experts of 144 rows: the second's first block begins in the middle of a tile
  const std::vector<CaseInput> experts{{{3, 144, 80}, DType::kBf16}};
  add("quantize_blocks/128x128-stack", stacked, experts);
  stacked.square = false;
  add("quantize_blocks/1x128-stack", stacked, experts);
  add("quantize_blocks/mxfp8", form(DType::kE4M3, BlockScale::kE8M0, 32), x);
  add("quantize_blocks/mxfp8-whole-tiles", form(DType::kE4M3, BlockScale::kE8M0, 32), {{{128, 2, 384}, DType::kBf16}});
  // So many tiles that their scales are gathered.
  stacked.stack = 2048;
  const std::vector<CaseInput> many{{{2048, 16, 136}, DType::kBf16}};
  add("quantize_blocks/1x128-many", stacked, many);
  QuantizeBlocksAttrs many_mx = form(DType::kE4M3, BlockScale::kE8M0, 32);
  many_mx.stack = 2048;
  add("quantize_blocks/mxfp8-many", many_mx, many);
  add("quantize_blocks/nvfp4", form(DType::kE2M1, BlockScale::kE4M3, 16), x);
  add("quantize_blocks/nvfp4-square", form(DType::kE2M1, BlockScale::kE4M3, 16, true), x);
  add("quantize_blocks/nvfp4-tiles", form(DType::kE2M1, BlockScale::kE4M3, 16), {{{128, 2, 264}, DType::kBf16}});
  QuantizeBlocksAttrs gradient = form(DType::kE2M1, BlockScale::kE4M3, 16);
  gradient.rotate = gradient.stochastic = true;
  gradient.rotate_signs = 0x5a3c;
  gradient.stream = 77;
  add("quantize_blocks/nvfp4-gradient", gradient,
      {x[0], {{2}, DType::kI32, Fill::kInts, 9}, {{4}, DType::kF32, Fill::kPositive}});
  add("quantize_blocks/nvfp4-gradient-tiles", gradient,
      {{{576, 2, 136}, DType::kBf16}, {{2}, DType::kI32, Fill::kInts, 9}, {{4}, DType::kF32, Fill::kPositive}});
  gradient.rotate = false;
  add("quantize_blocks/nvfp4-rounded", gradient,
      {x[0], {{2}, DType::kI32, Fill::kInts, 9}, {{4}, DType::kF32, Fill::kPositive}});
  gradient.rotate = true, gradient.stochastic = false;
  add("quantize_blocks/nvfp4-rotated", gradient, {{{128, 2, 264}, DType::kBf16}});
  QuantizeBlocksAttrs squares = form(DType::kE2M1, BlockScale::kE4M3, 16, true);
  squares.stack = 3;
  add("quantize_blocks/nvfp4-square-stack", squares, experts);
}

void gemm_cases(std::vector<OpCase>& all) {
  const auto fp8 = [](Shape shape) { return CaseInput{shape, DType::kE4M3}; };
  const auto scales = [](Shape shape) { return CaseInput{shape, DType::kF32, Fill::kPositive}; };
  all.push_back({"gemm_blocks/fprop",
                 &kGemmBlocks,
                 {fp8({24, 2, 256}), fp8({144, 256}), scales({48, 2}), scales({2, 2})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  // Sides that 128 does not divide, as DeepSeek-V3's key of 64 rows has them: fprop writes the partial side, dgrad
  // contracts over it and wgrad writes it again; tokens are partial in wgrad's inner dimension.
  all.push_back({"gemm_blocks/partial-fprop",
                 &kGemmBlocks,
                 {fp8({72, 2, 336}), fp8({64, 336}), scales({144, 3}), scales({1, 3})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  all.push_back({"gemm_blocks/partial-dgrad",
                 &kGemmBlocks,
                 {fp8({72, 2, 64}), fp8({336, 64}), scales({144, 1}), scales({3, 1})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  all.push_back({"gemm_blocks/partial-wgrad",
                 &kGemmBlocks,
                 {fp8({64, 144}), fp8({336, 144}), scales({64, 2}), scales({336, 2})},
                 GemmBlocksAttrs{.out = DType::kF32},
                 false});
  all.push_back({"gemm_blocks/partial-wgrad-accumulate",
                 &kGemmBlocks,
                 {fp8({208, 144}), fp8({336, 144}), scales({208, 2}), scales({336, 2}), {{208, 336}}},
                 GemmBlocksAttrs{.accumulate = true, .out = DType::kF32},
                 false});
  all.push_back({"gemm_blocks/partial-residual",
                 &kGemmBlocks,
                 {fp8({72, 2, 208}), fp8({144, 208}), scales({144, 2}), scales({2, 2}), {{72, 2, 144}, DType::kBf16}},
                 GemmBlocksAttrs{.accumulate = true, .b_square = true},
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
                             .cases = quantize_cases,
                             .optional_outputs = 6};
const OpKind kGemmBlocks{.name = "gemm_blocks",
                         .shape = gemm_shape,
                         .flops = gemm_flops,
                         .cpu = cpu_gemm_blocks,
                         .cuda = "gemm_blocks",
                         .cases = gemm_cases,
                         .model_flops = true};

}  // namespace mbb::trainer
