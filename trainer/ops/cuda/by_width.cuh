// How kernels over rows choose between 16-byte vectors and single elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {

// Eight values at once where rows divide into 16-byte vectors, else one.
template <int kWidth, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[kWidth]) {
  if constexpr (kWidth == 8)
    load8(from, to);
  else
    to[0] = to_float(from[0]);
}
template <int kWidth, typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[kWidth]) {
  if constexpr (kWidth == 8)
    store8(to, from);
  else
    to[0] = from_float<T>(from[0]);
}

// What load reads, unpacked when needed.
template <typename T>
struct Raw1 {
  T value;
  __device__ __forceinline__ void load(const T* from) { value = *from; }
  __device__ __forceinline__ void store(T* to) const { *to = value; }
  __device__ __forceinline__ void unpack(float (&to)[1]) const { to[0] = to_float(value); }
};
template <int kWidth, typename T>
using RawValues = std::conditional_t<kWidth == 8, Raw8<T>, Raw1<T>>;

template <typename Call>
void by_width(int64_t cols, std::initializer_list<const void*> addresses, Call&& call) {
  const bool wide = cols % 8 == 0 && std::all_of(addresses.begin(), addresses.end(), [](const void* p) {
                      return reinterpret_cast<uintptr_t>(p) % 32 == 0;
                    });
  if (wide)
    call(std::integral_constant<int, 8>{});
  else
    call(std::integral_constant<int, 1>{});
}

}  // namespace mbb::trainer::cuda
