// AdamW over flat buckets and the gradient norm; what changes between steps is read from device memory.
//
// record: f32 [learning rate, 1 - beta1^t, 1 - beta2^t, step]; scale: f32 [factor on gradients, gradient norm,
// found_inf].
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Elements of a bucket up to `end` (and from the previous piece's end) are treated alike.
struct BucketPiece {
  int64_t end = 0;
  float weight_decay = 0.0f;
  float rate_factor = 1.0f;  // of the learning rate; 0: padding, which keeps its value
  float norm_weight = 1.0f;  // of its squares in the gradient norm; 0: another rank counts it
  int range = -1;            // number of its tensor in the bucket, where states have scales; -1: padding
};

enum class MasterForm {
  kF32,         // fp32 master; `weight` (bf16) receives the rounded copy, or is null when the weight itself is fp32
  kRemainder,   // bf16 weight + 16 bits: together exactly the fp32 master
  kStochastic,  // bf16 weight alone, updated with stochastic rounding
  kScaled,      // fp16 master with a scale for each tensor's part of the shard (AdamStates)
};

struct AdamBucket {
  MasterForm form = MasterForm::kF32;
  Element moments = Element::kF32;    // fp32, or bf16 with stochastic rounding
  Element gradients = Element::kF32;  // fp32 or bf16
  int64_t count = 0;                  // any; 8 elements at a time when it and all addresses allow it
  int64_t first_index = 0;            // index of element 0 in the unsharded bucket: the random numbers' key
  float* master = nullptr;            // kF32
  void* weight = nullptr;             // bf16
  uint16_t* remainder = nullptr;      // kRemainder
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  const void* gradient = nullptr;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  uint32_t seed = 0;
  const BucketPiece* pieces = nullptr;  // device memory, ascending; the last one's end is >= count
  int piece_count = 0;
};

// Bytes read and written for each parameter.
int adam_bytes_per_parameter(const AdamBucket& bucket);
Status adam(const AdamBucket& bucket, const float* record, const float* scale, const Launch& launch);

enum class StateElement { kF32, kBf16, kF16, kE4m3, kE5m2 };
int bytes_of(StateElement element);

// States that adam() does not take: moments of two types, or states with an inverse scale for each tensor's part.
struct AdamStates {
  AdamBucket bucket;  // its `moments` and, of kScaled, its `master` are not read
  StateElement exp_avg = StateElement::kF32;
  StateElement exp_avg_sq = StateElement::kF32;
  void* scaled_master = nullptr;  // fp16, of kScaled
  float* inverse = nullptr;       // [2 or, of kScaled, 3; ranges]: of both moments and the master; null: none is scaled
  float* amax = nullptr;          // scratch, [3, ranges], where `inverse` stands
  int ranges = 0;                 // tensors of the bucket; pieces carry their numbers
};
Status adam_states(const AdamStates& states, const float* record, const float* scale, const Launch& launch);

// Partial sums of squares, always this many: the order of the sum depends on the count alone.
inline constexpr int kNormPartials = 1056;
// *total = sum over the pieces of norm_weight * gradient^2, in doubles. partials: kNormPartials doubles.
Status square_sum(Element element, const void* gradient, int64_t count, const BucketPiece* pieces, int piece_count,
                  double* partials, double* total, const Launch& launch);
// norm = sqrt(sum of squares[0..count)) / tokens (loss[1]); factor = min(1, clip / norm) / tokens; clip 0: none. A norm
// that is not finite, or no token, gives factor 0 and found_inf 1.
Status grad_scale(const double* squares, int64_t count, const double* loss, double clip, float* scale,
                  const Launch& launch);

}  // namespace mbb::trainer::cuda
