// Parameters kept in FP8: their transposes in the forward, and how the optimizer writes a bucket of them.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: q [rows, cols]; out: qᵀ [cols, rows].
Result<std::vector<TensorSpec>> transpose_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{Shape{in[0]->shape.cols(), in[0]->shape.rows()}, in[0]->dtype}};
}

// in: master f32 [shard]; out: f32 [ranges], the amax of each range's part in the shard after rounding to bf16; 0 where
// it has none.
Result<std::vector<TensorSpec>> amax_shape(Inputs, const Attrs& attrs) {
  return std::vector<TensorSpec>{
      {Shape{static_cast<int64_t>(std::get<BucketAttrs>(attrs).ranges.size())}, DType::kF32}};
}

// in: master f32 [shard], amax f32 [ranges] of whole tensors, weights FP8 [n] or [shard] [, a scale f32 [1] for each
// range, which else follows from amax]; out: weights, of which the shard is written, and f32 [2] {inverse scale, amax}
// for each range.
Result<std::vector<TensorSpec>> quantize_shape(Inputs in, const Attrs& attrs) {
  const size_t ranges = std::get<BucketAttrs>(attrs).ranges.size();
  if (in.size() != 3 && in.size() != 3 + ranges)
    return fail(ErrorCode::kBadArgument, "a bucket's scales are given for all ranges or for none");
  std::vector<TensorSpec> out{{in[2]->shape, in[2]->dtype}};
  out.insert(out.end(), ranges, {Shape{2}, DType::kF32});
  return out;
}

double quantize_bytes(const OpView& op) {
  return static_cast<double>(op.in(0).bytes()) + static_cast<double>(op.in(0).shape.elements());
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"transpose_quantized/small", &kTransposeQuantized, {{{24, 40}, DType::kE4M3}}, NoAttrs{}, false});
  all.push_back({"transpose_quantized/pieces", &kTransposeQuantized, {{{144, 272}, DType::kE4M3}}, NoAttrs{}, false});
  BucketAttrs bucket;
  bucket.ranges = {{"w", 0, 24, true, false}, {"v", 24, 8, false, false}};
  const CaseInput scale{{1}, DType::kF32, Fill::kPositive};
  all.push_back({"bucket_amax/two-ranges", &kBucketAmax, {{{32}}}, bucket, false});
  all.push_back({"bucket_quantize/two-ranges",
                 &kBucketQuantize,
                 {{{32}}, {{2}, DType::kF32, Fill::kPositive}, {{32}, DType::kE4M3}},
                 bucket,
                 false});
  all.push_back({"bucket_quantize/given-scales",
                 &kBucketQuantize,
                 {{{32}}, {{2}, DType::kF32, Fill::kPositive}, {{32}, DType::kE4M3}, scale, scale},
                 bucket,
                 false});
  BucketAttrs odd;  // ranges that begin and end inside a vector
  odd.ranges = {{"w", 0, 21, true, false}, {"v", 21, 5097, false, false}};
  all.push_back({"bucket_amax/odd", &kBucketAmax, {{{5120}}}, odd, false});
  all.push_back({"bucket_quantize/odd",
                 &kBucketQuantize,
                 {{{5120}}, {{2}, DType::kF32, Fill::kPositive}, {{5120}, DType::kE4M3}},
                 odd,
                 false});
}

}  // namespace

const OpKind kTransposeQuantized{.name = "transpose_quantized",
                                 .shape = transpose_shape,
                                 .cpu = cpu_transpose_quantized,
                                 .cuda = "transpose_quantized",
                                 .cases = cases};
const OpKind kBucketAmax{.name = "bucket_amax", .shape = amax_shape, .cpu = cpu_bucket_amax, .cuda = "bucket_amax"};
const OpKind kBucketQuantize{.name = "bucket_quantize",
                             .shape = quantize_shape,
                             .bytes = quantize_bytes,
                             .cpu = cpu_bucket_quantize,
                             .cuda = "bucket_quantize"};

}  // namespace mbb::trainer
