// Scalar kernels for any shape, with their launches.
#include "trainer/ops/cuda/any_shape.h"

#include <algorithm>

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;

template <typename T>
__global__ void any_norm_forward_kernel(NormForward n, const T* x, const T* weight, const T* bias, T* y) {
  __shared__ float scratch[32];
  const int64_t cols = n.shape.cols, row = int64_t{blockIdx.x} * cols;
  float mean = 0.0f;
  if (n.layer) {
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) mean += to_float(x[row + c]);
    mean = block_sum(mean, scratch) / static_cast<float>(cols);
  }
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    sum += (to_float(x[row + c]) - mean) * (to_float(x[row + c]) - mean);
  const float r = rsqrtf(block_sum(sum, scratch) / static_cast<float>(cols) + n.eps);
  if (threadIdx.x == 0) {
    n.rstd[blockIdx.x] = r;
    if (n.layer) n.mean[blockIdx.x] = mean;
  }
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float shift = n.layer ? to_float(bias[c]) : 0.0f;
    y[row + c] = from_float<T>((to_float(x[row + c]) - mean) * r * (n.weight_offset + to_float(weight[c])) + shift);
  }
}

template <typename T>
__global__ void any_norm_backward_kernel(NormBackward n, const T* x, const T* dy, const T* dresidual, const T* weight,
                                         T* dx) {
  __shared__ float scratch[32];
  const int64_t cols = n.shape.cols, row = int64_t{blockIdx.x} * cols;
  const float r = n.rstd[blockIdx.x], mean = n.layer ? n.mean[blockIdx.x] : 0.0f;
  float dot = 0.0f, sum = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float g = to_float(dy[row + c]) * (n.weight_offset + to_float(weight[c]));
    sum += n.layer ? g : 0.0f;
    dot += g * (to_float(x[row + c]) - mean) * r;
  }
  dot = block_sum(dot, scratch) / static_cast<float>(cols);
  sum = block_sum(sum, scratch) / static_cast<float>(cols);
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float g = to_float(dy[row + c]) * (n.weight_offset + to_float(weight[c]));
    const float add = dresidual != nullptr ? to_float(dresidual[row + c]) : 0.0f;
    dx[row + c] = from_float<T>(add + r * (g - sum - (to_float(x[row + c]) - mean) * r * dot));
  }
}

template <typename T>
__global__ void any_norm_weight_kernel(NormBackward n, const T* x, const T* dy) {
  __shared__ float scratch[32];
  const int64_t cols = n.shape.cols, c = blockIdx.x;
  float sum = 0.0f, plain = 0.0f;
  for (int64_t r = threadIdx.x; r < n.shape.rows; r += blockDim.x) {
    const float d = to_float(dy[r * cols + c]), mean = n.layer ? n.mean[r] : 0.0f;
    sum += d * (to_float(x[r * cols + c]) - mean) * n.rstd[r];
    plain += d;
  }
  sum = block_sum(sum, scratch);
  plain = block_sum(plain, scratch);
  if (threadIdx.x != 0) return;
  n.dweight[c] = n.accumulate ? n.dweight[c] + sum : sum;
  if (n.layer) n.dbias[c] = n.accumulate ? n.dbias[c] + plain : plain;
}

template <typename T>
__global__ void any_swiglu_forward_kernel(const T* gate_up, T* y, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[row * cols + c] =
        from_float<T>(silu(to_float(gate_up[row * 2 * cols + c])) * to_float(gate_up[(row * 2 + 1) * cols + c]));
}

template <typename T>
__global__ void any_swiglu_backward_kernel(const T* gate_up, const T* dy, T* dgate_up, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    float dgate, dup;
    swiglu_gradient(to_float(gate_up[row * 2 * cols + c]), to_float(gate_up[(row * 2 + 1) * cols + c]),
                    to_float(dy[row * cols + c]), dgate, dup);
    dgate_up[row * 2 * cols + c] = from_float<T>(dgate);
    dgate_up[(row * 2 + 1) * cols + c] = from_float<T>(dup);
  }
}

template <typename T>
__global__ void any_embedding_forward_kernel(const T* table, const int32_t* ids, T* y, int64_t cols, int64_t vocab,
                                             int64_t first) {
  const int64_t id = ids[blockIdx.x] - first;
  const bool mine = id >= 0 && id < vocab;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[blockIdx.x * cols + c] = mine ? table[id * cols + c] : from_float<T>(0.0f);
}

template <typename T>
__global__ void any_embedding_backward_kernel(const T* dy, const int32_t* ids, float* dtable, int64_t tokens,
                                              int64_t cols, int64_t first) {
  const int64_t id = first + blockIdx.x;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    float sum = 0.0f;
    for (int64_t t = 0; t < tokens; ++t)
      if (ids[t] == id) sum += to_float(dy[t * cols + c]);
    dtable[blockIdx.x * cols + c] += sum;
  }
}

}  // namespace

bool vectorizes(int64_t cols, std::initializer_list<const void*> addresses) {
  return cols % 8 == 0 && std::all_of(addresses.begin(), addresses.end(),
                                      [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 32 == 0; });
}

Status any_norm_forward(const NormForward& a, cudaStream_t stream) {
  return by_element("any_norm_forward", a.element, [&]<typename T>(T) {
    any_norm_forward_kernel<T>
        <<<blocks(a.shape.rows), kBlock, 0, stream>>>(a, static_cast<const T*>(a.x), static_cast<const T*>(a.weight),
                                                      static_cast<const T*>(a.bias), static_cast<T*>(a.y));
  });
}

Status any_norm_backward(const NormBackward& a, cudaStream_t stream) {
  return by_element("any_norm_backward", a.element, [&]<typename T>(T) {
    const auto *x = static_cast<const T*>(a.x), *dy = static_cast<const T*>(a.dy);
    any_norm_weight_kernel<T><<<blocks(a.shape.cols), kBlock, 0, stream>>>(a, x, dy);
    any_norm_backward_kernel<T><<<blocks(a.shape.rows), kBlock, 0, stream>>>(
        a, x, dy, static_cast<const T*>(a.dresidual), static_cast<const T*>(a.weight), static_cast<T*>(a.dx));
  });
}

Status any_swiglu_forward(Element element, RowShape shape, const void* gate_up, void* y, cudaStream_t stream) {
  return by_element("any_swiglu_forward", element, [&]<typename T>(T) {
    any_swiglu_forward_kernel<T>
        <<<blocks(shape.rows), kBlock, 0, stream>>>(static_cast<const T*>(gate_up), static_cast<T*>(y), shape.cols);
  });
}

Status any_swiglu_backward(Element element, RowShape shape, const void* gate_up, const void* dy, void* dgate_up,
                           cudaStream_t stream) {
  return by_element("any_swiglu_backward", element, [&]<typename T>(T) {
    any_swiglu_backward_kernel<T><<<blocks(shape.rows), kBlock, 0, stream>>>(
        static_cast<const T*>(gate_up), static_cast<const T*>(dy), static_cast<T*>(dgate_up), shape.cols);
  });
}

Status any_embedding_forward(const Embedding& a, const void* table, void* y, cudaStream_t stream) {
  return by_element("any_embedding_forward", a.element, [&]<typename T>(T) {
    any_embedding_forward_kernel<T><<<blocks(a.tokens), kBlock, 0, stream>>>(
        static_cast<const T*>(table), a.ids, static_cast<T*>(y), a.cols, a.vocab, a.first);
  });
}

Status any_embedding_backward(const Embedding& a, const void* dy, float* dtable, cudaStream_t stream) {
  return by_element("any_embedding_backward", a.element, [&]<typename T>(T) {
    any_embedding_backward_kernel<T>
        <<<blocks(a.vocab), kBlock, 0, stream>>>(static_cast<const T*>(dy), a.ids, dtable, a.tokens, a.cols, a.first);
  });
}

}  // namespace mbb::trainer::cuda
