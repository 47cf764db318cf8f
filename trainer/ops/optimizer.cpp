// The optimizer over flat buckets: gradient norm, scale and clip factor, AdamW. Each rank works on its shard of a
// bucket.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: main grads f32 [n]; out: f64 [1]: sum of squares of this rank's shard, TP-replicated ranges on one TP rank only.
Result<std::vector<TensorSpec>> square_shape(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{1}, DType::kF64}};
}

// in: any number of f64 tensors; out: f64 [1], the sum of all their elements.
Result<std::vector<TensorSpec>> sum_shape(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{1}, DType::kF64}};
}

// in: squares f64 [n], loss sum f64 [2]; out: f32 [3]: factor on gradients, global gradient norm, found_inf.
Result<std::vector<TensorSpec>> scale_shape(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{3}, DType::kF32}};
}

// Whether the master is a state of its own, or a part of one.
bool has_state(MasterForm form) {
  return form == MasterForm::kState || form == MasterForm::kRemainder || form == MasterForm::kScaled;
}

// Whether the operands are those of the forms in the attributes.
Status check_forms(Inputs in, const AdamAttrs& a) {
  const bool stateful = has_state(a.master);
  if (in.size() != 6U + (stateful ? 1 : 0) + (a.scaled ? 1 : 0))
    return fail(ErrorCode::kBadArgument, "adamw: operands other than its forms have");
  // FP8 weights are written after the step, from the master (bucket_quantize).
  const DType weights = a.master == MasterForm::kNone ? DType::kF32 : DType::kBf16;
  const bool later = a.master == MasterForm::kState && in[1]->dtype == DType::kE4M3;
  if (in[1]->dtype != weights && !later)
    return fail(ErrorCode::kBadArgument,
                std::string("adamw: weights of ") + name(in[1]->dtype) + " with master " + name(a.master));
  const DType state = a.master == MasterForm::kState    ? DType::kF32
                      : a.master == MasterForm::kScaled ? DType::kF16
                                                        : DType::kU16;
  if (stateful && in[6]->dtype != state)
    return fail(ErrorCode::kBadArgument, std::string("adamw: master ") + name(a.master) + " of " + name(in[6]->dtype));
  const auto scaled = [&](size_t i) { return in[i]->dtype != DType::kF32 && in[i]->dtype != DType::kBf16; };
  if (a.scaled != (scaled(2) || scaled(3) || a.master == MasterForm::kScaled))
    return fail(ErrorCode::kBadArgument, "adamw: scales belong to states of fp16 and fp8");
  return {};
}

// in: main grads f32 [n] or [shard], weights [n] or [shard], exp_avg [shard], exp_avg_sq [shard], step record, grad
// scale [, master f32 or f16, or remainder u16 [shard]] [, inverse scales of both moments and of an f16 master f32 [2
// or 3, ranges]]; out: weights, exp_avg, exp_avg_sq [, master or remainder] [, inverse scales], all updated in place.
Result<std::vector<TensorSpec>> adam_shape(Inputs in, const Attrs& attrs) {
  const auto& bucket = std::get<AdamAttrs>(attrs).bucket;
  const int64_t shard = in[2]->shape.elements();
  const int64_t whole = bucket.sharded ? shard * bucket.group_size : shard;
  for (const Tensor* t : {in[0], in[1]})
    if (const int64_t n = t->shape.elements(); n != whole && n != shard)
      return fail(ErrorCode::kBadArgument, t->path + " has neither the bucket's nor its shard's elements");
  std::vector<TensorSpec> out{{in[1]->shape, in[1]->dtype}, {in[2]->shape, in[2]->dtype}, {in[3]->shape, in[3]->dtype}};
  for (size_t i = 6; i < in.size(); ++i) out.push_back({in[i]->shape, in[i]->dtype});
  MB_TRY(check_forms(in, std::get<AdamAttrs>(attrs)));
  return out;
}

double square_bytes(const OpView& op) {
  const auto& a = std::get<BucketAttrs>(op.op.attrs);
  const bool whole = a.elements == 0 || op.in(0).shape.elements() == a.elements;
  return static_cast<double>(op.in(0).bytes()) / (a.sharded && whole ? a.group_size : 1);
}

// Per element of the shard: gradient read; weight written (and read where it is part of the master); states read and
// written.
double adam_bytes(const OpView& op) {
  const auto elements = static_cast<double>(op.in(2).shape.elements());
  const auto size = [&](size_t i) { return static_cast<double>(size_of(op.in(i).dtype)); };
  const MasterForm form = std::get<AdamAttrs>(op.op.attrs).master;
  const double weight = size(1) * (form == MasterForm::kState || form == MasterForm::kScaled ? 1 : 2);
  const double state = has_state(form) ? 2 * size(6) : 0;
  return elements * (size(0) + weight + 2 * size(2) + 2 * size(3) + state);
}

AdamAttrs adam_case(MasterForm master = MasterForm::kNone) {
  AdamAttrs a;
  a.master = master;
  a.bucket.ranges = {{"w", 0, 24, true, false}, {"b", 24, 8, false, false}};
  return a;
}

void cases(std::vector<OpCase>& all) {
  const auto add = [&](const char* name, DType weights, DType moments, AdamAttrs attrs, std::vector<CaseInput> more) {
    std::vector<CaseInput> in{{{32}},
                              {{32}, weights},
                              {{32}, moments},
                              {{32}, moments, Fill::kPositive},
                              {{4}, DType::kF32, Fill::kPositive},
                              {{3}, DType::kF32, Fill::kUniform}};
    in.insert(in.end(), more.begin(), more.end());
    all.push_back({name, &kAdamW, in, std::move(attrs), false});
  };
  add("adamw/fp32", DType::kF32, DType::kF32, adam_case(), {});
  add("adamw/master", DType::kBf16, DType::kF32, adam_case(MasterForm::kState), {{{32}}});
  add("adamw/bf16-moments", DType::kBf16, DType::kBf16, adam_case(MasterForm::kState), {{{32}}});
  add("adamw/stochastic", DType::kBf16, DType::kF32, adam_case(MasterForm::kStochastic), {});
  const auto scaled = [](MasterForm master) {
    AdamAttrs a = adam_case(master);
    a.scaled = true;
    return a;
  };
  const auto inverses = [](int64_t rows) { return CaseInput{{rows, 2}, DType::kF32, Fill::kPositive}; };
  add("adamw/fp16-master", DType::kBf16, DType::kF32, scaled(MasterForm::kScaled), {{{32}, DType::kF16}, inverses(3)});
  add("adamw/fp16-moments", DType::kBf16, DType::kF16, scaled(MasterForm::kState), {{{32}}, inverses(2)});
  add("adamw/fp8-moments", DType::kBf16, DType::kE4M3, scaled(MasterForm::kStochastic), {inverses(2)});
  all.push_back({"adamw/two-types",
                 &kAdamW,
                 {{{32}},
                  {{32}},
                  {{32}},
                  {{32}, DType::kBf16, Fill::kPositive},
                  {{4}, DType::kF32, Fill::kPositive},
                  {{3}, DType::kF32, Fill::kUniform}},
                 adam_case(),
                 false});
}

// Gradients' squares of some weights, and of one rank or all; a norm above the clip and one that nothing clips.
void scalar_cases(std::vector<OpCase>& all) {
  const auto f64 = [](int64_t n) { return CaseInput{{n}, DType::kF64, Fill::kPositive}; };
  all.push_back({"scalar_sum/three", &kScalarSum, {f64(5), f64(1), f64(70)}, NoAttrs{}, false});
  all.push_back({"grad_scale/clipped", &kGradScale, {f64(3), f64(2)}, ScaleAttrs{0.01}, false});
  all.push_back({"grad_scale/free", &kGradScale, {f64(3), f64(2)}, ScaleAttrs{0}, false});
}

void square_cases(std::vector<OpCase>& all) {
  BucketAttrs a;
  a.ranges = {{"w", 0, 20, true, false}, {"b", 24, 8, false, false}};
  all.push_back({"grad_square_sum/two-ranges", &kGradSquareSum, {{{32}}}, a, false});
}

}  // namespace

const OpKind kGradSquareSum{.name = "grad_square_sum",
                            .shape = square_shape,
                            .bytes = square_bytes,
                            .cpu = cpu_grad_square_sum,
                            .cuda = "grad_square_sum",
                            .cases = square_cases};
const OpKind kScalarSum{
    .name = "scalar_sum", .shape = sum_shape, .cpu = cpu_scalar_sum, .cuda = "scalar_sum", .cases = scalar_cases};
const OpKind kGradScale{.name = "grad_scale", .shape = scale_shape, .cpu = cpu_grad_scale, .cuda = "grad_scale"};
const OpKind kAdamW{
    .name = "adamw", .shape = adam_shape, .bytes = adam_bytes, .cpu = cpu_adamw, .cuda = "adamw", .cases = cases};

}  // namespace mbb::trainer
