// CUDA functions of the loss, the gradient norm and AdamW.
#include <algorithm>
#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/any_shape.h"
#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

Result<CrossEntropy> cross_entropy(const OpCall& call, const int32_t* labels) {
  CrossEntropy c;
  MB_ASSIGN(c.element, element_of(*call.in[0].tensor));
  c.rows = call.in[0].shape().rows();
  c.vocab = call.in[0].shape().cols();
  c.first = c.vocab * call.coordinates.tp;
  c.logits = call.in[0].data;
  c.gradient = call.in[0].data;
  c.targets = labels;
  c.scalar = !vectorizes(c.vocab, {c.logits});
  return c;
}

bool first_replica(Axis axis, const MeshCoordinates& at) {
  return (axis == Axis::kEtp ? at.etp : at.tp) == 0;
}

int64_t bucket_elements(const OpCall& call, const BucketAttrs& bucket) {
  return bucket.elements > 0 ? bucket.elements : call.in[0].elements();
}

struct Pieces {
  const BucketPiece* table = nullptr;  // on the device
  int count = 0;
};

// The bucket's table on the device: this rank's shard, gaps between tensors as ranges that change nothing. `apart`:
// every tensor has its own piece, with its number.
Result<Pieces> pieces(const OpCall& call, const BucketAttrs& bucket, int64_t elements, float weight_decay,
                      bool apart = false) {
  const int64_t size = bucket.sharded ? elements / bucket.group_size : elements;
  const int64_t begin = bucket.sharded ? size * call.shard_index : 0, end = begin + size;
  std::vector<BucketPiece> list;
  int64_t at = begin;
  for (const BucketRange& r : bucket.ranges) {
    const int64_t from = std::max(r.offset, begin), to = std::min(r.offset + r.count, end);
    if (from >= to) continue;
    if (from > at) list.push_back({from - begin, 0.0f, 0.0f, 0.0f});
    const bool elsewhere = !r.counted || (r.replicated && !first_replica(bucket.replica_axis, call.coordinates));
    const float norm_weight = elsewhere ? 0.0f : 1.0f;
    const int range = apart ? static_cast<int>(&r - bucket.ranges.data()) : -1;
    list.push_back({to - begin, r.decay ? weight_decay : 0.0f, 1.0f, norm_weight, range});
    at = to;
  }
  if (at < end) list.push_back({end - begin, 0.0f, 0.0f, 0.0f});
  // Neighbours that act alike become one.
  std::vector<BucketPiece> merged;
  for (const BucketPiece& p : list) {
    if (!merged.empty() && merged.back().weight_decay == p.weight_decay && merged.back().rate_factor == p.rate_factor &&
        merged.back().norm_weight == p.norm_weight && merged.back().range == p.range)
      merged.back().end = p.end;
    else
      merged.push_back(p);
  }
  Pieces out;
  out.count = static_cast<int>(merged.size());
  MB_ASSIGN(const void* const table,
            call.device.constant(&call.op, std::as_bytes(std::span<const BucketPiece>(merged))));
  out.table = static_cast<const BucketPiece*>(table);
  return out;
}

}  // namespace

Status cross_entropy_max_op(const OpCall& call) {
  MB_ASSIGN(const CrossEntropy c, cross_entropy(call, nullptr));
  return ce_row_max(c, call.out[0].as<float>(), call.device.launch());
}

Status cross_entropy_sum_op(const OpCall& call) {
  MB_ASSIGN(const CrossEntropy c, cross_entropy(call, call.in[2].as<const int32_t>()));
  auto* sums = call.out[0].as<float>();
  return ce_sum_exp(c, call.in[1].as<const float>(), sums, sums + c.rows, call.device.launch());
}

Status cross_entropy_loss_op(const OpCall& call) {
  const int64_t rows = call.in[3].elements();
  const auto* sums = call.in[2].as<const float>();
  return ce_loss(sums, sums + rows, call.in[3].as<const int32_t>(), rows, call.out[0].as<double>(),
                 call.attrs<EmbeddingAttrs>().accumulate, call.device.launch());
}

Status cross_entropy_grad_op(const OpCall& call) {
  MB_ASSIGN(CrossEntropy c, cross_entropy(call, call.in[3].as<const int32_t>()));
  c.gradient = call.out[0].data;
  return ce_gradient(c, call.in[1].as<const float>(), call.in[2].as<const float>(), call.device.launch());
}

Status grad_square_sum_op(const OpCall& call) {
  const auto& bucket = call.attrs<BucketAttrs>();
  const int64_t elements = bucket_elements(call, bucket);
  const int64_t shard = bucket.sharded ? elements / bucket.group_size : elements;
  MB_ASSIGN(const Pieces table, pieces(call, bucket, elements, 0.0f));
  MB_ASSIGN(void* const partials, call.device.scratch(kNormPartials * 8));
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  const int64_t first = call.in[0].elements() == elements && bucket.sharded ? shard * call.shard_index : 0;
  const auto* grads = call.in[0].as<const std::byte>() + first * bytes_of(element);
  return square_sum(element, grads, shard, table.table, table.count, static_cast<double*>(partials),
                    call.out[0].as<double>(), call.device.launch());
}

Status grad_scale_op(const OpCall& call) {
  return grad_scale(call.in[0].as<const double>(), call.in[0].elements(), call.in[1].as<const double>(),
                    call.attrs<ScaleAttrs>().clip_grad, call.out[0].as<float>(), call.device.launch());
}

namespace {

Result<StateElement> state_element(const Tensor& state) {
  switch (state.dtype) {
    case DType::kF32: return StateElement::kF32;
    case DType::kBf16: return StateElement::kBf16;
    case DType::kF16: return StateElement::kF16;
    case DType::kE4M3: return StateElement::kE4m3;
    case DType::kE5M2: return StateElement::kE5m2;
    default: break;
  }
  return fail(ErrorCode::kBadArgument,
              std::string("adamw: state ") + state.path + " is " + mbb::trainer::name(state.dtype));
}

Status adam_in_any_states(const OpCall& call, const AdamBucket& bucket, StateElement first, StateElement second) {
  const auto& a = call.attrs<AdamAttrs>();
  AdamStates s;
  s.bucket = bucket;
  s.exp_avg = first, s.exp_avg_sq = second;
  s.ranges = static_cast<int>(a.bucket.ranges.size());
  if (bucket.form == MasterForm::kScaled) s.scaled_master = call.in[6].data;
  if (a.scaled) {
    s.inverse = call.out.back().as<float>();
    MB_ASSIGN(void* const amax, call.device.scratch(3 * static_cast<int64_t>(sizeof(float)) * s.ranges));
    s.amax = static_cast<float*>(amax);
  }
  return adam_states(s, call.in[4].as<const float>(), call.in[5].as<const float>(), call.device.launch());
}

}  // namespace

Status adamw_op(const OpCall& call) {
  const auto& a = call.attrs<AdamAttrs>();
  using Form = mbb::trainer::MasterForm;
  const bool has_master = a.master == Form::kState;
  AdamBucket b;
  MB_ASSIGN(b.gradients, element_of(*call.in[0].tensor));
  MB_ASSIGN(const StateElement first, state_element(*call.in[2].tensor));
  MB_ASSIGN(const StateElement second, state_element(*call.in[3].tensor));
  b.moments = first == StateElement::kF32 ? Element::kF32 : Element::kBf16;
  // FP8 weights are written behind the update, from the master (bucket_quantize).
  const bool later = has_master && call.in[1].tensor->dtype == DType::kE4M3;
  MB_ASSIGN(const Element weights, later ? Result<Element>(Element::kE4m3) : element_of(*call.in[1].tensor));
  b.count = call.in[2].elements();
  const int64_t begin = a.bucket.sharded ? b.count * call.shard_index : 0;
  const int64_t elements = bucket_elements(call, a.bucket);
  const auto offset = [&](size_t i) { return call.in[i].elements() == elements ? begin : 0; };
  b.gradient = call.in[0].as<const std::byte>() + offset(0) * bytes_of(b.gradients);
  std::byte* const weight = call.in[1].as<std::byte>() + offset(1) * bytes_of(weights);
  b.form = a.master == Form::kRemainder    ? MasterForm::kRemainder
           : a.master == Form::kStochastic ? MasterForm::kStochastic
           : a.master == Form::kScaled     ? MasterForm::kScaled
                                           : MasterForm::kF32;
  b.remainder = a.master == Form::kRemainder ? call.in[6].as<uint16_t>() : nullptr;
  b.seed = static_cast<uint32_t>(a.seed);
  b.master = has_master                 ? call.in[6].as<float>()
             : weights == Element::kF32 ? reinterpret_cast<float*>(weight)
                                        : nullptr;
  b.weight = weights == Element::kBf16 ? weight : nullptr;
  if (has_master && weights == Element::kF32)
    return fail(ErrorCode::kBadArgument, "adamw: fp32 weights have no separate master");
  b.exp_avg = call.in[2].data;
  b.exp_avg_sq = call.in[3].data;
  b.first_index = begin;
  b.beta1 = a.beta1, b.beta2 = a.beta2, b.epsilon = a.eps;
  const bool any_states = a.scaled || first != second;
  MB_ASSIGN(const Pieces table, pieces(call, a.bucket, elements, a.weight_decay, any_states));
  b.pieces = table.table, b.piece_count = table.count;
  if (any_states) return adam_in_any_states(call, b, first, second);
  return adam(b, call.in[4].as<const float>(), call.in[5].as<const float>(), call.device.launch());
}

}  // namespace mbb::trainer::cuda
