// Launches of the optimizer kernels.
#include "trainer/ops/cuda/optimizer.h"

#include "trainer/ops/cuda/adam_states_kernel.cuh"
#include "trainer/ops/cuda/optimizer_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

struct Start {
  const AdamBucket& bucket;
  const float *record, *scale;
  unsigned grid;
  cudaStream_t stream;
  bool vectors;
  bool confined;
};

template <MasterForm kForm, typename Moment, typename Gradient>
Status launch_kernel(const Start& s) {
  if (s.confined)
    adam_kernel<kForm, Moment, Gradient, 1024><<<s.grid, 1024, 0, s.stream>>>(s.bucket, s.record, s.scale, s.vectors);
  else
    adam_kernel<kForm, Moment, Gradient, 256><<<s.grid, 256, 0, s.stream>>>(s.bucket, s.record, s.scale, s.vectors);
  return launched("adam");
}

template <MasterForm kForm, typename Moment>
Status launch_form(const Start& s) {
  return s.bucket.gradients == Element::kF32 ? launch_kernel<kForm, Moment, float>(s)
                                             : launch_kernel<kForm, Moment, bf16>(s);
}

template <MasterForm kForm>
Status launch_moments(const Start& s) {
  return s.bucket.moments == Element::kF32 ? launch_form<kForm, float>(s) : launch_form<kForm, bf16>(s);
}

}  // namespace

int adam_bytes_per_parameter(const AdamBucket& bucket) {
  int bytes = bytes_of(bucket.gradients) + 4 * bytes_of(bucket.moments);
  switch (bucket.form) {
    case MasterForm::kF32: return bytes + 8 + (bucket.weight != nullptr ? 2 : 0);
    case MasterForm::kRemainder: return bytes + 8;
    case MasterForm::kStochastic: return bytes + 4;
    case MasterForm::kScaled: return bytes + 6;
  }
  return bytes;
}

Status adam(const AdamBucket& b, const float* record, const float* scale, const Launch& launch) {
  if (b.count == 0) return {};
  if (b.piece_count < 1) return fail(ErrorCode::kBadArgument, "adam: a bucket without its table of pieces");
  const auto plan = plan_elementwise("adam", b.count, adam_bytes_per_parameter(b), launch.sms);
  const bool vectors = aligned(b.master) && aligned(b.weight) && aligned(b.remainder) && aligned(b.exp_avg) &&
                       aligned(b.exp_avg_sq) && aligned(b.gradient) && b.first_index % 2 == 0;
  const bool confined = launch.confined_sms > 0;
  const auto grid = static_cast<unsigned>(confined ? launch.confined_sms : plan.grid_x);
  const Start start{b, record, scale, grid, launch.stream, vectors, confined};
  switch (b.form) {
    case MasterForm::kF32: return launch_moments<MasterForm::kF32>(start);
    case MasterForm::kRemainder: return launch_moments<MasterForm::kRemainder>(start);
    case MasterForm::kStochastic: return launch_moments<MasterForm::kStochastic>(start);
    case MasterForm::kScaled: break;
  }
  return fail(ErrorCode::kBadArgument, "adam: a master with scales");
}

int bytes_of(StateElement element) {
  switch (element) {
    case StateElement::kF32: return 4;
    case StateElement::kBf16:
    case StateElement::kF16: return 2;
    case StateElement::kE4m3:
    case StateElement::kE5m2: return 1;
  }
  return 0;
}

Status adam_states(const AdamStates& s, const float* record, const float* scale, const Launch& launch) {
  const AdamBucket& b = s.bucket;
  if (b.count == 0) return {};
  if (b.piece_count < 1) return fail(ErrorCode::kBadArgument, "adam_states: a bucket without its table of pieces");
  const bool vectors = aligned(b.master) && aligned(s.scaled_master) && aligned(b.weight) && aligned(b.remainder) &&
                       aligned(b.exp_avg) && aligned(b.exp_avg_sq) && aligned(b.gradient) && b.first_index % 2 == 0;
  constexpr int64_t kSpan = int64_t{kSpanTiles} * kTile;
  const int64_t spans = (b.count + kSpan - 1) / kSpan;
  const auto grid = static_cast<unsigned>(launch.confined_sms > 0 ? launch.confined_sms : spans);
  const bool fp8 =
      b.gradients == Element::kF32 && s.exp_avg == StateElement::kE4m3 && s.exp_avg_sq == StateElement::kE5m2;
  if (s.inverse != nullptr) {
    MB_TRY(ok(cudaMemsetAsync(s.amax, 0, 3 * sizeof(float) * static_cast<size_t>(s.ranges), launch.stream),
              "clearing the largest states"));
    const auto amax = b.form == MasterForm::kScaled ? adam_amax_kernel<true, false>
                      : fp8                         ? adam_amax_kernel<false, true>
                                                    : adam_amax_kernel<false, false>;
    amax<<<grid, 256, 0, launch.stream>>>(s, record, scale, vectors);
    MB_TRY(launched("adam_amax"));
  }
  const bool draws = s.exp_avg == StateElement::kBf16 || s.exp_avg_sq == StateElement::kBf16;
  const auto start = [&]<MasterForm kForm>() {
    constexpr bool kDraws = kForm == MasterForm::kStochastic;
    const auto kernel = fp8     ? adam_states_kernel<kForm, kDraws, true>
                        : draws ? adam_states_kernel<kForm, true, false>
                                : adam_states_kernel<kForm, kDraws, false>;
    kernel<<<grid, 256, 0, launch.stream>>>(s, record, scale, vectors);
  };
  if (b.form == MasterForm::kF32) start.operator()<MasterForm::kF32>();
  if (b.form == MasterForm::kRemainder) start.operator()<MasterForm::kRemainder>();
  if (b.form == MasterForm::kScaled) start.operator()<MasterForm::kScaled>();
  if (b.form == MasterForm::kStochastic) start.operator()<MasterForm::kStochastic>();
  MB_TRY(launched("adam_states"));
  if (s.inverse == nullptr) return {};
  adam_inverse_kernel<<<1, 256, 0, launch.stream>>>(s, scale);
  return launched("adam_inverse");
}

Status square_sum(Element element, const void* gradient, int64_t count, const BucketPiece* pieces, int piece_count,
                  double* partials, double* total, const Launch& launch) {
  if (piece_count < 1) return fail(ErrorCode::kBadArgument, "square_sum: a bucket without its table of pieces");
  if (element == Element::kF32)
    square_sum_kernel<<<kNormPartials, 256, 0, launch.stream>>>(static_cast<const float*>(gradient), count, pieces,
                                                                piece_count, partials, aligned(gradient));
  else
    square_sum_kernel<<<kNormPartials, 256, 0, launch.stream>>>(static_cast<const bf16*>(gradient), count, pieces,
                                                                piece_count, partials, aligned(gradient));
  sum_partials_kernel<<<1, 256, 0, launch.stream>>>(partials, kNormPartials, total);
  return launched("square_sum");
}

Status grad_scale(const double* squares, int64_t count, const double* loss, double clip, float* scale,
                  const Launch& launch) {
  grad_scale_kernel<<<1, 1, 0, launch.stream>>>(squares, count, loss, clip, scale);
  return launched("grad_scale");
}

}  // namespace mbb::trainer::cuda
