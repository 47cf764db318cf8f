// The visible list of CUDA op functions, and those that are one launch.
#include "trainer/execute/cuda/op_call.h"

#include <array>
#include <vector>

#include "trainer/execute/cuda/f32_gradients.h"
#include "trainer/ops/cuda/any_shape.h"
#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

struct Named {
  std::string_view name;
  OpFunction function;
};

constexpr std::array kFunctions = {
    Named{"gemm", gemm_op},
    Named{"rmsnorm", rmsnorm_op},
    Named{"rmsnorm_grad", f32_gradients<rmsnorm_grad_op>},
    Named{"embedding", embedding_op},
    Named{"embedding_grad", embedding_grad_op},
    Named{"rope", rope_op},
    Named{"attention", attention_op},
    Named{"attention_grad", f32_gradients<attention_grad_op>},
    Named{"swiglu", swiglu_op},
    Named{"swiglu_grad", swiglu_grad_op},
    Named{"add", add_op},
    Named{"fill_zero", fill_zero_op},
    Named{"cast", cast_op},
    Named{"copy", copy_op},
    Named{"gemm_add", gemm_op},
    Named{"gemm_swiglu", gemm_swiglu_op},
    Named{"gemm_swiglu_grad", gemm_swiglu_grad_op},
    Named{"gemm_scaled_add", gemm_scaled_op},
    Named{"rmsnorm_grad_add", f32_gradients<rmsnorm_grad_add_op>},
    Named{"cross_entropy_fused", cross_entropy_fused_op},
    Named{"amax", amax_op},
    Named{"quantize", quantize_op},
    Named{"rmsnorm_quantize", rmsnorm_quantize_op},
    Named{"swiglu_quantize", swiglu_quantize_op},
    Named{"swiglu_grad_quantize", swiglu_grad_quantize_op},
    Named{"gemm_scaled", gemm_scaled_op},
    Named{"gemm_scaled_rows", gemm_scaled_rows_op},
    Named{"quantize_blocks", quantize_blocks_op},
    Named{"gemm_blocks", gemm_blocks_op},
    Named{"grouped_gemm_quantized", grouped_gemm_quantized_op},
    Named{"grouped_gemm_quantized_dgrad", grouped_gemm_quantized_dgrad_op},
    Named{"grouped_gemm_quantized_wgrad", grouped_gemm_quantized_wgrad_op},
    Named{"mask_vocabulary", mask_vocabulary_op},
    Named{"cross_entropy_max", cross_entropy_max_op},
    Named{"cross_entropy_sum", cross_entropy_sum_op},
    Named{"cross_entropy_loss", cross_entropy_loss_op},
    Named{"cross_entropy_grad", cross_entropy_grad_op},
    Named{"layernorm", layernorm_op},
    Named{"layernorm_grad", f32_gradients<layernorm_grad_op>},
    Named{"bias_add", bias_add_op},
    Named{"bias_add_grad", f32_gradients<bias_add_grad_op>},
    Named{"position_embedding", position_embedding_op},
    Named{"position_embedding_grad", f32_gradients<position_embedding_grad_op>},
    Named{"qk_norm", qk_norm_op},
    Named{"qk_norm_grad", f32_gradients<qk_norm_grad_op>},
    Named{"activation", activation_op},
    Named{"activation_grad", activation_grad_op},
    Named{"dropout", dropout_op},
    Named{"scale_by", scale_by_op},
    Named{"latent_pack", latent_pack_op},
    Named{"latent_pack_grad", latent_pack_grad_op},
    Named{"shift_tokens", shift_tokens_op},
    Named{"cross_attention", cross_attention_op},
    Named{"cross_attention_grad", f32_gradients<cross_attention_grad_op>},
    Named{"router_gemm", f32_gradients<router_gemm_op>},
    Named{"router_select", router_select_op},
    Named{"router_weights", router_weights_op},
    Named{"router_weights_grad", router_weights_grad_op},
    Named{"router_loss", router_loss_op},
    Named{"router_loss_grad", router_loss_grad_op},
    Named{"expert_counts", expert_counts_op},
    Named{"expert_load", expert_load_op},
    Named{"loss_sum", loss_sum_op},
    Named{"expert_bias", expert_bias_op},
    Named{"router", router_op},
    Named{"unpermute", unpermute_op},
    Named{"weighted_sum", weighted_sum_op},
    Named{"weighted_sum_grad", weighted_sum_grad_op},
    Named{"quantize_tokens", quantize_tokens_op},
    Named{"dequantize_tokens", dequantize_tokens_op},
    Named{"segment_counts", segment_counts_op},
    Named{"receive_plan", receive_plan_op},
    Named{"merge_pieces", merge_pieces_op},
    Named{"dispatch_plan", dispatch_plan_op},
    Named{"kept_experts", kept_experts_op},
    Named{"permute", permute_op},
    Named{"permute_grad", permute_grad_op},
    Named{"combine", combine_op},
    Named{"combine_grad", combine_grad_op},
    Named{"grouped_gemm", grouped_gemm_op},
    Named{"grouped_gemm_dgrad", grouped_gemm_dgrad_op},
    Named{"grouped_gemm_wgrad", grouped_gemm_wgrad_op},
    Named{"grouped_bias", grouped_bias_op},
    Named{"grouped_bias_grad", f32_gradients<grouped_bias_grad_op>},
    Named{"group_identity", group_identity_op},
    Named{"bias_activation", bias_activation_op},
    Named{"bias_activation_grad", bias_activation_grad_op},
    Named{"bias_dropout_add", bias_dropout_add_op},
    Named{"attention_scores", attention_scores_op},
    Named{"attention_scores_grad", attention_scores_grad_op},
    Named{"scale_mask", scale_mask_op},
    Named{"scale_mask_grad", scale_mask_grad_op},
    Named{"softmax", softmax_op},
    Named{"softmax_grad", softmax_grad_op},
    Named{"masked_softmax", masked_softmax_op},
    Named{"masked_softmax_grad", masked_softmax_grad_op},
    Named{"attention_context", attention_context_op},
    Named{"attention_context_grad", attention_context_grad_op},
    Named{"quantize_delayed", quantize_delayed_op},
    Named{"amax_record", amax_record_op},
    Named{"scale_update", scale_update_op},
    Named{"scalar_sum", scalar_sum_op},
    Named{"transpose_quantized", transpose_quantized_op},
    Named{"bucket_amax", bucket_amax_op},
    Named{"bucket_quantize", bucket_quantize_op},
    Named{"grad_square_sum", grad_square_sum_op},
    Named{"grad_scale", grad_scale_op},
    Named{"adamw", adamw_op},
    Named{"delay", delay_op},
    Named{"all_gather", all_gather_op},
    Named{"reduce_scatter", reduce_scatter_op},
    Named{"all_reduce", all_reduce_op},
    Named{"all_to_all", all_to_all_op},
    Named{"all_to_all_rows", all_to_all_rows_op},
    Named{"ring_shift", ring_shift_op},
    Named{"send", send_op},
    Named{"recv", recv_op},
    Named{"reshard_send", send_op},
    Named{"reshard_recv", recv_op},
    Named{"split_columns", split_columns_op},
    Named{"join_columns", join_columns_op},
    Named{"columns_to_rows", columns_to_rows_op},
    Named{"rows_to_columns", rows_to_columns_op},
    Named{"reorder_runs", reorder_runs_op},
    Named{"merge_attention", merge_attention_op},
    Named{"add_parts", add_parts_op},
    Named{"gemm_rows", gemm_rows_op},
    Named{"pack_fp8", pack_fp8_op},
    Named{"unpack_fp8", unpack_fp8_op},
};

}  // namespace

OpFunction find_op_function(std::string_view cuda_name) {
  for (const Named& entry : kFunctions)
    if (entry.name == cuda_name) return entry.function;
  return nullptr;
}

Result<const int32_t*> own_starts(const OpCall& call, size_t operand, int64_t tokens, int64_t beside) {
  const int64_t offset = (beside + 255) / 256 * 256;
  MB_ASSIGN(void* const scratch, call.device.scratch(offset + tokens * 4));
  auto* own = reinterpret_cast<int32_t*>(static_cast<std::byte*>(scratch) + offset);
  const auto* starts = call.in[operand].as<const int32_t>();
  MB_TRY(
      sequence_rows({starts, tokens, starts, tokens, call.in[operand].elements()}, own, nullptr, call.device.launch()));
  return static_cast<const int32_t*>(own);
}

Result<RotaryTables> rotary_tables(const OpCall& call, const Rotation& rotation, int turned, int64_t seq,
                                   size_t operand) {
  RotaryTables tables;
  MB_ASSIGN(tables.table, call.device.rope_table(seq, turned, rotation));
  if (!rotation.packed) return tables;
  MB_TRY(whole_pack(rotation.positions));
  MB_ASSIGN(tables.own, own_starts(call, operand, seq, 0));
  return tables;
}

Result<PackSpans> pack_spans(const OpCall& call, size_t first, int64_t queries, int64_t keys, bool apart,
                             int64_t beside) {
  const int64_t offset = (beside + 255) / 256 * 256;
  MB_ASSIGN(void* const scratch, call.device.scratch(offset + 2 * (queries + keys) * 4));
  auto* const at = reinterpret_cast<int32_t*>(static_cast<std::byte*>(scratch) + offset);
  const Operand &of_queries = call.in[first], &of_keys = call.in[first + (apart ? 1 : 0)];
  if (of_queries.elements() != of_keys.elements())
    return fail(ErrorCode::kBadArgument, call.op.path + ": packs of queries and of keys hold as many sequences");
  const int64_t count = of_queries.elements();
  const auto *q = of_queries.as<const int32_t>(), *k = of_keys.as<const int32_t>();
  MB_TRY(sequence_rows({q, queries, k, keys, count}, at, at + queries, call.device.launch()));
  // Of one pack both say the same.
  if (!apart && queries == keys) return PackSpans{at, at + queries, at, at + queries};
  auto* const of_key = at + 2 * queries;
  MB_TRY(sequence_rows({k, keys, q, queries, count}, of_key, of_key + keys, call.device.launch()));
  return PackSpans{at, at + queries, of_key, of_key + keys};
}

std::vector<int32_t> places_of(const mbb::trainer::Positions& positions) {
  std::vector<int32_t> places(positions.starts.size() * static_cast<size_t>(positions.run));
  for (size_t row = 0; row < places.size(); ++row)
    places[row] = static_cast<int32_t>(positions.at(static_cast<int64_t>(row)));
  return places;
}

Result<const int32_t*> places_of(const OpCall& call, const mbb::trainer::Positions& positions, bool packed) {
  if (positions.whole()) return static_cast<const int32_t*>(nullptr);
  if (packed) MB_TRY(whole_pack(positions));
  MB_ASSIGN(const void* const table,
            call.device.constant(&call.op, std::as_bytes(std::span<const int32_t>(places_of(positions)))));
  return static_cast<const int32_t*>(table);
}

Result<Element> element_of(const Tensor& tensor) {
  if (tensor.dtype == DType::kF32) return Element::kF32;
  if (tensor.dtype == DType::kBf16) return Element::kBf16;
  return fail(ErrorCode::kUnavailable, std::string("CUDA: tensor ") + tensor.path + " is " +
                                           mbb::trainer::name(tensor.dtype) + "; this op runs in f32 and bf16");
}

Result<double> timed(const OpCall& call, int calls, const std::function<Status()>& run) {
  cudaEvent_t begin = nullptr, end = nullptr;
  const cudaStream_t stream = call.device.stream();
  MB_TRY(run());
  Status status = ok(cudaEventCreate(&begin), "creating an event");
  if (status) status = ok(cudaEventCreate(&end), "creating an event");
  if (status) status = ok(cudaEventRecord(begin, stream), "timing an op");
  for (int i = 0; i < calls && status; ++i) status = run();
  if (status) status = ok(cudaEventRecord(end, stream), "timing an op");
  if (status) status = ok(cudaEventSynchronize(end), "timing an op");
  float ms = 0.0f;
  if (status) status = ok(cudaEventElapsedTime(&ms, begin, end), "timing an op");
  for (cudaEvent_t event : {begin, end})
    if (event != nullptr) cudaEventDestroy(event);
  MB_TRY(status);
  return static_cast<double>(ms) / calls;
}

Status swiglu_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const RowShape shape{call.out[0].shape().rows(), call.out[0].shape().cols()};
  if (!vectorizes(shape.cols, {call.in[0].data, call.out[0].data}))
    return any_swiglu_forward(element, shape, call.in[0].data, call.out[0].data, call.device.stream());
  return swiglu_forward(element, shape, call.in[0].data, call.out[0].data, call.device.launch());
}

Status swiglu_grad_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const RowShape shape{call.in[0].shape().rows(), call.in[0].shape().cols()};
  if (!vectorizes(shape.cols, {call.in[0].data, call.in[1].data, call.out[0].data}))
    return any_swiglu_backward(element, shape, call.in[1].data, call.in[0].data, call.out[0].data,
                               call.device.stream());
  return swiglu_backward(element, shape, call.in[1].data, call.in[0].data, call.out[0].data, call.device.launch());
}

Status add_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  MB_ASSIGN(const Element of_b, element_of(*call.in[1].tensor));
  if (of_b != element) {  // a weight gradient on top of the main gradient
    MB_CHECK(element == Element::kF32 && call.out[0].tensor->dtype == DType::kF32, "a sum of fp32 and bf16 is fp32");
    return add_bf16(call.in[0].as<const float>(), call.in[1].data, call.out[0].as<float>(), call.out[0].elements(),
                    call.device.launch());
  }
  return add(element, call.in[0].data, call.in[1].data, call.out[0].data, call.out[0].elements(), call.device.launch());
}

// Forward: each rank of the group goes on with what all hold.
Status group_identity_op(const OpCall& call) {
  if (call.out[0].data == call.in[0].data) return {};
  return ok(cudaMemcpyAsync(call.out[0].data, call.in[0].data, static_cast<size_t>(call.out[0].tensor->bytes()),
                            cudaMemcpyDeviceToDevice, call.device.stream()),
            "copying what a group holds");
}

Status fill_zero_op(const OpCall& call) {
  return ok(
      cudaMemsetAsync(call.out[0].data, 0, static_cast<size_t>(call.out[0].tensor->bytes()), call.device.stream()),
      "filling with zeros");
}

// Either side may be pinned host memory: one address space tells which.
Status copy_op(const OpCall& call) {
  return ok(cudaMemcpyAsync(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].tensor->bytes()),
                            cudaMemcpyDefault, call.device.stream()),
            "copying between device and host");
}

Status cast_op(const OpCall& call) {
  MB_ASSIGN(const Element from, element_of(*call.in[0].tensor));
  MB_ASSIGN(const Element to, element_of(*call.out[0].tensor));
  return cast(from, call.in[0].data, to, call.out[0].data, call.out[0].elements(), call.device.launch());
}

namespace {

struct GemmCall {
  GemmProblem problem;
  GemmBuffers buffers;
};

Result<GemmCall> gemm_call(const OpCall& call) {
  const auto& a = call.attrs<GemmAttrs>();
  const Shape &left = call.in[0].shape(), &right = call.in[1].shape();
  GemmCall g;
  GemmProblem& p = g.problem;
  p.m = a.trans_a ? left.cols() : left.rows();
  p.k = a.trans_a ? left.rows() : left.cols();
  p.n = a.trans_b ? right.rows() : right.cols();
  p.a_transposed = a.trans_a;
  p.b_transposed = a.trans_b;
  p.accumulate = a.accumulate;
  p.sm_target = call.product_sms(a.sm_margin);
  MB_ASSIGN(p.a, element_of(*call.in[0].tensor));
  MB_ASSIGN(p.b, element_of(*call.in[1].tensor));
  MB_ASSIGN(p.d, element_of(*call.out[0].tensor));
  g.buffers.a = call.in[0].data;
  g.buffers.b = call.in[1].data;
  g.buffers.d = call.out[0].data;
  p.add_c = !a.accumulate && call.in.size() > 2;  // gemm_add
  if (p.add_c) g.buffers.c = call.in[2].data;
  g.buffers.workspace = call.device.gemm_workspace();
  p.alignment = gemm_alignment(g.buffers);
  return g;
}

}  // namespace

Status gemm_op(const OpCall& call) {
  MB_ASSIGN(const GemmCall g, gemm_call(call));
  return call.device.gemm().run(g.problem, g.buffers, call.device.stream());
}

Status tune_gemm_op(const OpCall& call, const TuneEffort& effort) {
  MB_ASSIGN(const GemmCall g, gemm_call(call));
  return call.device.tune(g.problem, g.buffers, effort);
}

bool is_refused(const OpCall& call, const GemmProblem& problem) {
  return call.device.refused("GEMM " + key(problem));
}

Status note_refusal(const OpCall& call, const GemmProblem& problem, const Status& status) {
  if (status || status.error().code != ErrorCode::kUnavailable) return status;
  call.device.refuse("GEMM " + key(problem), status.error().what + "; its codes' values are multiplied in bf16");
  return {};
}

}  // namespace mbb::trainer::cuda
