// One thread an element, or 16 bytes of them where all buffers are aligned; members in order.
#include "trainer/ops/cuda/comm_kernels.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

struct Buffers {
  const void* in[kMostMembers];
  void* out[kMostMembers];
  int inputs, outputs;
};

// What a sum accumulates in, and how an element enters and leaves it.
template <typename T>
struct Sum {
  using Wide = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<double>>::type;
  static __device__ Wide wide(T x) { return static_cast<Wide>(x); }
  static __device__ Wide join(Wide a, Wide b) { return static_cast<Wide>(a + b); }
  static __device__ T narrow(Wide x) { return static_cast<T>(x); }
};
template <>
struct Sum<bf16> {
  using Wide = double;
  static __device__ double wide(bf16 x) { return static_cast<double>(__bfloat162float(x)); }
  static __device__ double join(double a, double b) { return a + b; }
  static __device__ bf16 narrow(double x) { return __double2bfloat16(x); }
};

template <typename T>
struct Max {
  using Wide = T;
  static __device__ T wide(T x) { return x; }
  static __device__ T join(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? b : a;
    } else {
      if (!(a == a)) return a;
      return !(b == b) || a < b ? b : a;
    }
  }
  static __device__ T narrow(T x) { return x; }
};

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T of[kWidth];
};

// begin and end count packs.
template <typename T, template <typename> class Op, int kWidth>
__global__ void reduce_kernel(Buffers b, int64_t begin, int64_t end) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride) {
    Pack<T, kWidth> values = static_cast<const Pack<T, kWidth>*>(b.in[0])[i];
    typename Op<T>::Wide sums[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sums[e] = Op<T>::wide(values.of[e]);
    for (int m = 1; m < b.inputs; ++m) {
      values = static_cast<const Pack<T, kWidth>*>(b.in[m])[i];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sums[e] = Op<T>::join(sums[e], Op<T>::wide(values.of[e]));
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values.of[e] = Op<T>::narrow(sums[e]);
    for (int m = 0; m < b.outputs; ++m) static_cast<Pack<T, kWidth>*>(b.out[m])[i] = values;
  }
}

bool whole_packs(const Buffers& b, int64_t begin, int64_t end, int width) {
  bool whole = begin % width == 0 && end % width == 0;
  for (int m = 0; m < b.inputs; ++m) whole = whole && reinterpret_cast<uintptr_t>(b.in[m]) % 16 == 0;
  for (int m = 0; m < b.outputs; ++m) whole = whole && reinterpret_cast<uintptr_t>(b.out[m]) % 16 == 0;
  return whole;
}

template <template <typename> class Op>
Status run(DType dtype, const Buffers& b, int64_t begin, int64_t end, const Launch& launch) {
  const auto with = [&]<typename T>(T) {
    constexpr int kWidth = 16 / sizeof(T);
    const bool wide = whole_packs(b, begin, end, kWidth);
    const int64_t width = wide ? kWidth : 1, count = (end - begin) / width;
    const auto grid = static_cast<unsigned>(std::min<int64_t>((count + kBlock - 1) / kBlock, 4096));
    const auto kernel = wide ? reduce_kernel<T, Op, kWidth> : reduce_kernel<T, Op, 1>;
    kernel<<<grid, kBlock, 0, launch.stream>>>(b, begin / width, end / width);
  };
  switch (dtype) {
    case DType::kF32: with(float{}); break;
    case DType::kF64: with(double{}); break;
    case DType::kBf16: with(bf16{}); break;
    case DType::kI32: with(int32_t{}); break;
    case DType::kI64: with(int64_t{}); break;
    case DType::kU8: with(uint8_t{}); break;
    default: return fail(ErrorCode::kBadArgument, std::string("CUDA: no reduction of ") + name(dtype));
  }
  return launched("reduce_members");
}

}  // namespace

Status reduce_members(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                      int64_t begin, int64_t end, const Launch& launch) {
  if (begin == end) return {};
  if (inputs.empty() || inputs.size() > kMostMembers || outputs.size() > kMostMembers)
    return fail(ErrorCode::kUnavailable, "CUDA: a reduction over " + std::to_string(inputs.size()) + " ranks",
                "at most " + std::to_string(kMostMembers) + " ranks share a device");
  Buffers b{};
  b.inputs = static_cast<int>(inputs.size()), b.outputs = static_cast<int>(outputs.size());
  std::copy(inputs.begin(), inputs.end(), b.in);
  std::copy(outputs.begin(), outputs.end(), b.out);
  return op == ReduceOp::kSum ? run<Sum>(dtype, b, begin, end, launch) : run<Max>(dtype, b, begin, end, launch);
}

}  // namespace mbb::trainer::cuda
