// Activations and their derivatives on single values.
#pragma once

namespace mbb::trainer::cuda {

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}
// Approximate, 2 units in the last place each, without the slow paths of a division or of subnormal numbers: kernels
// that have many values on their way stay free of branches.
__device__ __forceinline__ float quick_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ __forceinline__ float quick_inverse(float x) {
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(x));
  return quotient;
}
// Where the exponential overflows the quotient is 0.
__device__ __forceinline__ float quick_sigmoid(float x) {
  return quick_inverse(1.0f + quick_exp2(x * -1.4426950408889634f));
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
