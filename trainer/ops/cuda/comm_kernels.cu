// One thread an element, members in order.
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

template <typename T, template <typename> class Op>
__global__ void reduce_kernel(Buffers b, int64_t begin, int64_t end) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride) {
    typename Op<T>::Wide sum = Op<T>::wide(static_cast<const T*>(b.in[0])[i]);
    for (int m = 1; m < b.inputs; ++m) sum = Op<T>::join(sum, Op<T>::wide(static_cast<const T*>(b.in[m])[i]));
    const T value = Op<T>::narrow(sum);
    for (int m = 0; m < b.outputs; ++m) static_cast<T*>(b.out[m])[i] = value;
  }
}

template <template <typename> class Op>
Status run(DType dtype, const Buffers& b, int64_t begin, int64_t end, const Launch& launch) {
  const auto grid = static_cast<unsigned>(std::min<int64_t>((end - begin + kBlock - 1) / kBlock, 4096));
  const auto with = [&]<typename T>(T) { reduce_kernel<T, Op><<<grid, kBlock, 0, launch.stream>>>(b, begin, end); };
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
