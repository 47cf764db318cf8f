// CUDA functions of block-scaled operands and of experts' quantized operands. A GEMM the library does not take with
// such scales (every one but FP8 in blocks of 128 on Hopper) reads the codes' values in bf16: they fit it exactly
// where block scales are powers of two or E4M3, and scales of whole tensors multiply the result in fp32. Blocks of 128
// may be partial at the end of a side: the library wants an inner side in sixteens and the other two in eights.
// Experts' FP8 codes under a scale a tensor, or in blocks of 128, are multiplied as they are where our kernel takes
// them.
#include <algorithm>
#include <optional>

#include "trainer/execute/cuda/op_experts.h"
#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/grouped_wgmma.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int64_t kBlockOfLibrary = 128;

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Result<CodeType> code_of(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::kE4M3: return CodeType::kE4M3;
    case DType::kE5M2: return CodeType::kE5M2;
    case DType::kE2M1: return CodeType::kE2M1;
    default: break;
  }
  return fail(ErrorCode::kBadArgument, "CUDA: " + tensor.path + " holds no codes of a narrow format");
}

ScaleType scale_of(const Tensor& scales) {
  return scales.dtype == DType::kE8M0   ? ScaleType::kE8M0
         : scales.dtype == DType::kE4M3 ? ScaleType::kE4M3
                                        : ScaleType::kF32;
}

BlockTable table_of(const Operand& q, int64_t block, bool square, int64_t line_stack = 1, int64_t inner_stack = 1) {
  const int64_t inner = q.shape().cols();
  return {q.elements() / inner, inner, block, square, line_stack, inner_stack};
}

// Writes an operand's values in bf16; without `scales` its codes' own.
Status values_of(const OpCall& call, const Operand& q, const Operand* scales, const BlockTable& blocks, bool turned,
                 void* out) {
  DecodeBlocks d;
  MB_ASSIGN(d.code, code_of(*q.tensor));
  d.scale = scales == nullptr ? ScaleType::kNone : scale_of(*scales->tensor);
  d.blocks = blocks, d.turned = turned;
  return decode_blocks(d, q.data, scales == nullptr ? nullptr : scales->data, out, call.device.launch());
}

// Operands of gemm_blocks.
struct BlocksCall {
  int64_t m = 0, n = 0, k = 0;
  bool with_inverse = false;
  Element out = Element::kBf16;
};

Result<BlocksCall> blocks_call(const OpCall& call) {
  BlocksCall b;
  b.k = call.in[0].shape().cols(), b.m = call.in[0].elements() / b.k, b.n = call.in[1].elements() / b.k;
  b.with_inverse = call.in.size() >= 6;
  MB_ASSIGN(b.out, element_of(*call.out[0].tensor));
  return b;
}

GemmProblem product_of(const OpCall& call, const BlocksCall& b) {
  GemmProblem p;
  p.m = b.m, p.n = b.n, p.k = b.k;
  p.b_transposed = true;
  p.d = b.out;
  p.add_c = call.attrs<GemmBlocksAttrs>().accumulate;
  p.sm_target = call.sm_target;
  return p;
}

GemmBuffers buffers_of(const OpCall& call) {
  GemmBuffers g;
  g.d = call.out[0].data;
  if (call.attrs<GemmBlocksAttrs>().accumulate) g.c = call.in.back().data;
  g.workspace = call.device.gemm_workspace();
  return g;
}

// Whether the library knows such codes and scales.
bool may_be_native(const OpCall& call, const BlocksCall& b) {
  const auto& a = call.attrs<GemmBlocksAttrs>();
  const auto fits = [](const Operand& q, const Operand& scales) {
    return q.tensor->dtype == DType::kE4M3 && scales.tensor->dtype == DType::kF32;
  };
  return a.block == kBlockOfLibrary && !b.with_inverse && fits(call.in[0], call.in[2]) && fits(call.in[1], call.in[3]);
}

bool fits_library(const BlocksCall& b) {
  return b.k % 16 == 0 && b.m % 8 == 0 && b.n % 8 == 0;
}

// Without scales.
struct NativeCall {
  GemmProblem problem;
  GemmBuffers buffers;
};

NativeCall native_call(const OpCall& call, const BlocksCall& b) {
  const auto& a = call.attrs<GemmBlocksAttrs>();
  NativeCall n{product_of(call, b), buffers_of(call)};
  n.problem.a = n.problem.b = Element::kE4m3;
  n.problem.a_blocks = a.a_square ? BlockScaling::kSquare : BlockScaling::kRows;
  n.problem.b_blocks = a.b_square ? BlockScaling::kSquare : BlockScaling::kRows;
  n.buffers.a = call.in[0].data, n.buffers.b = call.in[1].data;
  n.problem.alignment = gemm_alignment(n.buffers);
  return n;
}

// Where scales of both operands lie as the library reads them.
struct LibraryScales {
  BlockTable of_a, of_b;
  float *a = nullptr, *b = nullptr;
  int64_t bytes = 0;  // from `a` on
};

Result<LibraryScales> place_scales(const OpCall& call) {
  const auto& a = call.attrs<GemmBlocksAttrs>();
  LibraryScales s;
  s.of_a = table_of(call.in[0], a.block, a.a_square), s.of_b = table_of(call.in[1], a.block, a.b_square);
  const auto bytes = [](const BlockTable& t) {
    return aligned(library_scales_bytes(t.scale_lines(), t.across(), t.square));
  };
  s.bytes = bytes(s.of_a) + bytes(s.of_b);
  MB_ASSIGN(void* const scratch, call.device.scratch(s.bytes));
  s.a = static_cast<float*>(scratch);
  s.b = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + bytes(s.of_a));
  return s;
}

Status native(const OpCall& call, NativeCall n) {
  MB_ASSIGN(const LibraryScales s, place_scales(call));
  const auto write = [&](const BlockTable& t, const Operand& scales, float* to) {
    return library_scales(t.scale_lines(), t.across(), t.square, scales.as<const float>(), to, call.device.launch());
  };
  MB_TRY(write(s.of_a, call.in[2], s.a));
  MB_TRY(write(s.of_b, call.in[3], s.b));
  n.buffers.a_scale = s.a, n.buffers.b_scale = s.b;
  return call.device.gemm().run(n.problem, n.buffers, call.device.stream());
}

Status emulated(const OpCall& call, const BlocksCall& b) {
  const auto& a = call.attrs<GemmBlocksAttrs>();
  const int64_t a_bytes = aligned(b.m * b.k * 2), b_bytes = aligned(b.n * b.k * 2);
  MB_ASSIGN(void* const scratch, call.device.scratch(a_bytes + b_bytes + 256));
  auto* const at = static_cast<std::byte*>(scratch);
  MB_TRY(values_of(call, call.in[0], &call.in[2], table_of(call.in[0], a.block, a.a_square), false, at));
  MB_TRY(values_of(call, call.in[1], &call.in[3], table_of(call.in[1], a.block, a.b_square), false, at + a_bytes));
  GemmProblem p = product_of(call, b);
  GemmBuffers g = buffers_of(call);
  g.a = at, g.b = at + a_bytes;
  if (b.with_inverse) {
    auto* const factors = reinterpret_cast<float*>(at + a_bytes + b_bytes);
    MB_TRY(gemm_factors(call.in[4].as<const float>(), call.in[5].as<const float>(), p.add_c ? 1.0f : 0.0f, factors,
                        call.device.launch()));
    p.device_factors = true;
    g.factors = factors;
  }
  p.alignment = gemm_alignment(g);
  return call.device.gemm().run(p, g, call.device.stream());
}

}  // namespace

Status quantize_blocks_op(const OpCall& call) {
  const auto& a = call.attrs<QuantizeBlocksAttrs>();
  QuantizeBlocks q;
  q.attrs = &a;
  MB_ASSIGN(q.from, element_of(*call.in[0].tensor));
  q.shape = {call.in[0].shape().rows() / a.stack, call.in[0].shape().cols()};
  q.rows = {call.out[0].data, call.out[1].data};
  q.columns = {call.out[2].data, call.out[3].data};
  if (a.scale == BlockScale::kE4M3) {
    q.rows.inverse = call.out[4].as<float>(), q.columns.inverse = call.out[5].as<float>();
  }
  if (a.stochastic) {
    q.samples = call.in[1].as<const int32_t>(), q.batch = call.in[1].elements();
    q.record = call.in[2].as<const float>();
  }
  if (const int64_t bytes = quantize_blocks_workspace(q, call.in[0].data); bytes > 0) {
    MB_ASSIGN(q.workspace, call.device.scratch(bytes));
  }
  return quantize_blocks(q, call.in[0].data, call.device.launch());
}

Status gemm_blocks_op(const OpCall& call) {
  MB_ASSIGN(const BlocksCall b, blocks_call(call));
  if (!may_be_native(call, b)) return emulated(call, b);
  const NativeCall n = native_call(call, b);
  if (!is_refused(call, n.problem)) {
    const Status status =
        fits_library(b)
            ? native(call, n)
            : fail(ErrorCode::kUnavailable, "cuBLASLt wants the inner side in sixteens, rows and columns in eights");
    if (status) return status;
    MB_TRY(note_refusal(call, n.problem, status));
  }
  return emulated(call, b);
}

Status tune_gemm_blocks_op(const OpCall& call, const TuneEffort& effort) {
  MB_ASSIGN(const BlocksCall b, blocks_call(call));
  if (!may_be_native(call, b) || !fits_library(b)) return {};
  NativeCall n = native_call(call, b);
  if (is_refused(call, n.problem)) return {};
  MB_ASSIGN(const LibraryScales s, place_scales(call));
  // The arena's random bits are scales of either sign; 0x3f3f3f3f is 0.75.
  MB_TRY(ok(cudaMemsetAsync(s.a, 0x3f, static_cast<size_t>(s.bytes), call.device.stream()), "filling scales"));
  n.buffers.a_scale = s.a, n.buffers.b_scale = s.b;
  return note_refusal(call, n.problem, call.device.tune(n.problem, n.buffers, effort));
}

namespace {

// The experts, where their rows lie and what the result is multiplied with; the caller adds the sides.
Result<GroupedGemm> experts_of(const OpCall& call) {
  const auto& a = call.attrs<GroupedQuantizedAttrs>();
  const bool with_inverse = a.block > 0 && call.in[2].tensor->dtype == DType::kE4M3;
  const Operand& segments = call.in[with_inverse ? 6 : 4];
  GroupedGemm g;
  MB_TRY(place_experts(call, a.grouped, segments, g));
  if (a.block == 0 || with_inverse) {
    const size_t first = with_inverse ? 4 : 2;
    g.a_scale = call.in[first].as<const float>(), g.b_scale = call.in[first + 1].as<const float>();
  }
  return g;
}

// The product of codes as Hopper's kernel multiplies them; nullopt: it does not.
std::optional<GroupedFp8> in_fp8(const OpCall& call, GroupedForm form, const GroupedGemm& g) {
  const auto& a = call.attrs<GroupedQuantizedAttrs>();
  const auto element = [](const Operand& q) {
    return q.tensor->dtype == DType::kE4M3   ? Element::kE4m3
           : q.tensor->dtype == DType::kE5M2 ? Element::kE5m2
                                             : Element::kF32;
  };
  GroupedFp8 f{g, element(call.in[0]), element(call.in[1]), a.fast && form == GroupedForm::kFprop};
  if (a.block > 0) {
    const bool squares = !a.a_square && a.b_square == (form != GroupedForm::kWgrad);
    if (a.block != kGroupedFp8Depth || !squares || call.in[2].tensor->dtype != DType::kF32) return std::nullopt;
    f.fast = false;
    f.left_blocks = call.in[2].as<const float>(), f.right_blocks = call.in[3].as<const float>();
  }
  if (!grouped_fp8_takes(form, f, {call.in[0].data, call.in[1].data, call.out[0].data})) return std::nullopt;
  return f;
}

// Experts' operands as values in bf16.
struct GroupedValues {
  std::byte *a = nullptr, *b = nullptr;
};

// How experts' weights, the second operand, are one matrix: below each other, or side by side.
struct Stacks {
  int64_t lines = 1, inner = 1;
};

Result<GroupedValues> grouped_values(const OpCall& call, bool a_turned, bool b_turned, const Stacks& stacks) {
  const auto& a = call.attrs<GroupedQuantizedAttrs>();
  const int64_t a_bytes = aligned(call.in[0].elements() * 2);
  MB_ASSIGN(void* const scratch, call.device.scratch(a_bytes + aligned(call.in[1].elements() * 2)));
  GroupedValues out;
  out.a = static_cast<std::byte*>(scratch), out.b = out.a + a_bytes;
  const bool scaled = a.block > 0;
  const BlockTable of_a = table_of(call.in[0], a.block, a.a_square);
  const BlockTable of_b = table_of(call.in[1], a.block, a.b_square, stacks.lines, stacks.inner);
  MB_TRY(values_of(call, call.in[0], scaled ? &call.in[2] : nullptr, of_a, a_turned, out.a));
  MB_TRY(values_of(call, call.in[1], scaled ? &call.in[3] : nullptr, of_b, b_turned, out.b));
  return out;
}

Status in_bf16(const OpCall& call) {
  if (call.out[0].tensor->dtype == DType::kBf16) return {};
  return fail(ErrorCode::kUnavailable, "CUDA: " + call.op.path + " gives quantized experts' rows in fp32",
              "take a recipe with bf16 activations, or run on the CPU: --device cpu");
}

}  // namespace

Status grouped_gemm_quantized_op(const OpCall& call) {
  MB_TRY(in_bf16(call));
  MB_ASSIGN(GroupedGemm g, experts_of(call));
  g.rows = call.in[0].shape()[0], g.n = call.in[1].shape()[1], g.k = call.in[1].shape()[2];
  if (const auto f = in_fp8(call, GroupedForm::kFprop, g))
    return grouped_fp8(GroupedForm::kFprop, *f, call.in[0].data, call.in[1].data, call.out[0].data, false,
                       call.device.launch());
  MB_ASSIGN(const GroupedValues v, grouped_values(call, false, false, {.lines = call.in[1].shape()[0]}));
  return grouped_fprop(g, v.a, v.b, call.out[0].data, call.device.launch());
}

// The weights come transposed, [k, experts · n].
Status grouped_gemm_quantized_dgrad_op(const OpCall& call) {
  MB_TRY(in_bf16(call));
  MB_ASSIGN(GroupedGemm g, experts_of(call));
  g.rows = call.in[0].shape()[0], g.n = call.in[0].shape().cols(), g.k = call.in[1].shape()[0];
  if (const auto f = in_fp8(call, GroupedForm::kDgrad, g))
    return grouped_fp8(GroupedForm::kDgrad, *f, call.in[0].data, call.in[1].data, call.out[0].data, false,
                       call.device.launch());
  const int64_t experts = call.attrs<GroupedQuantizedAttrs>().local_experts;
  MB_ASSIGN(const GroupedValues v, grouped_values(call, false, true, {.inner = experts}));
  return grouped_dgrad(g, v.a, v.b, call.out[0].data, call.device.launch());
}

// Both operands come transposed, [n, rows] and [k, rows].
Status grouped_gemm_quantized_wgrad_op(const OpCall& call) {
  MB_ASSIGN(GroupedGemm g, experts_of(call));
  g.rows = call.in[0].shape().cols(), g.n = call.in[0].shape()[0], g.k = call.in[1].shape()[0];
  MB_ASSIGN(g.gradient, element_of(*call.out[0].tensor));
  const bool accumulate = adds(call.attrs<GroupedQuantizedAttrs>().grouped);
  if (const auto f = in_fp8(call, GroupedForm::kWgrad, g))
    return grouped_fp8(GroupedForm::kWgrad, *f, call.in[0].data, call.in[1].data, call.out[0].data, accumulate,
                       call.device.launch());
  MB_ASSIGN(const GroupedValues v, grouped_values(call, true, true, {}));
  return grouped_wgrad(g, v.a, v.b, call.out[0].data, accumulate, call.device.launch());
}

}  // namespace mbb::trainer::cuda
