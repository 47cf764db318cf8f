// What overlapping tensor-parallel collectives with matrix products needs: products of blocks of rows, and FP8
// messages.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: A, B [, the result that other blocks were written to]; out: A·B or A·Bᵀ, of the blocks of A or into those of the
// whole result.
Result<std::vector<TensorSpec>> of_blocks(std::vector<TensorSpec> product, const Shape& x, const RowBlocks& a) {
  const int64_t a_row = x.rows() / x[0];  // rows of the matrix in one of dimension 0
  const int64_t part = a.blocks * a.rows;
  const int64_t has = x.rows();
  const int64_t wants = a.of_result ? part : a.whole_rows;
  const int64_t end = a.ring > 0 ? a.ring * a.stride : (a.blocks - 1) * a.stride + a.first + a.rows;
  if (has != wants || end > a.whole_rows || part % a_row != 0 || a.whole_rows % a_row != 0 ||
      (a.ring > 0 && a.blocks != 1))
    return fail(ErrorCode::kBadArgument, fmt::format("{} blocks of {} rows, stride {}, from {}, of {} rows with A {}",
                                                     a.blocks, a.rows, a.stride, a.first, a.whole_rows, x.str()));
  product[0].shape[0] = (a.of_result ? a.whole_rows : part) / a_row;
  return product;
}

Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<GemmRowsAttrs>(attrs);
  if (a.gemm.trans_a || a.gemm.accumulate)
    return fail(ErrorCode::kBadArgument, "blocks of rows are of products that keep A's rows");
  MB_ASSIGN(std::vector<TensorSpec> out, kGemm.shape(in.first(2), a.gemm));
  return of_blocks(std::move(out), in[0]->shape, a.part);
}

// in: A, B FP8, their scales [, the result that other blocks were written to]; out: A·Bᵀ likewise.
Result<std::vector<TensorSpec>> scaled_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ScaledRowsAttrs>(attrs);
  if (a.gemm.accumulate) return fail(ErrorCode::kBadArgument, "blocks of rows are of products that keep A's rows");
  MB_ASSIGN(std::vector<TensorSpec> out, kGemmScaled.shape(in.first(4), a.gemm));
  return of_blocks(std::move(out), in[0]->shape, a.part);
}

const RowBlocks& part_of(const OpView& op) {
  const auto* scaled = std::get_if<ScaledRowsAttrs>(&op.op.attrs);
  return scaled != nullptr ? scaled->part : std::get<GemmRowsAttrs>(op.op.attrs).part;
}

double flops(const OpView& op) {
  const RowBlocks& a = part_of(op);
  return 2.0 * static_cast<double>(a.blocks * a.rows) * static_cast<double>(op.in(0).shape.cols()) *
         static_cast<double>(op.out(0).shape.cols());
}

double bytes(const OpView& op) {
  const RowBlocks& a = part_of(op);
  const double part = static_cast<double>(a.blocks * a.rows) / static_cast<double>(a.whole_rows);
  return static_cast<double>(op.in(0).bytes()) * (a.of_result ? 1 : part) + static_cast<double>(op.in(1).bytes()) +
         static_cast<double>(op.out(0).bytes()) * (a.of_result ? part : 1);
}

// in: x; out: its elements as E4M3 and, in four elements more, their inverse scale in fp32.
Result<std::vector<TensorSpec>> pack_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[0]->shape.elements() + 4}, DType::kE4M3}};
}

// The other way, in the attributes' shape and type.
Result<std::vector<TensorSpec>> unpack_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<PackAttrs>(attrs);
  if (in[0]->shape.elements() != a.shape.elements() + 4)
    return fail(ErrorCode::kBadArgument,
                fmt::format("a message of {} bytes for {}", in[0]->shape.elements(), a.shape.str()));
  return std::vector<TensorSpec>{{a.shape, a.dtype}};
}

void cases(std::vector<OpCase>& all) {
  RowBlocks part{.whole_rows = 8, .blocks = 2, .rows = 2, .stride = 4, .first = 2};
  const GemmAttrs gemm{false, true};
  all.push_back({"gemm_rows/of-a", &kGemmRows, {{{4, 2, 24}}, {{40, 24}}}, GemmRowsAttrs{gemm, part}, false});
  part.of_result = true;
  all.push_back(
      {"gemm_rows/of-result", &kGemmRows, {{{2, 2, 24}}, {{40, 24}}, {{4, 2, 40}}}, GemmRowsAttrs{gemm, part}, false});
}
void scaled_cases(std::vector<OpCase>& all) {
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive}, weight{{80, 64}, DType::kE4M3};
  RowBlocks part{.whole_rows = 48, .blocks = 2, .rows = 8, .stride = 24, .first = 8};
  const ScaledGemmAttrs fprop{false, true, DType::kBf16}, dgrad{false, false, DType::kBf16};
  all.push_back({"gemm_scaled_rows/of-a",
                 &kGemmScaledRows,
                 {{{24, 2, 64}, DType::kE4M3}, weight, scales, scales},
                 ScaledRowsAttrs{fprop, 0, part},
                 false});
  part.of_result = true;
  all.push_back({"gemm_scaled_rows/of-result",
                 &kGemmScaledRows,
                 {{{8, 2, 64}, DType::kE5M2}, weight, scales, scales, {{24, 2, 80}, DType::kBf16}},
                 ScaledRowsAttrs{dgrad, 16, part},
                 false});
}
void pack_cases(std::vector<OpCase>& all) {
  all.push_back({"pack_fp8/small", &kPackFp8, {{{6, 2, 8}}}, NoAttrs{}, false});
}
void unpack_cases(std::vector<OpCase>& all) {
  for (const DType to : {DType::kF32, DType::kBf16})
    all.push_back({std::string("unpack_fp8/") + name(to),
                   &kUnpackFp8,
                   {{{100}, DType::kE4M3, Fill::kPositive}},
                   PackAttrs{Shape{6, 2, 8}, to},
                   false});
}

}  // namespace

const OpKind kGemmRows{.name = "gemm_rows",
                       .shape = shape,
                       .flops = flops,
                       .bytes = bytes,
                       .cpu = cpu_gemm_rows,
                       .cuda = "gemm_rows",
                       .cases = cases,
                       .model_flops = true};
const OpKind kGemmScaledRows{.name = "gemm_scaled_rows",
                             .shape = scaled_shape,
                             .flops = flops,
                             .bytes = bytes,
                             .cpu = cpu_gemm_scaled_rows,
                             .cuda = "gemm_scaled_rows",
                             .cases = scaled_cases,
                             .model_flops = true};
const OpKind kPackFp8{
    .name = "pack_fp8", .shape = pack_shape, .cpu = cpu_pack_fp8, .cuda = "pack_fp8", .cases = pack_cases};
const OpKind kUnpackFp8{
    .name = "unpack_fp8", .shape = unpack_shape, .cpu = cpu_unpack_fp8, .cuda = "unpack_fp8", .cases = unpack_cases};

}  // namespace mbb::trainer
