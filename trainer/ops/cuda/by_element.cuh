// How launchers of kernels over fp32 and bf16 choose their instance.
#pragma once

#include <cstdint>

#include "trainer/ops/cuda/kernel_plan.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// Calls `call` with a value of the element's type (anything that is not fp32 is bf16), then says whether it launched.
template <typename Call>
Status by_element(const char* kernel, Element element, Call&& call) {
  if (element == Element::kF32)
    call(float{});
  else
    call(bf16{});
  return launched(kernel);
}

inline unsigned blocks(int64_t count) {
  return static_cast<unsigned>(count);
}

}  // namespace mbb::trainer::cuda
