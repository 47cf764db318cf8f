// CUDA functions of mixture-of-experts layers.
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "trainer/execute/cuda/f32_gradients.h"
#include "trainer/execute/cuda/op_experts.h"
#include "trainer/ops/cuda/router_product.h"

namespace mbb::trainer::cuda {
namespace {

RouterShape router_shape(const Operand& logits) {
  return {logits.shape().rows(), logits.shape().cols()};
}

// Router logits, weights and losses are fp32 in every recipe.
Status all_fp32(std::initializer_list<const Operand*> operands) {
  for (const Operand* o : operands)
    if (o->tensor->dtype != DType::kF32)
      return fail(ErrorCode::kBadArgument, "CUDA: " + o->tensor->path + " must be f32");
  return {};
}

// The routing of a token batch: rows i32 [tokens, top_k] of a buffer.
Result<Routed> routed(const Operand& buffer, const Operand& rows) {
  Routed r;
  MB_ASSIGN(r.element, element_of(*buffer.tensor));
  r.tokens = rows.shape()[0], r.top_k = rows.shape().cols();
  r.hidden = buffer.shape().cols(), r.buffer_rows = buffer.shape().rows();
  r.rows = rows.as<const int32_t>();
  return r;
}

Result<GroupedGemm> grouped(const OpCall& call, const Operand& of, int64_t n, int64_t k, const Operand& segments) {
  const auto& a = call.attrs<GroupedGemmAttrs>();
  GroupedGemm g;
  MB_ASSIGN(g.element, element_of(*of.tensor));
  g.rows = of.shape()[0], g.n = n, g.k = k;
  MB_TRY(place_experts(call, a, segments, g));
  return g;
}

// Forced balance asks which tokens these are.
Result<TokenPlaces> token_places(const OpCall& call) {
  const auto& a = call.attrs<RouterAttrs>();
  TokenPlaces places;
  if (!a.balanced) return places;
  const Shape& shape = call.in[0].shape();
  places.first = a.sequence_sharded ? call.coordinates.tp * shape.rows() : 0;
  places.batch = shape.rank() == 3 ? shape[1] : 1;
  MB_ASSIGN(places.at, places_of(call, a.positions, false));
  return places;
}

}  // namespace

Status place_experts(const OpCall& call, const GroupedGemmAttrs& a, const Operand& segments, GroupedGemm& g) {
  g.experts = segments.shape()[1];
  g.segments = segments.as<const int32_t>();
  if (a.only < 0) return {};
  MB_ASSIGN(void* const alone, call.device.outer_scratch(2 * g.experts * 4));
  MB_TRY(one_expert(g.segments, g.experts, a.only, static_cast<int32_t*>(alone), call.device.launch()));
  g.segments = static_cast<const int32_t*>(alone);
  g.keep = a.only > 0;
  return {};
}

const int32_t* sequences_of(const OpCall& call, size_t at, int64_t tokens) {
  if (call.in.size() <= at || call.in[at].tensor->dtype != DType::kI32) return nullptr;
  const bool part = call.in[at].elements() > tokens;
  return call.in[at].as<const int32_t>() + (part ? call.coordinates.tp * tokens : 0);
}

Status router_select_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0]}));
  const auto& a = call.attrs<RouterAttrs>();
  MB_ASSIGN(const TokenPlaces places, token_places(call));
  const RouterShape shape = router_shape(call.in[0]);
  return router_select(a, shape, call.in[0].as<const float>(), a.biased ? call.in[1].as<const float>() : nullptr,
                       sequences_of(call, a.biased ? 2 : 1, shape.tokens), call.out[0].as<int32_t>(),
                       call.device.launch(), places);
}

Status router_op(const OpCall& call) {
  MB_TRY(router_select_op(call));
  return router_weights(call.attrs<RouterAttrs>(), router_shape(call.in[0]), call.in[0].as<const float>(),
                        call.out[0].as<const int32_t>(), call.out[1].as<float>(), call.device.launch());
}

Status router_weights_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.out[0]}));
  return router_weights(call.attrs<RouterAttrs>(), router_shape(call.in[0]), call.in[0].as<const float>(),
                        call.in[1].as<const int32_t>(), call.out[0].as<float>(), call.device.launch());
}

Status router_weights_grad_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.in[1], &call.out[0]}));
  return router_weights_grad(call.attrs<RouterAttrs>(), router_shape(call.in[1]), call.in[0].as<const float>(),
                             call.in[1].as<const float>(), call.in[2].as<const int32_t>(), call.out[0].as<float>(),
                             call.device.launch());
}

Status router_loss_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.in[1], &call.out[0]}));
  const RouterShape shape = router_shape(call.in[0]);
  const int64_t sets = call.in[1].shape()[0];
  MB_ASSIGN(void* const workspace, call.device.scratch(router_loss_workspace(shape, sets)));
  return router_loss(call.attrs<MoeLossAttrs>(), shape, sets, call.in[0].as<const float>(),
                     call.in[1].as<const float>(), sequences_of(call, 2, shape.tokens), call.out[0].as<float>(),
                     workspace, call.device.launch());
}

Status router_loss_grad_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.in[1], &call.out[0]}));
  const RouterShape shape = router_shape(call.in[0]);
  const int64_t sets = call.in[1].shape()[0];
  MB_ASSIGN(void* const workspace, call.device.scratch(router_loss_workspace(shape, sets)));
  const int32_t* sequences = sequences_of(call, 2, shape.tokens);
  const size_t given = sequences == nullptr ? 2 : 3;
  return router_loss_grad(call.attrs<MoeLossAttrs>(), shape, sets, call.in[0].as<const float>(),
                          call.in[1].as<const float>(), sequences,
                          call.in.size() > given ? call.in[given].as<const float>() : nullptr, call.out[0].as<float>(),
                          workspace, call.device.launch());
}

Status expert_counts_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.out[0]}));
  return expert_counts(call.attrs<CountAttrs>(), call.in[0].shape()[0], call.in[0].shape().cols(),
                       call.in[0].as<const int32_t>(), sequences_of(call, 1, call.in[0].shape()[0]),
                       call.out[0].as<float>(), call.device.launch());
}

Status expert_load_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.out[0]}));
  const auto& a = call.attrs<CountAttrs>();
  return expert_load(call.in[0].as<const float>(), call.in[0].elements() / a.experts, a.experts, a.accumulate,
                     call.out[0].as<float>(), call.device.launch());
}

Status loss_sum_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0]}));
  return loss_sum(call.attrs<LossSumAttrs>(), call.in[0].as<const float>(), call.in[0].elements(),
                  call.out[0].as<double>(), call.device.launch());
}

Status expert_bias_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[0], &call.out[0]}));
  return expert_bias(call.in[0].as<const float>(), call.in[0].elements(), call.attrs<ExpertBiasAttrs>().rate,
                     call.out[0].as<float>(), call.device.launch());
}

Status dispatch_plan_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[1]}));
  const auto& a = call.attrs<DispatchAttrs>();
  Alarm alarm;
  if (a.peers > 1 && a.capacity == 0) {
    MB_ASSIGN(alarm.flag, call.device.alarm());
    alarm.op = static_cast<int32_t>(call.id);
  }
  const int64_t pairs = call.in[0].elements();
  MB_ASSIGN(void* const workspace, call.device.scratch(dispatch_workspace(a, pairs)));
  return dispatch_plan(a, pairs, call.in[0].as<const int32_t>(), call.in[1].as<const float>(),
                       call.out[0].as<int32_t>(), call.out[1].as<int32_t>(), workspace, alarm, call.device.launch());
}

Status kept_experts_op(const OpCall& call) {
  const int64_t pairs = call.in[0].elements();
  return kept_experts(pairs, call.in[0].as<const int32_t>(),
                      call.in[1].as<const int32_t>() + call.coordinates.tp * pairs, call.out[0].as<int32_t>(),
                      call.device.launch());
}

// A row of x goes to its token's experts; where x has a row for every pair, to that pair's.
Status permute_op(const OpCall& call) {
  MB_ASSIGN(Routed r, routed(call.out[0], call.in[1]));
  r.tokens = call.in[0].shape().rows(), r.top_k = call.in[1].elements() / r.tokens;
  return permute(r, call.in[0].data, call.out[0].data, call.device.launch());
}

Status permute_grad_op(const OpCall& call) {
  MB_ASSIGN(const Routed r, routed(call.in[0], call.in[1]));
  return permute_grad(r, call.in[0].data, call.out[0].data, call.device.launch());
}

Status combine_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[2]}));
  MB_ASSIGN(const Routed r, routed(call.in[0], call.in[1]));
  return combine(r, call.in[0].data, call.in[2].as<const float>(), call.out[0].data, call.device.launch());
}

Status combine_grad_op(const OpCall& call) {
  MB_TRY(all_fp32({&call.in[3], &call.out[1]}));
  MB_ASSIGN(const Routed r, routed(call.in[1], call.in[2]));
  return combine_grad(r, call.in[0].data, call.in[1].data, call.in[3].as<const float>(), call.out[0].data,
                      call.out[1].as<float>(), call.device.launch());
}

Status grouped_gemm_op(const OpCall& call) {
  const Shape& w = call.in[1].shape();
  MB_ASSIGN(const GroupedGemm g, grouped(call, call.in[0], w[1], w[2], call.in[2]));
  return grouped_fprop(g, call.in[0].data, call.in[1].data, call.out[0].data, call.device.launch());
}

Status grouped_gemm_dgrad_op(const OpCall& call) {
  const Shape& w = call.in[1].shape();
  MB_ASSIGN(const GroupedGemm g, grouped(call, call.in[0], w[1], w[2], call.in[2]));
  return grouped_dgrad(g, call.in[0].data, call.in[1].data, call.out[0].data, call.device.launch());
}

Status grouped_gemm_wgrad_op(const OpCall& call) {
  MB_ASSIGN(GroupedGemm g, grouped(call, call.in[0], call.in[0].shape().cols(), call.in[1].shape().cols(), call.in[2]));
  MB_ASSIGN(g.gradient, element_of(*call.out[0].tensor));
  if (g.gradient != Element::kF32 && !grouped_on_hopper(g, {call.in[0].data, call.in[1].data, call.out[0].data}))
    return with_f32_gradients(call, grouped_gemm_wgrad_op);
  return grouped_wgrad(g, call.in[0].data, call.in[1].data, call.out[0].data, adds(call.attrs<GroupedGemmAttrs>()),
                       call.device.launch());
}

Status grouped_bias_op(const OpCall& call) {
  const auto& a = call.attrs<GroupedBiasAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return grouped_bias(element, {call.in[0].shape().rows(), call.in[0].shape().cols()}, call.in[0].data, call.in[1].data,
                      call.in[2].as<const int32_t>(), call.in[2].shape()[1], a.scale, call.out[0].data,
                      call.device.launch());
}

Status grouped_bias_grad_op(const OpCall& call) {
  const auto& a = call.attrs<GroupedBiasAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return grouped_bias_grad(element, {call.in[0].shape().rows(), call.in[0].shape().cols()}, call.in[0].data,
                           call.in[1].as<const int32_t>(), call.in[1].shape()[1], a.gradient, a.accumulate,
                           call.out[0].as<float>(), call.device.launch());
}

namespace {

struct RouterRole {
  GemmRole role;
  RouterProduct shape;
};

// What a product of bf16 tokens or weights is to its router; nullopt: operands of other types.
std::optional<RouterRole> router_role(const OpCall& call, const GemmAttrs& a) {
  const Shape &left = call.in[0].shape(), &right = call.in[1].shape();
  const auto types = [&](DType first, DType out) {
    return call.in[0].tensor->dtype == first && call.in[1].tensor->dtype == DType::kBf16 &&
           call.out[0].tensor->dtype == out;
  };
  if (!a.trans_a && a.trans_b && !a.accumulate && types(DType::kBf16, DType::kF32))
    return RouterRole{GemmRole::kFprop, {left.rows(), left.cols(), right.rows()}};
  const RouterProduct backward{left.rows(), right.cols(), left.cols()};
  if (!a.trans_a && !a.trans_b && !a.accumulate && types(DType::kF32, DType::kBf16))
    return RouterRole{GemmRole::kDgrad, backward};
  if (a.trans_a && !a.trans_b && types(DType::kF32, DType::kF32)) return RouterRole{GemmRole::kWgrad, backward};
  return std::nullopt;
}

// By kernels of their own.
Status few_experts(const OpCall& call, const RouterRole& r, bool accumulate) {
  const Launch launch = call.device.launch();
  const Operand &left = call.in[0], &right = call.in[1], &out = call.out[0];
  if (r.role == GemmRole::kFprop) return router_logits(r.shape, left.data, right.data, out.as<float>(), launch);
  if (r.role == GemmRole::kDgrad) return router_dgrad(r.shape, left.as<const float>(), right.data, out.data, launch);
  MB_ASSIGN(void* const workspace, call.device.scratch(router_wgrad_workspace(r.shape, launch)));
  return router_wgrad(r.shape, left.as<const float>(), right.data, out.as<float>(), accumulate, workspace, launch);
}

// By the library in bf16: fp32 gradients are three bf16 parts, which a product holds one behind the other (dgrad) or
// below each other (wgrad).
Status many_experts(const OpCall& call, const RouterRole& r, bool accumulate) {
  const Launch launch = call.device.launch();
  const Operand &left = call.in[0], &right = call.in[1], &out = call.out[0];
  const RouterProduct& s = r.shape;
  const int64_t parts_rows = 3 * padded_experts(s), parts_bytes = (s.tokens * parts_rows * 2 + 255) / 256 * 256;
  GemmProblem p;
  GemmBuffers b;
  b.a = left.data, b.b = right.data, b.d = out.data, b.workspace = call.device.gemm_workspace();
  if (r.role == GemmRole::kFprop) {
    p.m = s.tokens, p.n = s.experts, p.k = s.hidden, p.b_transposed = true, p.d = Element::kF32;
  } else {
    const bool dgrad = r.role == GemmRole::kDgrad;
    MB_ASSIGN(void* const scratch, call.device.scratch(parts_bytes + parts_rows * s.hidden * (dgrad ? 2 : 4)));
    void* const behind = static_cast<std::byte*>(scratch) + parts_bytes;
    MB_TRY(router_split_gradients(s, left.as<const float>(), scratch, launch));
    b.a = scratch;
    if (dgrad) {
      MB_TRY(router_stack_weights(s, right.data, behind, launch));
      b.b = behind;
      p.m = s.tokens, p.n = s.hidden, p.k = parts_rows;
    } else {
      b.d = behind;
      p.m = parts_rows, p.n = s.hidden, p.k = s.tokens, p.a_transposed = true, p.d = Element::kF32;
    }
  }
  p.alignment = gemm_alignment(b);
  MB_TRY(call.device.gemm().run(p, b, call.device.stream()));
  if (r.role != GemmRole::kWgrad) return {};
  return router_sum_parts(s, static_cast<const float*>(b.d), out.as<float>(), accumulate, launch);
}

}  // namespace

// Logits are fp32 and so is their gradient: where operands differ in type both become fp32 first.
Status router_gemm_op(const OpCall& call) {
  const auto& a = call.attrs<GemmAttrs>();
  if (const auto role = router_role(call, a)) {
    const auto addresses = {static_cast<const void*>(call.in[0].data), static_cast<const void*>(call.in[1].data),
                            static_cast<const void*>(call.out[0].data)};
    if (router_product_takes(role->shape, addresses)) return few_experts(call, *role, a.accumulate);
    if (router_parts_take(role->shape, addresses)) return many_experts(call, *role, a.accumulate);
  }
  const Shape &left = call.in[0].shape(), &right = call.in[1].shape();
  GemmProblem p;
  p.m = a.trans_a ? left.cols() : left.rows();
  p.k = a.trans_a ? left.rows() : left.cols();
  p.n = a.trans_b ? right.rows() : right.cols();
  p.a_transposed = a.trans_a;
  p.b_transposed = a.trans_b;
  p.accumulate = a.accumulate;
  p.a = p.b = p.d = Element::kF32;
  MB_ASSIGN(const Element out, element_of(*call.out[0].tensor));
  int64_t bytes = 0;
  std::array<int64_t, 3> at{};
  const std::array<const Operand*, 3> operands{&call.in[0], &call.in[1], &call.out[0]};
  for (size_t i = 0; i < operands.size(); ++i) {
    at[i] = bytes;
    if (operands[i]->tensor->dtype != DType::kF32) bytes += (operands[i]->elements() * 4 + 255) / 256 * 256;
  }
  if (p.accumulate && out != Element::kF32)
    return fail(ErrorCode::kBadArgument, "CUDA: a router's gradient accumulates in fp32 only");
  MB_ASSIGN(void* const scratch, call.device.scratch(bytes));
  std::array<void*, 3> data{};
  for (size_t i = 0; i < operands.size(); ++i) {
    MB_ASSIGN(const Element element, element_of(*operands[i]->tensor));
    data[i] = element == Element::kF32 ? operands[i]->data : static_cast<std::byte*>(scratch) + at[i];
    if (i < 2 && element != Element::kF32)
      MB_TRY(cast(element, operands[i]->data, Element::kF32, data[i], operands[i]->elements(), call.device.launch()));
  }
  GemmBuffers b;
  b.a = data[0], b.b = data[1], b.d = data[2];
  b.workspace = call.device.gemm_workspace();
  p.alignment = gemm_alignment(b);
  MB_TRY(call.device.gemm().run(p, b, call.device.stream()));
  return out == Element::kF32
             ? Status{}
             : cast(Element::kF32, data[2], out, call.out[0].data, call.out[0].elements(), call.device.launch());
}

}  // namespace mbb::trainer::cuda
