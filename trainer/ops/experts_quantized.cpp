// Products of experts' rows and weights with quantized operands: a scale for the whole buffer and for all local
// experts' weights, or for blocks: those of rows run over all of them, every expert's weight has blocks of its own
// (block_table.h). Operands are the copies whose inner dimension is last, as for any
// quantized GEMM, so that dgrad reads the weights as [k, experts · n], wgrad both operands as [.., rows].
#include <fmt/core.h>

#include "trainer/ops/block_table.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// Scales of blocks, which stand behind the operands.
Status check_scales(Inputs in, const GroupedQuantizedAttrs& a, int64_t line_stack, int64_t inner_stack) {
  if (a.block == 0) return {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const Shape &of = in[i]->shape, &scales = in[2 + i]->shape;
    const BlockTable table{of.rows(),
                           of.cols(),
                           a.block,
                           i == 0 ? a.a_square : a.b_square,
                           i == 0 ? 1 : line_stack,
                           i == 0 ? 1 : inner_stack};
    if (scales == Shape{table.scale_lines(), table.across()}) continue;
    return fail(ErrorCode::kBadArgument,
                fmt::format("scales {} for {} in blocks of {}", scales.str(), of.str(), a.block));
  }
  return {};
}

// Blocks of scales and transposed codes run along the rows, so that an expert's rows are one piece before they are
// quantized.
Status check_pieces(Inputs in, const GroupedQuantizedAttrs& a) {
  const bool with_inverse = a.block > 0 && in[2]->dtype == DType::kE4M3;
  const int64_t pieces = in[with_inverse ? 6 : 4]->shape[1];
  if (pieces == a.local_experts) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} pieces of {} quantized experts", pieces, a.local_experts));
}

Status check(Inputs in, const GroupedQuantizedAttrs& a, int64_t line_stack, int64_t inner_stack) {
  MB_TRY(check_scales(in, a, line_stack, inner_stack));
  return check_pieces(in, a);
}

// in: x [rows, k], weights [experts, n, k], their scales [, their inverse scales], then as grouped_gemm from its third
// operand on; out: [rows, n] in attrs.out.
Result<std::vector<TensorSpec>> fprop_shape(Inputs in, const Attrs& attrs) {
  if (in[1]->shape.rank() != 3 || in[0]->shape.cols() != in[1]->shape[2])
    return fail(ErrorCode::kBadArgument, "grouped product of " + in[0]->shape.str() + " and " + in[1]->shape.str());
  const auto& a = std::get<GroupedQuantizedAttrs>(attrs);
  MB_TRY(check(in, a, in[1]->shape[0], 1));
  return std::vector<TensorSpec>{{Shape{in[0]->shape[0], in[1]->shape[1]}, a.out}};
}
// in: dy [rows, n], weights [k, experts · n], ..; out: dx [rows, k].
Result<std::vector<TensorSpec>> dgrad_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<GroupedQuantizedAttrs>(attrs);
  if (in[0]->shape.cols() * a.local_experts != in[1]->shape.cols())
    return fail(ErrorCode::kBadArgument, "grouped gradient of " + in[0]->shape.str() + " by " + in[1]->shape.str());
  MB_TRY(check(in, a, 1, a.local_experts));
  return std::vector<TensorSpec>{{Shape{in[0]->shape[0], in[1]->shape[0]}, a.out}};
}
// in: dy [n, rows], x [k, rows], .. [, main grad]; out: main grad [experts, n, k].
Result<std::vector<TensorSpec>> wgrad_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<GroupedQuantizedAttrs>(attrs);
  if (in[0]->shape.cols() != in[1]->shape.cols())
    return fail(ErrorCode::kBadArgument, "grouped wgrad of " + in[0]->shape.str() + " and " + in[1]->shape.str());
  MB_TRY(check(in, a, 1, 1));
  return std::vector<TensorSpec>{{Shape{a.local_experts, in[0]->shape[0], in[1]->shape[0]}, a.out}};
}

double flops(const OpView& op, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(std::get<GroupedQuantizedAttrs>(op.op.attrs).grouped.useful_rows) *
         static_cast<double>(n * k);
}
double fprop_flops(const OpView& op) {
  return flops(op, op.in(1).shape[1], op.in(1).shape[2]);
}
double dgrad_flops(const OpView& op) {
  return flops(op, op.in(0).shape.cols(), op.in(1).shape[0]);
}
double wgrad_flops(const OpView& op) {
  return flops(op, op.in(0).shape[0], op.in(1).shape[0]);
}

void cases(std::vector<OpCase>& all) {
  const auto fp8 = [](Shape shape) { return CaseInput{shape, DType::kE4M3}; };
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive}, segments{{2, 3}, DType::kI32, Fill::kSegments, 32};
  GroupedQuantizedAttrs a;
  a.grouped.useful_rows = 32;
  a.local_experts = 3;
  all.push_back({"grouped_gemm_quantized/fprop",
                 &kGroupedGemmQuantized,
                 {fp8({32, 48}), fp8({3, 16, 48}), scales, scales, segments},
                 a,
                 false});
  all.push_back({"grouped_gemm_quantized/dgrad",
                 &kGroupedGemmQuantizedDgrad,
                 {fp8({32, 16}), fp8({48, 48}), scales, scales, segments},
                 a,
                 false});
  a.out = DType::kF32;
  all.push_back({"grouped_gemm_quantized/wgrad",
                 &kGroupedGemmQuantizedWgrad,
                 {fp8({16, 32}), fp8({48, 32}), scales, scales, segments},
                 a,
                 false});
  // Blocks of 128: three experts' weights of 144 x 208, every side partial, over 32 rows.
  const auto blocks = [](Shape shape) { return CaseInput{shape, DType::kF32, Fill::kPositive}; };
  a.block = 128;
  all.push_back({"grouped_gemm_quantized/wgrad-blocks",
                 &kGroupedGemmQuantizedWgrad,
                 {fp8({144, 32}), fp8({208, 32}), blocks({144, 1}), blocks({208, 1}), segments},
                 a,
                 false});
  a.out = DType::kBf16;
  a.b_square = true;
  all.push_back({"grouped_gemm_quantized/fprop-blocks",
                 &kGroupedGemmQuantized,
                 {fp8({32, 208}), fp8({3, 144, 208}), blocks({32, 2}), blocks({6, 2}), segments},
                 a,
                 false});
  all.push_back({"grouped_gemm_quantized/dgrad-blocks",
                 &kGroupedGemmQuantizedDgrad,
                 {fp8({32, 144}), fp8({208, 432}), blocks({32, 2}), blocks({2, 6}), segments},
                 a,
                 false});
}

}  // namespace

const OpKind kGroupedGemmQuantized{.name = "grouped_gemm_quantized",
                                   .shape = fprop_shape,
                                   .flops = fprop_flops,
                                   .cpu = cpu_grouped_gemm_quantized,
                                   .cuda = "grouped_gemm_quantized",
                                   .cases = cases,
                                   .model_flops = true};
const OpKind kGroupedGemmQuantizedDgrad{.name = "grouped_gemm_quantized_dgrad",
                                        .shape = dgrad_shape,
                                        .flops = dgrad_flops,
                                        .cpu = cpu_grouped_gemm_quantized_dgrad,
                                        .cuda = "grouped_gemm_quantized_dgrad",
                                        .model_flops = true};
const OpKind kGroupedGemmQuantizedWgrad{.name = "grouped_gemm_quantized_wgrad",
                                        .shape = wgrad_shape,
                                        .flops = wgrad_flops,
                                        .cpu = cpu_grouped_gemm_quantized_wgrad,
                                        .cuda = "grouped_gemm_quantized_wgrad",
                                        .model_flops = true};

}  // namespace mbb::trainer
