// CUDA functions of tensorwise FP8: amax first, then one kernel that quantizes and transposes, computing the value
// again where it is cheap to; and the scaled GEMM.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "trainer/execute/cuda/initial_values.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// out: q, its transpose (of which one may be left out), {inverse scale, amax}.
Result<Quantize> quantize_of(const OpCall& call, const Shape& value) {
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
  return q;
}

float* amax_of(const OpCall& call) {
  return call.out[2].as<float>() + 1;
}

// The same with amax cleared for the pass that finds it.
Result<Quantize> begin(const OpCall& call, const Shape& value) {
  MB_ASSIGN(const Quantize q, quantize_of(call, value));
  MB_TRY(ok(cudaMemsetAsync(amax_of(call), 0, 4, call.device.stream()), "clearing amax"));
  return q;
}

NormForward norm_of(const OpCall& call) {
  NormForward n;
  n.shape = {call.in[0].shape().rows(), call.in[0].shape().cols()};
  n.eps = call.attrs<NormAttrs>().eps;
  n.x = call.in[0].data;
  n.weight = call.in[1].data;
  n.rstd = call.out[3].as<float>();
  return n;
}

Status plain_in_turn(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  MB_TRY(cuda::amax_of(Element::kBf16, call.in[0].data, call.in[0].elements(), amax_of(call), call.device.launch()));
  return quantize(q, call.in[0].data, call.device.launch());
}
// Of an amax that other ranks' rows have a part in.
Status by_amax(const OpCall& call) {
  MB_ASSIGN(Quantize q, quantize_of(call, call.in[0].shape()));
  MB_TRY(
      ok(cudaMemcpyAsync(amax_of(call), call.in[1].data, sizeof(float), cudaMemcpyDeviceToDevice, call.device.stream()),
         "keeping amax"));
  return quantize(q, call.in[0].data, call.device.launch());
}
Status plain_once(const OpCall& call, const Quantize& q) {
  return quantize_once(q, call.in[0].data, call.device.launch());
}

Status norm_in_turn(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  NormForward n = norm_of(call);
  n.amax = amax_of(call);
  MB_TRY(norm_forward(n, norm_launch(call)));
  return quantize_norm(q, n.x, n.rstd, n.weight, call.device.launch());
}
Status norm_once(const OpCall& call, const Quantize& q) {
  return quantize_norm_once(q, norm_of(call), norm_launch(call));
}
bool norm_fits(const OpCall& call, const Quantize& q) {
  return quantize_norm_once_fits(q.shape, norm_launch(call));
}

Status swiglu_in_turn(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.out[0].shape()));
  MB_TRY(swiglu_amax(q.shape, call.in[0].data, amax_of(call), call.device.launch()));
  return quantize_swiglu(q, call.in[0].data, call.device.launch());
}
Status swiglu_once(const OpCall& call, const Quantize& q) {
  return quantize_swiglu_once(q, call.in[0].data, call.device.launch());
}

Status swiglu_grad_in_turn(const OpCall& call) {
  MB_ASSIGN(const Quantize q, begin(call, call.in[0].shape()));
  MB_TRY(swiglu_backward_amax(q.shape, call.in[1].data, call.in[0].data, amax_of(call), call.device.launch()));
  return quantize_swiglu_backward(q, call.in[1].data, call.in[0].data, call.device.launch());
}
Status swiglu_grad_once(const OpCall& call, const Quantize& q) {
  return quantize_swiglu_backward_once(q, call.in[1].data, call.in[0].data, call.device.launch());
}

// What is quantized, and both ways to: amax in a pass before, or all in one launch.
struct Form {
  const char* name;
  Status (*in_turn)(const OpCall&);
  Status (*once)(const OpCall&, const Quantize&);
  bool of_output = false;  // the value has the first output's shape, not the first input's
  bool (*fits)(const OpCall&, const Quantize&) = nullptr;  // null: one launch does any shape
};
constexpr Form kPlain{"quantize", plain_in_turn, plain_once};
constexpr Form kNorm{"rmsnorm_quantize", norm_in_turn, norm_once, false, norm_fits};
constexpr Form kSwiglu{"swiglu_quantize", swiglu_in_turn, swiglu_once, true};
constexpr Form kSwigluGrad{"swiglu_grad_quantize", swiglu_grad_in_turn, swiglu_grad_once};

// The one launch's blocks wait for each other, which a kernel that holds SMs and waits for another rank could keep from
// ever being there together: only where the rank is alone and nothing runs beside. Null partials: not here.
Result<Quantize> one_launch(const OpCall& call, const Form& form) {
  MB_ASSIGN(Quantize q, quantize_of(call, form.of_output ? call.out[0].shape() : call.in[0].shape()));
  const int64_t bytes = call.ranks == nullptr && call.sm_target == 0 ? quantize_once_partials(call.device.launch()) : 0;
  if (bytes == 0 || (form.fits != nullptr && !form.fits(call, q))) return q;
  q.found_amax = amax_of(call);
  MB_ASSIGN(q.partials, call.device.scratch(bytes));
  return q;
}

std::string key_of(const Form& form, const Quantize& q) {
  const char* const copies = q.qt == nullptr ? ", plain" : q.q == nullptr ? ", turned" : "";
  return fmt::format("{} of {} x {} to {}{}", form.name, q.shape.rows, q.shape.cols, name(q.to), copies);
}

// One launch where `mbbench tune` saw it give the same codes in less time.
Status by_choice(const OpCall& call, const Form& form) {
  MB_ASSIGN(const Quantize q, one_launch(call, form));
  if (q.partials == nullptr || !call.device.one_kernel(key_of(form, q)).value_or(false)) return form.in_turn(call);
  return form.once(call, q);
}

// Heads and tails of what a quantization writes.
Result<std::vector<uint8_t>> codes_of(const OpCall& call) {
  constexpr size_t kPart = size_t{4} << 20;
  std::vector<uint8_t> all;
  MB_TRY(ok(cudaStreamSynchronize(call.device.stream()), "comparing quantizations"));
  for (const Operand& out : call.out.first(2)) {
    if (out.data == nullptr) continue;
    const auto bytes = static_cast<size_t>(out.tensor->bytes()), part = std::min(bytes, kPart);
    for (const size_t from : {size_t{0}, bytes - part}) {
      all.resize(all.size() + part);
      MB_TRY(ok(cudaMemcpy(all.data() + all.size() - part, out.as<uint8_t>() + from, part, cudaMemcpyDeviceToHost),
                "comparing quantizations"));
    }
  }
  return all;
}

// Runs it as a step does: captured.
Status captured(const OpCall& call, const Form& form, const Quantize& q) {
  const cudaStream_t stream = call.device.stream();
  const char* const doing = "capturing a quantization";
  MB_TRY(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), doing));
  Status status = form.once(call, q);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  if (const Status ended = ok(cudaStreamEndCapture(stream, &graph), doing); status) status = ended;
  if (status) status = ok(cudaGraphInstantiate(&ready, graph, 0), doing);
  if (status) status = ok(cudaGraphLaunch(ready, stream), doing);
  if (status) status = ok(cudaStreamSynchronize(stream), doing);
  if (ready != nullptr) cudaGraphExecDestroy(ready);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}

// Whether one launch gives what two give: approximate exponentials and other orders of a sum move few values across a
// boundary between codes.
Result<bool> same(const OpCall& call, const Form& form, const Quantize& q) {
  constexpr double kMoved = 0.005, kAmax = 0.01;
  float found[2][2]{};
  std::array<std::vector<uint8_t>, 2> codes;
  for (const int once : {0, 1}) {
    for (const Operand& out : call.out)
      if (out.data != nullptr)
        MB_TRY(ok(cudaMemsetAsync(out.data, 0xff, static_cast<size_t>(out.tensor->bytes()), call.device.stream()),
                  "comparing quantizations"));
    MB_TRY(once == 0 ? form.in_turn(call) : captured(call, form, q));
    MB_ASSIGN(codes[static_cast<size_t>(once)], codes_of(call));
    MB_TRY(ok(cudaMemcpy(found[once], call.out[2].data, sizeof(found[once]), cudaMemcpyDeviceToHost),
              "comparing quantizations"));
  }
  size_t moved = 0;
  for (size_t i = 0; i < codes[0].size(); ++i) moved += codes[0][i] != codes[1][i] ? 1 : 0;
  bool near = static_cast<double>(moved) <= kMoved * static_cast<double>(codes[0].size());
  for (const int i : {0, 1})
    near = near && std::abs(found[0][i] - found[1][i]) <= kAmax * std::abs(found[0][i]);  // false for NaN
  if (!near)
    call.device.refuse(key_of(form, q),
                       fmt::format("one launch gives other codes ({} of {}, amax {} for {}); two do it", moved,
                                   codes[0].size(), found[1][1], found[0][1]));
  return near;
}

// What lies there may be NaN, as ops that were tuned before read random bits as codes: its scale is like no other.
Status fill_inputs(const OpCall& call) {
  for (size_t i = 0; i < call.in.size(); ++i) {
    const Operand& in = call.in[i];
    MB_ASSIGN(const Element element, element_of(*in.tensor));
    MB_TRY(fill_normal(element, in.data, 0, in.elements(), i, 1.0f, call.device.stream()));
  }
  return {};
}

// Twice in turn, about 10 ms each.
Status choose(const OpCall& call, const Form& form) {
  MB_ASSIGN(const Quantize q, one_launch(call, form));
  const std::string key = key_of(form, q);
  if (q.partials == nullptr || call.device.deterministic() || call.device.one_kernel(key)) return {};
  MB_TRY(fill_inputs(call));
  const auto alike = same(call, form, q);
  if (!alike) {
    call.device.refuse(key, alike.error().what + "; two launches do it");
    return {};
  }
  if (!*alike) return {};
  const auto once = [&] { return form.once(call, q); };
  const auto in_turn = [&] { return form.in_turn(call); };
  MB_ASSIGN(const double first, timed(call, 1, in_turn));
  const int calls = std::clamp(static_cast<int>(10.0 / std::max(first, 1e-3)), 2, 200);
  double once_ms = 0, turn_ms = 0;
  for (int round = 0; round < 2; ++round) {
    MB_ASSIGN(const double a, timed(call, calls, in_turn));
    MB_ASSIGN(const double b, timed(call, calls, once));
    turn_ms += a / 2, once_ms += b / 2;
  }
  call.device.choose_one_kernel(key, once_ms, turn_ms);
  return {};
}

}  // namespace

Status amax_op(const OpCall& call) {
  if (call.in[0].tensor->dtype != DType::kBf16)
    return fail(ErrorCode::kUnavailable, "CUDA: amax of " + call.in[0].tensor->path + ": only bf16 is quantized");
  auto* const amax = call.out[0].as<float>();
  MB_TRY(ok(cudaMemsetAsync(amax, 0, sizeof(float), call.device.stream()), "clearing amax"));
  return cuda::amax_of(Element::kBf16, call.in[0].data, call.in[0].elements(), amax, call.device.launch());
}

Status quantize_op(const OpCall& call) {
  if (call.in.size() > 1) return by_amax(call);
  return by_choice(call, kPlain);
}
Status rmsnorm_quantize_op(const OpCall& call) {
  return by_choice(call, kNorm);
}
Status swiglu_quantize_op(const OpCall& call) {
  return by_choice(call, kSwiglu);
}
Status swiglu_grad_quantize_op(const OpCall& call) {
  return by_choice(call, kSwigluGrad);
}

OpFunction tune_of_quantization(OpFunction function) {
  if (function == quantize_op)
    return [](const OpCall& call) { return call.in.size() > 1 ? Status{} : choose(call, kPlain); };
  if (function == rmsnorm_quantize_op) return [](const OpCall& call) { return choose(call, kNorm); };
  if (function == swiglu_quantize_op) return [](const OpCall& call) { return choose(call, kSwiglu); };
  if (function == swiglu_grad_quantize_op) return [](const OpCall& call) { return choose(call, kSwigluGrad); };
  return nullptr;
}

// One pass: the scale is known, and what amax it met is kept for the next.
Status quantize_delayed_op(const OpCall& call) {
  MB_ASSIGN(Quantize q, begin(call, call.in[0].shape()));
  q.scale = call.in[1].as<const float>();
  q.found_amax = amax_of(call);
  return quantize(q, call.in[0].data, call.device.launch());
}

namespace {

Element fp8_of(const Tensor& tensor) {
  return tensor.dtype == DType::kE5M2 ? Element::kE5m2 : Element::kE4m3;
}

struct ScaledCall {
  GemmProblem problem;
  GemmBuffers buffers;
};

// All but the alignment, which follows from the rows.
Result<ScaledCall> scaled_call(const OpCall& call, const ScaledGemmAttrs& a) {
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
  s.buffers.workspace = call.device.gemm_workspace();
  return s;
}

Result<ScaledCall> whole_call(const OpCall& call) {
  MB_ASSIGN(ScaledCall s, scaled_call(call, call.attrs<ScaledGemmAttrs>()));
  s.problem.add_c = !s.problem.accumulate && call.in.size() > 4;  // gemm_scaled_add
  if (s.problem.add_c) s.buffers.c = call.in[4].data;
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
  DecodeBlocks a{.code = code(p.a), .blocks = {.lines = p.m, .inner = p.k}};
  DecodeBlocks b{.code = code(p.b), .blocks = {.lines = p.n, .inner = p.k}};
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

Status run_scaled(const OpCall& call, const ScaledCall& s) {
  if (!is_refused(call, s.problem)) {
    const Status ran = call.device.gemm().run(s.problem, s.buffers, call.device.stream());
    if (ran) return ran;
    MB_TRY(note_refusal(call, s.problem, ran));
  }
  return emulated(call, s);
}

Status tune_scaled(const OpCall& call, const ScaledCall& s, const TuneEffort& effort) {
  return note_refusal(call, s.problem, call.device.tune(s.problem, s.buffers, effort));
}

Status each_scaled_block(const OpCall& call, const std::function<Status(const ScaledCall&)>& product) {
  const auto& a = call.attrs<ScaledRowsAttrs>();
  MB_ASSIGN(const ScaledCall whole, scaled_call(call, a.gemm));
  return each_row_block(call, a.part, [&](int64_t a_row, int64_t result_row) {
    ScaledCall s = whole;
    s.problem.m = a.part.rows;
    s.problem.sm_target = call.product_sms(a.sm_margin);
    s.buffers.a = call.in[0].as<const std::byte>() + a_row * s.problem.k;
    s.buffers.d = call.out[0].as<std::byte>() +
                  bytes_of(call.out[0].tensor->dtype, static_cast<size_t>(result_row * s.problem.n));
    s.problem.alignment = gemm_alignment(s.buffers);
    return product(s);
  });
}

}  // namespace

Status gemm_scaled_op(const OpCall& call) {
  MB_ASSIGN(const ScaledCall s, whole_call(call));
  return run_scaled(call, s);
}

Status tune_gemm_scaled_op(const OpCall& call, const TuneEffort& effort) {
  MB_ASSIGN(const ScaledCall s, whole_call(call));
  return tune_scaled(call, s, effort);
}

Status gemm_scaled_rows_op(const OpCall& call) {
  return each_scaled_block(call, [&](const ScaledCall& s) { return run_scaled(call, s); });
}

Status tune_gemm_scaled_rows_op(const OpCall& call, const TuneEffort& effort) {
  return each_scaled_block(call, [&](const ScaledCall& s) { return tune_scaled(call, s, effort); });
}

}  // namespace mbb::trainer::cuda
