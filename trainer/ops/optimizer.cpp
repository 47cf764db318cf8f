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

// in: main grads f32 [n] or [shard], weights [n] or [shard], exp_avg [shard], exp_avg_sq [shard], step record, grad
// scale [, master f32 [shard]]; out: weights, exp_avg, exp_avg_sq [, master], all updated in place.
Result<std::vector<TensorSpec>> adam_shape(Inputs in, const Attrs& attrs) {
  const auto& bucket = std::get<AdamAttrs>(attrs).bucket;
  const int64_t shard = in[2]->shape.elements();
  const int64_t whole = bucket.sharded ? shard * bucket.group_size : shard;
  for (const Tensor* t : {in[0], in[1]})
    if (const int64_t n = t->shape.elements(); n != whole && n != shard)
      return fail(ErrorCode::kBadArgument, t->path + " has neither the bucket's nor its shard's elements");
  std::vector<TensorSpec> out{{in[1]->shape, in[1]->dtype}, {in[2]->shape, in[2]->dtype}, {in[3]->shape, in[3]->dtype}};
  if (in.size() > 6) out.push_back({in[6]->shape, in[6]->dtype});
  return out;
}

double square_bytes(const OpView& op) {
  const auto& a = std::get<BucketAttrs>(op.op.attrs);
  const bool whole = a.elements == 0 || op.in(0).shape.elements() == a.elements;
  return static_cast<double>(op.in(0).bytes()) / (a.sharded && whole ? a.group_size : 1);
}

// Per element of the shard: gradient read; weight written (and read where there is no master); states read and written.
double adam_bytes(const OpView& op) {
  const auto elements = static_cast<double>(op.in(2).shape.elements());
  const auto size = [&](size_t i) { return static_cast<double>(size_of(op.in(i).dtype)); };
  const double master = op.op.in.size() > 6 ? 2 * size(6) : size(1);
  return elements * (size(0) + size(1) + 2 * size(2) + 2 * size(3) + master);
}

AdamAttrs adam_case() {
  AdamAttrs a;
  a.bucket.ranges = {{"w", 0, 24, true, false}, {"b", 24, 8, false, false}};
  return a;
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"adamw/fp32",
                 &kAdamW,
                 {{{32}},
                  {{32}},
                  {{32}},
                  {{32}, DType::kF32, Fill::kPositive},
                  {{4}, DType::kF32, Fill::kPositive},
                  {{3}, DType::kF32, Fill::kUniform}},
                 adam_case(),
                 false});
  all.push_back({"adamw/master",
                 &kAdamW,
                 {{{32}},
                  {{32}, DType::kBf16},
                  {{32}},
                  {{32}, DType::kF32, Fill::kPositive},
                  {{4}, DType::kF32, Fill::kPositive},
                  {{3}, DType::kF32, Fill::kUniform},
                  {{32}}},
                 adam_case(),
                 false});
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
const OpKind kScalarSum{.name = "scalar_sum", .shape = sum_shape, .cpu = cpu_scalar_sum, .cuda = "scalar_sum"};
const OpKind kGradScale{.name = "grad_scale", .shape = scale_shape, .cpu = cpu_grad_scale, .cuda = "grad_scale"};
const OpKind kAdamW{
    .name = "adamw", .shape = adam_shape, .bytes = adam_bytes, .cpu = cpu_adamw, .cuda = "adamw", .cases = cases};

}  // namespace mbb::trainer
