// Pairs of elements that turn by an angle, on the device.
#pragma once

namespace mbb::trainer::cuda {

__device__ __forceinline__ void turn_pair(float cosine, float sine, float& low, float& high) {
  const float x = low, y = high;
  low = x * cosine - y * sine;
  high = y * cosine + x * sine;
}

// Four pairs of neighbours; turn: cosine and sine of each.
__device__ __forceinline__ void turn_neighbours(const float (&turn)[8], float direction, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) turn_pair(turn[i], direction * turn[i + 1], x[i], x[i + 1]);
}

// Eight pairs (a[i], b[i]); low, high: cosine and sine of the first four and of the others.
__device__ __forceinline__ void turn_pairs(const float (&low)[8], const float (&high)[8], float direction,
                                           float (&a)[8], float (&b)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float cosine = i < 4 ? low[2 * i] : high[2 * i - 8];
    const float sine = direction * (i < 4 ? low[2 * i + 1] : high[2 * i - 7]);
    turn_pair(cosine, sine, a[i], b[i]);
  }
}

}  // namespace mbb::trainer::cuda
