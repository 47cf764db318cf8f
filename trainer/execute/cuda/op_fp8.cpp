// CUDA functions of tensorwise FP8: amax first, then one kernel that quantizes and transposes, computing the value
// again where it is cheap to; and the scaled GEMM.
#include <string>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// out: q, its transpose, {inverse scale, amax}. Clears amax for the pass that finds it.
Result<Quantize> begin(const OpCall& call, const Shape& value) {
  Quantize q;
  q.to = call.out[0].tensor->dtype == DType::kE4M3 ? Element::kE4m3 : Element::kE5m2;
  q.shape = {value.rows(), value.cols()};
  auto* scales = call.out[2].as<float>();
  q.inverse_scale = scales;
  q.amax = scales + 1;
  q.q = call.out[0].data;
  q.qt = call.out[1].data;
  if (call.in[0].tensor->dtype != DType::kBf16)
    return fail(ErrorCode::kUnavailable,
                "CUDA: FP8 quantization of " + call.in[0].tensor->path + ": only bf16 is quantized");
  MB_TRY(ok(cudaMemsetAsync(scales + 1, 0, 4, call.device.stream()), "clearing amax"));
  return q;
}

float* amax_of(const OpCall& call) {
  return call.out[2].as<float>() + 1;
}

}  // namespace

Status quantize_op(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  MB_TRY(cuda::amax_of(Element::kBf16, call.in[0].data, call.in[0].elements(), amax_of(call), call.device.launch()));
  return quantize(q, call.in[0].data, call.device.launch());
}

// One pass: the scale is known, and what amax it met is kept for the next.
Status quantize_delayed_op(const OpCall& call) {
  MB_ASSIGN(Quantize q, begin(call, call.in[0].shape()));
  q.scale = call.in[1].as<const float>();
  q.found_amax = amax_of(call);
  return quantize(q, call.in[0].data, call.device.launch());
}

Status rmsnorm_quantize_op(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  NormForward n;
  n.shape = q.shape;
  n.eps = call.attrs<NormAttrs>().eps;
  n.x = call.in[0].data;
  n.weight = call.in[1].data;
  n.rstd = call.out[3].as<float>();
  n.amax = amax_of(call);
  MB_TRY(norm_forward(n, norm_launch(call)));
  return quantize_norm(q, n.x, n.rstd, n.weight, call.device.launch());
}

Status swiglu_quantize_op(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.out[0].shape()));
  MB_TRY(swiglu_amax(q.shape, call.in[0].data, amax_of(call), call.device.launch()));
  return quantize_swiglu(q, call.in[0].data, call.device.launch());
}

Status swiglu_grad_quantize_op(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  MB_TRY(swiglu_backward_amax(q.shape, call.in[1].data, call.in[0].data, amax_of(call), call.device.launch()));
  return quantize_swiglu_backward(q, call.in[1].data, call.in[0].data, call.device.launch());
}

namespace {

Element fp8_of(const Tensor& tensor) {
  return tensor.dtype == DType::kE5M2 ? Element::kE5m2 : Element::kE4m3;
}

struct ScaledCall {
  GemmProblem problem;
  GemmBuffers buffers;
};

Result<ScaledCall> scaled_call(const OpCall& call) {
  const auto& a = call.attrs<ScaledGemmAttrs>();
  ScaledCall s;
  s.problem.m = call.in[0].shape().rows();
  s.problem.k = call.in[0].shape().cols();
  s.problem.n = call.in[1].shape().rows();
  s.problem.b_transposed = true;
  s.problem.a = fp8_of(*call.in[0].tensor);
  s.problem.b = fp8_of(*call.in[1].tensor);
  MB_ASSIGN(s.problem.d, element_of(*call.out[0].tensor));
  s.problem.accumulate = a.accumulate;
  s.problem.sm_target = call.sm_target;
  s.problem.fast_accumulation = a.fast;
  s.buffers.a = call.in[0].data;
  s.buffers.b = call.in[1].data;
  s.buffers.d = call.out[0].data;
  s.buffers.a_scale = call.in[2].as<const float>();
  s.buffers.b_scale = call.in[3].as<const float>();
  s.problem.add_c = !a.accumulate && call.in.size() > 4;  // gemm_scaled_add
  if (s.problem.add_c) s.buffers.c = call.in[4].data;
  s.buffers.workspace = call.device.gemm_workspace();
  s.problem.alignment = gemm_alignment(s.buffers);
  return s;
}

// What the library does not take (inner dimensions that 16 does not divide) is the product of the codes' values in
// bf16, which hold them exactly, times both scales.
Status emulated(const OpCall& call, const ScaledCall& s) {
  const auto code = [](Element e) { return e == Element::kE5m2 ? CodeType::kE5M2 : CodeType::kE4M3; };
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const GemmProblem& p = s.problem;
  const int64_t a_bytes = aligned(p.m * p.k * 2), b_bytes = aligned(p.n * p.k * 2);
  MB_ASSIGN(void* const scratch, call.device.scratch(a_bytes + b_bytes + 256));
  auto* const at = static_cast<std::byte*>(scratch);
  DecodeBlocks a{.code = code(p.a), .lines = p.m, .inner = p.k}, b{.code = code(p.b), .lines = p.n, .inner = p.k};
  MB_TRY(decode_blocks(a, s.buffers.a, nullptr, at, call.device.launch()));
  MB_TRY(decode_blocks(b, s.buffers.b, nullptr, at + a_bytes, call.device.launch()));
  auto* const factors = reinterpret_cast<float*>(at + a_bytes + b_bytes);
  MB_TRY(gemm_factors(s.buffers.a_scale, s.buffers.b_scale, p.accumulate || p.add_c ? 1.0f : 0.0f, factors,
                      call.device.launch()));
  GemmProblem plain = p;
  plain.a = plain.b = Element::kBf16;
  plain.fast_accumulation = false;
  plain.device_factors = true;
  GemmBuffers g = s.buffers;
  g.a = at, g.b = at + a_bytes;
  g.factors = factors;
  plain.alignment = gemm_alignment(g);
  return call.device.gemm().run(plain, g, call.device.stream());
}

std::string problem_of(const ScaledCall& s) {
  return "GEMM " + key(s.problem);
}

// Notes that the library has no such product; any other error comes back.
Status refused(const OpCall& call, const ScaledCall& s, const Status& status) {
  if (status || status.error().code != ErrorCode::kUnavailable) return status;
  call.device.refuse(problem_of(s), status.error().what + "; its codes' values are multiplied in bf16");
  return {};
}

}  // namespace

Status gemm_scaled_op(const OpCall& call) {
  MB_ASSIGN(const ScaledCall s, scaled_call(call));
  if (!call.device.refused(problem_of(s))) {
    const Status ran = call.device.gemm().run(s.problem, s.buffers, call.device.stream());
    if (ran) return ran;
    MB_TRY(refused(call, s, ran));
  }
  return emulated(call, s);
}

Status tune_gemm_scaled_op(const OpCall& call, const TuneEffort& effort) {
  MB_ASSIGN(const ScaledCall s, scaled_call(call));
  return refused(call, s, call.device.tune(s.problem, s.buffers, effort));
}

}  // namespace mbb::trainer::cuda
