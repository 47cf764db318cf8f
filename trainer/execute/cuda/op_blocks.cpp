// CUDA functions of the blocks of families besides Llama: LayerNorm, biases, positions, head norms, activations,
// dropout, latent attention's packing.
#include <map>
#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/any_shape.h"
#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/latent_kernels.h"
#include "trainer/ops/cuda/part_kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

RowShape rows_of(const Operand& operand) {
  return {operand.shape().rows(), operand.shape().cols()};
}

}  // namespace

Status layernorm_op(const OpCall& call) {
  NormForward n;
  MB_ASSIGN(n.element, element_of(*call.in[0].tensor));
  n.shape = rows_of(call.in[0]);
  n.layer = true;
  n.eps = call.attrs<NormAttrs>().eps;
  n.weight_offset = call.attrs<NormAttrs>().one_plus ? 1.0f : 0.0f;
  n.x = call.in[0].data;
  n.weight = call.in[1].data;
  n.bias = call.in[2].data;
  n.y = call.out[0].data;
  n.mean = call.out[1].as<float>();
  n.rstd = n.mean + n.shape.rows;
  if (!vectorizes(n.shape.cols, {n.x, n.weight, n.bias, n.y})) return any_norm_forward(n, call.device.stream());
  return norm_forward(n, norm_launch(call));
}

Status layernorm_grad_op(const OpCall& call) {
  NormBackward n;
  MB_ASSIGN(n.element, element_of(*call.in[0].tensor));
  n.shape = rows_of(call.in[1]);
  n.layer = true;
  n.accumulate = call.attrs<NormAttrs>().accumulate;
  n.weight_offset = call.attrs<NormAttrs>().one_plus ? 1.0f : 0.0f;
  n.dy = call.in[0].data;
  n.x = call.in[1].data;
  n.weight = call.in[2].data;
  n.mean = call.in[4].as<const float>();
  n.rstd = n.mean + n.shape.rows;
  n.dweight = call.out[0].as<float>();
  n.dbias = call.out[1].as<float>();
  n.dx = call.out[2].data;
  if (!vectorizes(n.shape.cols, {n.x, n.dy, n.weight, n.dx})) return any_norm_backward(n, call.device.stream());
  MB_ASSIGN(void* const partials, call.device.scratch(norm_backward_partials(n.shape, true, norm_launch(call).sms)));
  n.partials = static_cast<float*>(partials);
  return norm_backward(n, norm_launch(call));
}

Status bias_add_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  MB_ASSIGN(const Element of_bias, element_of(*call.in[1].tensor));
  return bias_add(element, rows_of(call.in[0]), call.in[0].data, of_bias, call.in[1].data,
                  call.attrs<BiasAttrs>().scale, call.out[0].data, call.device.launch());
}

Status bias_add_grad_op(const OpCall& call) {
  const auto& a = call.attrs<BiasAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  MB_ASSIGN(void* const workspace, call.device.scratch(column_sums_workspace(rows_of(call.in[0]))));
  return column_sums(element, rows_of(call.in[0]), call.in[0].data, a.scale, call.out[0].as<float>(), a.accumulate,
                     workspace, call.device.launch());
}

namespace {

Result<Positions> positions(const OpCall& call) {
  const Shape& shape = call.in[0].shape();
  Positions p;
  MB_ASSIGN(p.element, element_of(*call.in[0].tensor));
  p.seq = shape[0], p.batch = shape[1], p.hidden = shape[2];
  MB_ASSIGN(p.at, places_of(call, call.attrs<PositionAttrs>().positions, call.attrs<PositionAttrs>().packed));
  p.first = call.attrs<PositionAttrs>().sequence_sharded ? call.coordinates.tp * shape[0] : 0;
  p.rows = call.in[1].shape().rows();
  if (call.attrs<PositionAttrs>().packed) {
    MB_ASSIGN(p.own, own_starts(call, 2, p.first + p.seq, 0));
    p.starts = call.in[2].as<const int32_t>();
    p.sequences = call.in[2].elements();
  }
  return p;
}

// The starts of a pack that turns are operand `operand`.
Result<LatentPacking> latent_packing(const OpCall& call, size_t operand) {
  const auto& a = call.attrs<LatentAttrs>();
  const Shape& shape = call.in[0].shape();
  LatentPacking p;
  MB_ASSIGN(p.element, element_of(*call.in[0].tensor));
  p.tokens = shape.rows();
  p.heads = a.heads, p.nope = a.nope, p.rope = a.rope, p.value = a.value;
  if (!a.turns) return p;
  p.batch = shape[1], p.turned = a.turned(), p.interleaved = a.rotation.interleaved;
  MB_ASSIGN(const RotaryTables tables, rotary_tables(call, a.rotation, p.turned, shape[0], operand));
  p.table = tables.table, p.own = tables.own;
  return p;
}

}  // namespace

Status position_embedding_op(const OpCall& call) {
  MB_ASSIGN(const Positions p, positions(call));
  return position_add(p, call.in[0].data, call.in[1].data, call.out[0].data, call.device.launch());
}

Status position_embedding_grad_op(const OpCall& call) {
  MB_ASSIGN(const Positions p, positions(call));
  return position_grad(p, call.in[0].data, call.out[0].as<float>(), call.attrs<PositionAttrs>().accumulate,
                       call.device.launch());
}

namespace {

Result<HeadNorm> head_norm(const OpCall& call, const Operand& x, const Operand& query, const Operand& key,
                           const Operand& inverse) {
  const auto& a = call.attrs<QkNormAttrs>();
  HeadNorm n;
  MB_ASSIGN(n.element, element_of(*x.tensor));
  n.tokens = x.shape().rows(), n.width = x.shape().cols();
  n.heads = a.heads, n.kv_heads = a.kv_heads, n.head_dim = a.head_dim, n.eps = a.eps;
  n.x = x.data;
  n.query_weight = query.data, n.key_weight = key.data;
  n.inverse = inverse.as<float>();
  return n;
}

}  // namespace

Status qk_norm_op(const OpCall& call) {
  MB_ASSIGN(const HeadNorm n, head_norm(call, call.in[0], call.in[1], call.in[2], call.out[1]));
  return head_norm_forward(n, call.out[0].data, call.device.launch());
}

Status qk_norm_grad_op(const OpCall& call) {
  MB_ASSIGN(const HeadNorm n, head_norm(call, call.in[1], call.in[2], call.in[3], call.in[4]));
  MB_ASSIGN(void* const workspace, call.device.scratch(head_norm_workspace(n)));
  return head_norm_backward(n, call.in[0].data, call.out[2].data, call.out[0].as<float>(), call.out[1].as<float>(),
                            call.attrs<QkNormAttrs>().accumulate, workspace, call.device.launch());
}

Status activation_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return activation_forward(element, call.attrs<ActivationAttrs>(), rows_of(call.out[0]), call.in[0].data,
                            call.out[0].data, call.device.launch());
}

Status activation_grad_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return activation_backward(element, call.attrs<ActivationAttrs>(), rows_of(call.in[0]), call.in[1].data,
                             call.in[0].data, call.out[0].data, call.device.launch());
}

Status bias_activation_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return bias_activation(element, call.attrs<ActivationAttrs>(), rows_of(call.out[0]), call.in[0].data, call.in[1].data,
                         nullptr, call.out[0].data, call.device.launch());
}

Status bias_activation_grad_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return bias_activation(element, call.attrs<ActivationAttrs>(), rows_of(call.in[0]), call.in[1].data, call.in[2].data,
                         call.in[0].data, call.out[0].data, call.device.launch());
}

// in: residual, x [, bias] [, samples, step record].
Status bias_dropout_add_op(const OpCall& call) {
  const auto& a = call.attrs<DropoutAttrs>();
  const Shape& shape = call.in[0].shape();
  Dropout d;
  MB_ASSIGN(d.element, element_of(*call.in[0].tensor));
  d.hidden = shape.cols();
  d.batch = shape.rank() > 2 ? shape[1] : 1;
  d.seq = shape.rows() / d.batch;
  d.probability = a.probability, d.stream = a.stream;
  const size_t last = call.in.size();
  if (a.probability > 0) {
    MB_ASSIGN(d.at, places_of(call, a.positions, a.packed));
    d.first = a.sequence_sharded ? call.coordinates.tp * shape[0] : 0;
    d.samples = call.in[last - 2].as<const int32_t>();
    d.record = call.in[last - 1].as<const float>();
  }
  const bool biased = last == (a.probability > 0 ? 5U : 3U);
  return bias_dropout_add(d, call.in[0].data, call.in[1].data, biased ? call.in[2].data : nullptr, call.out[0].data,
                          call.device.launch());
}

Status dropout_op(const OpCall& call) {
  const auto& a = call.attrs<DropoutAttrs>();
  const Shape& shape = call.in[0].shape();
  Dropout d;
  MB_ASSIGN(d.element, element_of(*call.in[0].tensor));
  d.seq = shape[0], d.batch = shape[1], d.hidden = shape[2];
  MB_ASSIGN(d.at, places_of(call, a.positions, a.packed));
  d.first = a.sequence_sharded ? call.coordinates.tp * shape[0] : 0;
  d.probability = a.probability, d.stream = a.stream;
  d.samples = call.in[1].as<const int32_t>();
  d.record = call.in[2].as<const float>();
  return dropout(d, call.in[0].data, call.out[0].data, call.device.launch());
}

Status scale_by_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return multiply(element, call.in[0].data, static_cast<float>(call.attrs<ScaleByAttrs>().forward), call.out[0].data,
                  call.out[0].elements(), call.device.launch());
}

Status latent_pack_op(const OpCall& call) {
  MB_ASSIGN(const LatentPacking p, latent_packing(call, 3));
  return latent_pack(p, call.in[0].data, call.in[1].data, call.in[2].data, call.out[0].data, call.device.launch());
}

Status latent_pack_grad_op(const OpCall& call) {
  MB_ASSIGN(const LatentPacking p, latent_packing(call, 1));
  return latent_unpack_grad(p, call.in[0].data, call.out[0].data, call.out[1].data, call.out[2].data,
                            call.device.launch());
}

Status shift_tokens_op(const OpCall& call) {
  const auto& a = call.attrs<ShiftAttrs>();
  const int64_t batch = call.in[0].shape()[1], tokens = call.in[0].shape()[0];
  const int32_t* past = nullptr;
  if (a.packed) {
    MB_TRY(whole_pack(a.to));
    MB_TRY(whole_pack(a.from));
    MB_ASSIGN(const PackSpans spans, pack_spans(call, 1, tokens, tokens, false, 0));
    past = spans.key_past;
  }
  if (a.to.whole() && a.from.whole())
    return shift_tokens(call.in[0].as<const int32_t>(), call.out[0].as<int32_t>(), call.in[0].elements(), a.by * batch,
                        past, call.device.launch());
  std::map<int64_t, int32_t> row_at;  // by place in the whole
  for (int64_t row = 0; row < call.in[0].shape()[0]; ++row) row_at[a.from.at(row)] = static_cast<int32_t>(row);
  std::vector<int32_t> source(static_cast<size_t>(a.rows), -1);
  for (int64_t row = 0; row < a.rows; ++row)
    if (const auto found = row_at.find(a.to.at(row) + a.by); found != row_at.end())
      source[static_cast<size_t>(row)] = found->second;
  MB_ASSIGN(const void* const table, call.device.constant(&call.op, std::as_bytes(std::span<const int32_t>(source))));
  return map_tokens(call.in[0].as<const int32_t>(), static_cast<const int32_t*>(table), a.rows, batch,
                    call.out[0].as<int32_t>(), call.device.launch());
}

}  // namespace mbb::trainer::cuda
