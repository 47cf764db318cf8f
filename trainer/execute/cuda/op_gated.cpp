// CUDA functions of dense products with SwiGLU, or its gradient, behind them: one kernel, or both in turn.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/gated_wgmma.h"

namespace mbb::trainer::cuda {
namespace {

struct Gated {
  GatedGemm shape;
  bool on_hopper = false;
  std::string key;  // "gated product of 8192 tokens, 4096 to 14336"
};

Gated forward_of(const OpCall& call) {
  Gated g;
  g.shape = {call.in[0].shape().rows(), call.in[0].shape().cols(), call.out[1].shape().cols()};
  g.on_hopper = call.in[0].tensor->dtype == DType::kBf16 &&
                gated_on_hopper(g.shape, {call.in[0].data, call.in[1].data, call.out[0].data, call.out[1].data});
  g.key = fmt::format("gated product of {} tokens, {} to {}", g.shape.tokens, g.shape.hidden, g.shape.ffn);
  return g;
}

Gated backward_of(const OpCall& call) {
  Gated g;
  g.shape = {call.in[0].shape().rows(), call.in[0].shape().cols(), call.in[1].shape().cols()};
  g.on_hopper = call.in[0].tensor->dtype == DType::kBf16 &&
                gated_on_hopper(g.shape, {call.in[0].data, call.in[1].data, call.in[2].data, call.out[0].data});
  g.key =
      fmt::format("gradient of a gated product of {} tokens, {} to {}", g.shape.tokens, g.shape.hidden, g.shape.ffn);
  return g;
}

// Where nothing was timed, both in turn.
bool in_one(const OpCall& call, const Gated& g) {
  return g.on_hopper && call.device.one_kernel(g.key).value_or(false);
}

// SMs as a GEMM in this place may take them.
Launch launch_of(const OpCall& call) {
  Launch launch = call.device.launch();
  if (call.sm_target > 0) launch.sms.margin = launch.sms.count - call.sm_target;
  return launch;
}

OpCall with(const OpCall& call, std::span<const Operand> in, std::span<const Operand> out) {
  return {call.op, in, out, call.coordinates, call.shard_index, call.device, call.sm_target, call.ranks, call.id};
}

Status forward_in_one(const OpCall& call, const Gated& g) {
  return gated_forward(g.shape, call.in[0].data, call.in[1].data, call.out[0].data, call.out[1].data, launch_of(call));
}
Status forward_in_turn(const OpCall& call) {
  MB_TRY(gemm_op(with(call, call.in, call.out.first(1))));
  return swiglu_op(with(call, call.out.first(1), call.out.subspan(1)));
}

Status backward_in_one(const OpCall& call, const Gated& g) {
  return gated_backward(g.shape, call.in[0].data, call.in[1].data, call.in[2].data, call.out[0].data, launch_of(call));
}

// The gradient of the gated value, which the one kernel never writes.
struct Between {
  Tensor tensor;
  Operand operand;
};
Status make_between(const OpCall& call, Between* to) {
  to->tensor.path = call.op.path + ".between";
  to->tensor.shape = call.in[0].shape().with_last(call.in[1].shape().cols());
  to->tensor.dtype = call.in[0].tensor->dtype;
  MB_ASSIGN(void* const data, call.device.outer_scratch(to->tensor.bytes()));
  to->operand = {data, &to->tensor};
  return {};
}
Status backward_in_turn(const OpCall& call) {
  Between between;
  MB_TRY(make_between(call, &between));
  const std::array product = {between.operand};
  MB_TRY(gemm_op(with(call, call.in.first(2), product)));
  const std::array in = {between.operand, call.in[2]};
  return swiglu_grad_op(with(call, in, call.out));
}

// Twice in turn, about 20 ms each: the first call of a stretch meets other clocks than the last.
Status choose(const OpCall& call, const Gated& g, const std::function<Status()>& one,
              const std::function<Status()>& in_turn) {
  if (call.device.deterministic() || call.device.one_kernel(g.key)) return {};
  MB_ASSIGN(const double first, timed(call, 1, in_turn));
  const int calls = std::clamp(static_cast<int>(20.0 / std::max(first, 1e-3)), 2, 50);
  double one_ms = 0, turn_ms = 0;
  for (int round = 0; round < 2; ++round) {
    MB_ASSIGN(const double a, timed(call, calls, in_turn));
    MB_ASSIGN(const double b, timed(call, calls, one));
    turn_ms += a / 2, one_ms += b / 2;
  }
  call.device.choose_one_kernel(g.key, one_ms, turn_ms);
  return {};
}

}  // namespace

Status gemm_swiglu_op(const OpCall& call) {
  const Gated g = forward_of(call);
  return in_one(call, g) ? forward_in_one(call, g) : forward_in_turn(call);
}

Status gemm_swiglu_grad_op(const OpCall& call) {
  const Gated g = backward_of(call);
  return in_one(call, g) ? backward_in_one(call, g) : backward_in_turn(call);
}

Status tune_gemm_swiglu_op(const OpCall& call, const TuneEffort& effort, bool alone) {
  const Gated g = forward_of(call);
  MB_TRY(tune_gemm_op(with(call, call.in, call.out.first(1)), effort));
  if (!alone || !g.on_hopper) return {};
  return choose(
      call, g, [&] { return forward_in_one(call, g); }, [&] { return forward_in_turn(call); });
}

Status tune_gemm_swiglu_grad_op(const OpCall& call, const TuneEffort& effort, bool alone) {
  const Gated g = backward_of(call);
  Between between;
  MB_TRY(make_between(call, &between));
  const std::array product = {between.operand};
  MB_TRY(tune_gemm_op(with(call, call.in.first(2), product), effort));
  if (!alone || !g.on_hopper) return {};
  return choose(
      call, g, [&] { return backward_in_one(call, g); }, [&] { return backward_in_turn(call); });
}

}  // namespace mbb::trainer::cuda
