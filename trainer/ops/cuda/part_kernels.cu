// One block a row or head, one thread an element.
#include "trainer/ops/cuda/part_kernels.h"

#include <algorithm>
#include <string>

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;
constexpr int kPackBlock = 256;

struct Parts {
  RowPart part[kMostParts];
  int count;
};

Result<Parts> parts_of(std::span<const RowPart> from) {
  if (from.size() > kMostParts)
    return fail(ErrorCode::kUnavailable, "CUDA: " + std::to_string(from.size()) + " parts of one tensor",
                "use a context-parallel size of at most " + std::to_string(kMostParts / 2));
  Parts parts{};
  std::copy(from.begin(), from.end(), parts.part);
  parts.count = static_cast<int>(from.size());
  return parts;
}

__device__ bool covers(const RowPart& p, int64_t row) {
  return row >= p.first && row < p.first + p.rows;
}

// A block a (row, batch, head).
template <typename T>
__global__ void merge_kernel(Merge m, Parts parts, T* out, float* lse) {
  const int64_t row = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const auto lse_of = [&](const RowPart& p) { return p.lse[(b * m.heads + head) * p.rows + row - p.first]; };
  const float sink = m.sinks != nullptr ? to_float(static_cast<const T*>(m.sinks)[head]) : -INFINITY;
  float top = sink;
  for (int i = 0; i < parts.count; ++i)
    if (covers(parts.part[i], row)) top = fmaxf(top, lse_of(parts.part[i]));
  double sum = m.sinks != nullptr ? exp(static_cast<double>(sink - top)) : 0.0;
  for (int i = 0; i < parts.count; ++i)
    if (covers(parts.part[i], row)) sum += exp(static_cast<double>(lse_of(parts.part[i]) - top));
  for (int64_t c = threadIdx.x; c < m.value_dim; c += blockDim.x) {
    double value = 0.0;
    for (int i = 0; i < parts.count; ++i) {
      const RowPart& p = parts.part[i];
      if (!covers(p, row)) continue;
      const int64_t at = (((row - p.first) * m.batch + b) * m.heads + head) * m.value_dim + c;
      value += exp(static_cast<double>(lse_of(p) - top)) / sum *
               static_cast<double>(to_float(static_cast<const T*>(p.data)[at]));
    }
    out[((row * m.batch + b) * m.heads + head) * m.value_dim + c] = from_float<T>(static_cast<float>(value));
  }
  if (threadIdx.x == 0)
    lse[(b * m.heads + head) * m.rows + row] = static_cast<float>(static_cast<double>(top) + log(sum));
}

template <typename T>
__global__ void add_parts_kernel(Parts parts, int64_t width, T* out) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    double sum = 0.0;
    for (int i = 0; i < parts.count; ++i) {
      const RowPart& p = parts.part[i];
      if (covers(p, row))
        sum += static_cast<double>(to_float(static_cast<const T*>(p.data)[(row - p.first) * width + c]));
    }
    out[row * width + c] = from_float<T>(static_cast<float>(sum));
  }
}

// The scale rule of trainer/precision/fp8.h for E4M3.
__device__ float e4m3_scale(float amax) {
  if (!(amax > 0.0f) || isinf(amax)) return 1.0f;
  const float scale = 448.0f / amax;
  return isinf(scale) ? 3.402823466e38f : scale;
}

// NaN is the largest bit pattern of all, so that it survives.
template <typename T>
__global__ void pack_amax_kernel(const T* x, int64_t count, float* amax) {
  __shared__ unsigned int largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  unsigned int mine = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    mine = max(mine, __float_as_uint(fabsf(to_float(x[i]))));
  atomicMax(&largest, mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned int*>(amax), largest);
}

template <typename T>
__global__ void pack_kernel(const T* x, int64_t count, const float* amax, uint8_t* message) {
  const float scale = e4m3_scale(*amax);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < count; i += stride)
    message[i] = __nv_cvt_float_to_fp8(to_float(x[i]) * scale, __NV_SATFINITE, __NV_E4M3);
  if (first < 4) message[count + first] = static_cast<uint8_t>(__float_as_uint(1.0f / scale) >> (8 * first));
}

template <typename T>
__global__ void unpack_kernel(const uint8_t* message, int64_t count, T* x) {
  unsigned int bits = 0;
  for (int i = 0; i < 4; ++i) bits |= static_cast<unsigned int>(message[count + i]) << (8 * i);
  const float inverse = __uint_as_float(bits);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] = from_float<T>(__half2float(__half(__nv_cvt_fp8_to_halfraw(message[i], __NV_E4M3))) * inverse);
}

unsigned pack_grid(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + kPackBlock - 1) / kPackBlock, 1, 2048));
}

// A block an expert: where its pieces go, one after the other behind those of the experts before it.
__global__ void merge_pieces_kernel(const int32_t* segments, int64_t pieces, int64_t experts, int32_t* merged,
                                    int32_t* places) {
  const int64_t expert = blockIdx.x;
  int64_t first = 0;
  for (int64_t p = 0; p < pieces; ++p)
    if (p % experts < expert) first += segments[pieces + p];
  int64_t next = first;
  for (int64_t p = expert; p < pieces; p += experts) {
    const int64_t rows = segments[pieces + p], from = segments[p];
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) places[from + r] = static_cast<int32_t>(next + r);
    next += rows;
  }
  if (threadIdx.x != 0) return;
  merged[expert] = static_cast<int32_t>(first);
  merged[experts + expert] = static_cast<int32_t>(next - first);
}

__global__ void map_tokens_kernel(const int32_t* tokens, const int32_t* map, int64_t count, int64_t batch,
                                  int32_t* moved) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int32_t from = map[at / batch];
  moved[at] = from < 0 ? -1 : tokens[from * batch + at % batch];
}

}  // namespace

Status merge_attention(const Merge& m, std::span<const RowPart> parts, void* out, float* lse, const Launch& launch) {
  MB_ASSIGN(const Parts all, parts_of(parts));
  const dim3 grid(blocks(m.rows), blocks(m.heads), blocks(m.batch));
  return by_element("merge_attention", m.element, [&]<typename T>(T) {
    merge_kernel<T><<<grid, kBlock, 0, launch.stream>>>(m, all, static_cast<T*>(out), lse);
  });
}

Status add_parts(Element element, int64_t rows, int64_t width, std::span<const RowPart> parts, void* out,
                 const Launch& launch) {
  MB_ASSIGN(const Parts all, parts_of(parts));
  return by_element("add_parts", element, [&]<typename T>(T) {
    add_parts_kernel<T><<<blocks(rows), kBlock, 0, launch.stream>>>(all, width, static_cast<T*>(out));
  });
}

Status pack_fp8(Element element, const void* x, int64_t count, uint8_t* message, float* amax, const Launch& launch) {
  MB_TRY(ok(cudaMemsetAsync(amax, 0, sizeof(float), launch.stream), "clearing amax"));
  return by_element("pack_fp8", element, [&]<typename T>(T) {
    pack_amax_kernel<T><<<pack_grid(count), kPackBlock, 0, launch.stream>>>(static_cast<const T*>(x), count, amax);
    pack_kernel<T><<<pack_grid(count), kPackBlock, 0, launch.stream>>>(static_cast<const T*>(x), count, amax, message);
  });
}

Status unpack_fp8(Element element, const uint8_t* message, int64_t count, void* x, const Launch& launch) {
  return by_element("unpack_fp8", element, [&]<typename T>(T) {
    unpack_kernel<T><<<pack_grid(count), kPackBlock, 0, launch.stream>>>(message, count, static_cast<T*>(x));
  });
}

Status merge_pieces(const int32_t* segments, int64_t pieces, int64_t experts, int64_t rows, int32_t* merged,
                    int32_t* places, const Launch& launch) {
  MB_TRY(ok(cudaMemsetAsync(places, 0xff, static_cast<size_t>(rows) * sizeof(int32_t), launch.stream),
            "clearing places of rows"));
  merge_pieces_kernel<<<blocks(experts), kPackBlock, 0, launch.stream>>>(segments, pieces, experts, merged, places);
  return launched("merge_pieces");
}

Status map_tokens(const int32_t* tokens, const int32_t* map, int64_t rows, int64_t batch, int32_t* moved,
                  const Launch& launch) {
  map_tokens_kernel<<<blocks((rows * batch + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      tokens, map, rows * batch, batch, moved);
  return launched("map_tokens");
}

}  // namespace mbb::trainer::cuda
