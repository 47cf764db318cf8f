// Activations and their derivatives on single values.
#pragma once

namespace mbb::trainer::cuda {

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}
__device__ __forceinline__ float silu(float x) {
  return x * sigmoid(x);
}

// d silu(g)/dg = s * (1 + g * (1 - s)), s = sigmoid(g).
__device__ __forceinline__ void swiglu_gradient(float gate, float up, float dy, float& dgate, float& dup) {
  const float s = sigmoid(gate);
  dgate = dy * up * s * (1.0f + gate * (1.0f - s));
  dup = dy * gate * s;
}

}  // namespace mbb::trainer::cuda
