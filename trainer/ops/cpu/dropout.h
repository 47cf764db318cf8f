// Which elements of an unsharded tensor dropout keeps: a function of seed, path, step, sample and element alone.
#pragma once

#include <cstdint>

#include "trainer/data/rng.h"

namespace mbb::trainer {

class DropoutMask {
 public:
  DropoutMask(double probability, int64_t stream, const float* step_record);
  // 0, or 1 / (1 − probability).
  double factor(int32_t sample, int64_t element) const;

 private:
  double probability_;
  RandomStream stream_;
};

}  // namespace mbb::trainer
