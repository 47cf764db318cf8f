// What a rank on a device starts with, made there: the same values and roundings as initial_state.h, which makes
// whole tensors on the host. Here is which part of which weight goes where, in which form; a device computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "profiler/base/error.h"
#include "trainer/program/program.h"
#include "trainer/run/unsharded_places.h"

namespace mbb::trainer {

// The first values of a rank's part of a weight, in fp32: plain numbers, a kernel's argument.
struct FirstValues {
  FirstValues(const Tensor& weight, const MeshCoordinates& coordinates, uint64_t seed);

  float constant = 0.0F;  // where `random` is false
  bool random = false;
  float stddev = 0.0F;
  uint64_t key = 0;  // of the weight's RandomStream
  UnshardedPlaces places;
};

// Local elements [first, first + count) of a weight. What is written gets the first of them at its start.
struct FirstRange {
  const FirstValues& values;
  int64_t first = 0;
  int64_t count = 0;
};

// How a device makes them. All pointers are its memory; nothing waits.
class FirstStores {
 public:
  virtual ~FirstStores() = default;
  // Rounded to nearest even: fp32 and bf16. kUnavailable: another type.
  virtual Status plain(const FirstRange& range, DType dtype, std::byte* to) = 0;
  // A bf16 weight as it stands beside the remainder of its master, and that remainder; null: not wanted.
  virtual Status split(const FirstRange& range, std::byte* weight, std::byte* remainder) = 0;
  // *amax = the largest magnitude, of values as bf16 keeps them or as they are; *amax is 0 before.
  virtual Status amax(const FirstRange& range, bool as_bf16, float* amax) = 0;
  // E4M3 of values as bf16 keeps them, scaled by tensor_scale(*amax), or by 1 where scaling is delayed; and the inverse
  // of that scale.
  virtual Status fp8(const FirstRange& range, const float* amax, bool delayed, std::byte* to) = 0;
  virtual Status fp8_inverse(const float* amax, bool delayed, float* inverse) = 0;
  // fp16, scaled so that *amax is its largest number; and then *amax becomes the inverse of that scale.
  virtual Status fp16(const FirstRange& range, const float* amax, std::byte* to) = 0;
  virtual Status fp16_inverse(float* amax) = 0;
};

struct FirstState {
  const Program& program;
  const Mesh& mesh;
  int rank = 0;
  uint64_t seed = 0;
  std::function<std::byte*(TensorId)> data;  // of a persistent tensor, which holds zeros
};

Status make_first_state(const FirstState& state, FirstStores& stores);

}  // namespace mbb::trainer
