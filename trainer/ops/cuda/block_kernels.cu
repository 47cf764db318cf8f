// Kernels of block_kernels.h with their launches.
#include "trainer/ops/cuda/block_kernels.h"

#include <algorithm>
#include <initializer_list>

#include "trainer/ops/cuda/activation.cuh"
#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/by_width.cuh"
#include "trainer/ops/cuda/dropout_kernel.cuh"
#include "trainer/ops/cuda/rotary.cuh"
#include "trainer/ops/cuda/status.h"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 256;

unsigned grid_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + kBlock - 1) / kBlock, 1, int64_t{1} << 20));
}

template <int kWidth, typename T, typename B>
__global__ void bias_add_kernel(const T* x, const B* bias, float scale, T* y, int64_t rows, int64_t cols) {
  const int64_t vectors = cols / kWidth, count = rows * vectors, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    float value[kWidth], b[kWidth];
    load<kWidth>(x + at * kWidth, value);
    load<kWidth>(bias + at % vectors * kWidth, b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] += scale * b[i];
    store<kWidth>(y + at * kWidth, value);
  }
}

template <int kWidth>
__global__ void add_bf16_kernel(const float* a, const bf16* b, float* y, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * kWidth;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth; at < count; at += stride) {
    float value[kWidth], narrow[kWidth];
    load<kWidth>(a + at, value);
    load<kWidth>(b + at, narrow);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] += narrow[i];
    store<kWidth>(y + at, value);
  }
}

// A block sums a run of rows of 32 vectors of columns: warps take rows in turn, then are added in their order. Result:
// [runs, cols], of which column_sums_kernel makes one row.
constexpr int kRunWarps = 8;
template <int kWidth, typename T>
__global__ void __launch_bounds__(kRunWarps * 32)
    run_sums_kernel(const T* x, float* partials, int64_t rows, int64_t cols, int64_t run) {
  constexpr int kInFlight = sizeof(T) == 2 ? 8 : 4;
  __shared__ float warps[kRunWarps][kWidth][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t column = (int64_t{blockIdx.x} * 32 + lane) * kWidth, end = min((blockIdx.y + 1) * run, rows);
  float sum[kWidth] = {};
  for (int64_t first = blockIdx.y * run + warp; column < cols && first < end; first += kRunWarps * kInFlight) {
    RawValues<kWidth, T> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) raw[u].load(x + min(first + u * kRunWarps, end - 1) * cols + column);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      float value[kWidth];
      raw[u].unpack(value);
      const bool there = first + u * kRunWarps < end;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += there ? value[i] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) warps[warp][i][lane] = sum[i];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < 32 * kWidth; at += kRunWarps * 32) {
    const int64_t own = int64_t{blockIdx.x} * 32 * kWidth + at;
    if (own >= cols) break;
    float all = 0.0f;
    for (int w = 0; w < kRunWarps; ++w) all += warps[w][at % kWidth][at / kWidth];
    partials[blockIdx.y * cols + own] = all;
  }
}

// 32 columns a block; 32 strands each sum every 32nd row, then are added in strand order.
__global__ void __launch_bounds__(1024)
    column_sums_kernel(const float* x, float scale, float* out, int64_t rows, int64_t cols, bool accumulate) {
  __shared__ float strands[32][33];
  const int lane = threadIdx.x & 31, strand = threadIdx.x >> 5;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0.0f;
  if (column < cols) {
#pragma unroll 4
    for (int64_t row = strand; row < rows; row += 32) sum += x[row * cols + column];
  }
  strands[strand][lane] = sum;
  __syncthreads();
  if (strand != 0 || column >= cols) return;
  for (int i = 1; i < 32; ++i) sum += strands[i][lane];
  out[column] = (accumulate ? out[column] : 0.0f) + scale * sum;
}

// Rows of a run, so that runs of all columns are about a thousand blocks, on any device the same; a warp has 8 or more.
int64_t rows_of_run(RowShape shape, int width) {
  const int64_t across = (shape.cols + 32 * width - 1) / (32 * width), runs = std::max<int64_t>(1024 / across, 1);
  return std::max<int64_t>((shape.rows + runs - 1) / runs, kRunWarps * 8);
}
int64_t runs_of(RowShape shape, int width) {
  const int64_t run = rows_of_run(shape, width);
  return std::max<int64_t>((shape.rows + run - 1) / run, 1);
}

// A warp a row.
template <int kWidth, typename T>
__global__ void position_add_kernel(Positions p, const T* x, const T* table, T* y) {
  constexpr int kInFlight = 4;
  const int64_t rows = p.seq * p.batch, warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t vectors = p.hidden / kWidth, lane = threadIdx.x & 31;
  for (int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    int64_t position = p.first + row / p.batch;
    if (p.at != nullptr) position = p.at[position];
    // Behind the last sequence nobody has a label; any position will do.
    if (p.own != nullptr) position = min(position - p.own[position], p.rows - 1);
    for (int64_t first = lane; first < vectors; first += 32 * kInFlight) {
      RawValues<kWidth, T> left[kInFlight], right[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        const int64_t column = min(first + u * 32, vectors - 1) * kWidth;
        left[u].load(x + row * p.hidden + column);
        right[u].load(table + position * p.hidden + column);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (first + u * 32 >= vectors) break;
        float value[kWidth], place[kWidth];
        left[u].unpack(value);
        right[u].unpack(place);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) value[i] += place[i];
        store<kWidth>(y + row * p.hidden + (first + u * 32) * kWidth, value);
      }
    }
  }
}

// Tokens [from, to) of the local sequence, all samples.
template <typename T>
__device__ float position_sum(const Positions& p, const T* dy, int64_t from, int64_t to, int64_t column) {
  float sum = 0.0f;
  for (int64_t token = max(from, p.first); token < min(to, p.first + p.seq); ++token)
    for (int64_t b = 0; b < p.batch; ++b) sum += to_float(dy[((token - p.first) * p.batch + b) * p.hidden + column]);
  return sum;
}

template <typename T>
__global__ void position_grad_kernel(Positions p, const T* dy, float* dtable, bool accumulate) {
  const int64_t count = p.rows * p.hidden, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t row = at / p.hidden, column = at % p.hidden;
    float sum = accumulate ? dtable[at] : 0.0f;
    if (p.at != nullptr) {
      for (int64_t token = p.first; token < p.first + p.seq; ++token)
        if (p.at[token] == row) sum += position_sum(p, dy, token, token + 1, column);
    } else if (p.starts == nullptr) {
      sum += position_sum(p, dy, row, row + 1, column);
    }
    for (int64_t k = 0; k < p.sequences; ++k) {
      const int64_t end = k + 1 < p.sequences ? p.starts[k + 1] : p.first + p.seq, token = p.starts[k] + row;
      sum += position_sum(p, dy, token, row + 1 < p.rows ? min(token + 1, end) : end, column);
    }
    dtable[at] = sum;
  }
}

struct Slope {
  float y, dy;
};

// The normal distribution's function is 1 − q(x) for positive x and q(−x) else, q = density · polynomial of 1 / (1 +
// p·x) (Abramowitz and Stegun 7.1.26: within 1e-7).
__device__ __forceinline__ Slope gelu(float x) {
  const float t = quick_inverse(1.0f + 0.23164189f * fabsf(x)), power = quick_exp2(x * x * -0.7213475204444817f);
  const float polynomial =
      0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.7265760135f + t * 0.5307027145f)));
  const float q = t * polynomial * power, phi = x < 0.0f ? q : 1.0f - q;
  return {x * phi, phi + x * 0.3989422804014327f * power};
}

// With u = c · (x + k · x³): (1 + tanh u) / 2 is the sigmoid of 2u, and (1 − tanh² u) / 4 that times one less it.
__device__ __forceinline__ Slope gelu_tanh(float x) {
  constexpr float kC = 2.0f * 0.7978845608028654f, kCubic = 0.044715f;
  const float square = x * x, s = quick_sigmoid(x * (kC + kC * kCubic * square));
  return {x * s, s + x * s * (1.0f - s) * (kC + 3.0f * kC * kCubic * square)};
}

template <Pointwise kFunction>
__device__ __forceinline__ Slope plain(float x) {
  if constexpr (kFunction == Pointwise::kGelu) {
    return gelu(x);
  } else if constexpr (kFunction == Pointwise::kGeluTanh) {
    return gelu_tanh(x);
  } else if constexpr (kFunction == Pointwise::kRelu) {
    return {fmaxf(x, 0.0f), x > 0.0f ? 1.0f : 0.0f};
  } else {
    return {x > 0.0f ? x * x : 0.0f, x > 0.0f ? 2.0f * x : 0.0f};
  }
}

struct GatedSlope {
  float y, by_gate, by_up;
};

template <Pointwise kFunction>
__device__ __forceinline__ GatedSlope gated(float gate, float up, float limit, float alpha) {
  if constexpr (kFunction == Pointwise::kGeglu) {
    const Slope g = gelu_tanh(gate);
    return {g.y * up, g.dy * up, g.y};
  } else {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    const float s = quick_sigmoid(alpha * g);
    const float slope = s + g * alpha * s * (1.0f - s);
    return {g * s * (u + 1.0f), gate < limit ? slope * (u + 1.0f) : 0.0f, fabsf(up) < limit ? g * s : 0.0f};
  }
}

// Writes y, or from dy the gradient of x.
template <Pointwise kFunction, bool kBackward, int kWidth, typename T>
__global__ void activation_kernel(const T* x, const T* bias, const T* dy, T* out, int64_t rows, int64_t cols,
                                  float limit, float alpha) {
  const int64_t vectors = cols / kWidth, count = rows * vectors, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    float d[kWidth];
    if constexpr (kBackward) load<kWidth>(dy + at * kWidth, d);
    if constexpr (is_gated(kFunction)) {
      const int64_t row = at / vectors, gate_at = row * 2 * cols + (at - row * vectors) * kWidth;
      float gate[kWidth], up[kWidth];
      load<kWidth>(x + gate_at, gate);
      load<kWidth>(x + gate_at + cols, up);
      add_bias<kWidth>(bias, (at - row * vectors) * kWidth, gate);
      add_bias<kWidth>(bias, cols + (at - row * vectors) * kWidth, up);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const GatedSlope v = gated<kFunction>(gate[i], up[i], limit, alpha);
        gate[i] = kBackward ? d[i] * v.by_gate : v.y;
        if constexpr (kBackward) up[i] = d[i] * v.by_up;
      }
      if constexpr (kBackward) {
        store<kWidth>(out + gate_at, gate);
        store<kWidth>(out + gate_at + cols, up);
      } else {
        store<kWidth>(out + at * kWidth, gate);
      }
    } else {
      float value[kWidth];
      load<kWidth>(x + at * kWidth, value);
      add_bias<kWidth>(bias, at % vectors * kWidth, value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const Slope v = plain<kFunction>(value[i]);
        value[i] = kBackward ? d[i] * v.dy : v.y;
      }
      store<kWidth>(out + at * kWidth, value);
    }
  }
}

template <Pointwise kFunction>
Status activation(Element element, const ActivationAttrs& a, RowShape shape, const void* x, const void* bias,
                  const void* dy, void* out, cudaStream_t stream) {
  return by_element("activation", element, [&]<typename T>(T) {
    by_width(shape.cols, {x, bias, dy, out}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const auto kernel = dy != nullptr ? activation_kernel<kFunction, true, kWidth, T>
                                        : activation_kernel<kFunction, false, kWidth, T>;
      kernel<<<grid_for(shape.rows * shape.cols / kWidth), kBlock, 0, stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<const T*>(dy), static_cast<T*>(out),
          shape.rows, shape.cols, a.limit, a.alpha);
    });
  });
}

Status activation_of(Element element, const ActivationAttrs& a, RowShape shape, const void* x, const void* bias,
                     const void* dy, void* out, cudaStream_t stream) {
  switch (a.function) {
    case Pointwise::kGelu: return activation<Pointwise::kGelu>(element, a, shape, x, bias, dy, out, stream);
    case Pointwise::kGeluTanh: return activation<Pointwise::kGeluTanh>(element, a, shape, x, bias, dy, out, stream);
    case Pointwise::kRelu: return activation<Pointwise::kRelu>(element, a, shape, x, bias, dy, out, stream);
    case Pointwise::kSquaredRelu:
      return activation<Pointwise::kSquaredRelu>(element, a, shape, x, bias, dy, out, stream);
    case Pointwise::kGeglu: return activation<Pointwise::kGeglu>(element, a, shape, x, bias, dy, out, stream);
    case Pointwise::kClampedSwiglu:
      return activation<Pointwise::kClampedSwiglu>(element, a, shape, x, bias, dy, out, stream);
  }
  return fail(ErrorCode::kUnavailable, std::string("CUDA knows no activation ") + name(a.function));
}

template <int kWidth, typename T>
__global__ void multiply_kernel(const T* x, float factor, T* y, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * kWidth;
  for (int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth; at < count; at += stride) {
    float value[kWidth];
    load<kWidth>(x + at, value);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] *= factor;
    store<kWidth>(y + at, value);
  }
}

__global__ void shift_tokens_kernel(const int32_t* tokens, int32_t* moved, int64_t count, int64_t by,
                                    const int32_t* past) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at < count) moved[at] = at + by < (past != nullptr ? past[at] : count) ? tokens[at + by] : -1;
}

struct RopeAny {
  int64_t tokens, batch, width;
  int first_head, heads, head_dim, half, offset;
  bool interleaved;
  float direction;
};

template <typename T>
__global__ void rope_any_kernel(RopeAny r, T* qkv, const float* table, const int32_t* own) {
  const int64_t count = r.tokens * r.heads * r.half, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += stride) {
    const int64_t pair = at % r.half, head = at / r.half % r.heads, token = at / r.half / r.heads;
    const int64_t position = token / r.batch - (own != nullptr ? own[token / r.batch] : 0);
    const float* angle = table + (position * r.half + pair) * 2;
    T* low = qkv + token * r.width + (r.first_head + head) * r.head_dim + r.offset + (r.interleaved ? 2 * pair : pair);
    T* high = low + (r.interleaved ? 1 : r.half);
    float x = to_float(*low), y = to_float(*high);
    turn_pair(angle[0], r.direction * angle[1], x, y);
    *low = from_float<T>(x);
    *high = from_float<T>(y);
  }
}

}  // namespace

namespace {

template <typename B>
Status bias_add_of(Element element, RowShape shape, const void* x, const B* bias, float scale, void* y,
                   const Launch& launch) {
  return by_element("bias_add", element, [&]<typename T>(T) {
    by_width(shape.cols, {x, bias, y}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      bias_add_kernel<kWidth><<<grid_for(shape.rows * shape.cols / kWidth), kBlock, 0, launch.stream>>>(
          static_cast<const T*>(x), bias, scale, static_cast<T*>(y), shape.rows, shape.cols);
    });
  });
}

}  // namespace

Status bias_add(Element element, RowShape shape, const void* x, Element of_bias, const void* bias, float scale, void* y,
                const Launch& launch) {
  return of_bias == Element::kF32 ? bias_add_of(element, shape, x, static_cast<const float*>(bias), scale, y, launch)
                                  : bias_add_of(element, shape, x, static_cast<const bf16*>(bias), scale, y, launch);
}

Status add_bf16(const float* a, const void* b, float* y, int64_t count, const Launch& launch) {
  const auto* narrow = static_cast<const bf16*>(b);
  by_width(count, {a, b, y}, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    add_bf16_kernel<kWidth><<<grid_for(count / kWidth), kBlock, 0, launch.stream>>>(a, narrow, y, count);
  });
  return launched("add");
}

int64_t column_sums_workspace(RowShape shape) {
  return std::max(runs_of(shape, 1), runs_of(shape, 8)) * shape.cols * 4;
}

Status column_sums(Element element, RowShape shape, const void* x, float scale, float* out, bool accumulate,
                   void* workspace, const Launch& launch) {
  auto* partials = static_cast<float*>(workspace);
  return by_element("column_sums", element, [&]<typename T>(T) {
    by_width(shape.cols, {x}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t runs = runs_of(shape, kWidth);
      const auto across = static_cast<unsigned>((shape.cols + 32 * kWidth - 1) / (32 * kWidth));
      run_sums_kernel<kWidth, T><<<dim3(across, static_cast<unsigned>(runs)), kRunWarps * 32, 0, launch.stream>>>(
          static_cast<const T*>(x), partials, shape.rows, shape.cols, rows_of_run(shape, kWidth));
      column_sums_kernel<<<static_cast<unsigned>((shape.cols + 31) / 32), 1024, 0, launch.stream>>>(
          partials, scale, out, runs, shape.cols, accumulate);
    });
  });
}

Status position_add(const Positions& p, const void* x, const void* table, void* y, const Launch& launch) {
  return by_element("position_add", p.element, [&]<typename T>(T) {
    by_width(p.hidden, {x, table, y}, [&](auto width) {
      position_add_kernel<decltype(width)::value, T><<<grid_for(p.seq * p.batch * 32), kBlock, 0, launch.stream>>>(
          p, static_cast<const T*>(x), static_cast<const T*>(table), static_cast<T*>(y));
    });
  });
}

Status position_grad(const Positions& p, const void* dy, float* dtable, bool accumulate, const Launch& launch) {
  return by_element("position_grad", p.element, [&]<typename T>(T) {
    position_grad_kernel<T>
        <<<grid_for(p.rows * p.hidden), kBlock, 0, launch.stream>>>(p, static_cast<const T*>(dy), dtable, accumulate);
  });
}

Status activation_forward(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, void* y,
                          const Launch& launch) {
  return activation_of(element, attrs, shape, x, nullptr, nullptr, y, launch.stream);
}

Status activation_backward(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, const void* dy,
                           void* dx, const Launch& launch) {
  return activation_of(element, attrs, shape, x, nullptr, dy, dx, launch.stream);
}

Status bias_activation(Element element, const ActivationAttrs& attrs, RowShape shape, const void* x, const void* bias,
                       const void* dy, void* out, const Launch& launch) {
  return activation_of(element, attrs, shape, x, bias, dy, out, launch.stream);
}

Status bias_dropout_add(const Dropout& p, const void* residual, const void* x, const void* bias, void* y,
                        const Launch& launch) {
  const int64_t rows = p.seq * p.batch;
  if (rows * p.hidden == 0) return {};
  if (rows * p.hidden / 32 + rows >= int64_t{1} << 31)  // at most as many parts of rows
    return fail(ErrorCode::kUnavailable, "dropout: more than 2^31 parts of rows");
  return by_element("dropout", p.element, [&]<typename T>(T) {
    by_width(p.hidden, {residual, x, bias, y}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const DropoutParts parts(rows, p.hidden / kWidth, kDropoutVectors<kWidth>);
      constexpr int kWarps = kDropoutThreads / 32;
      const int64_t grid = (int64_t{parts.items} + kWarps - 1) / kWarps;
      const auto kernel = residual != nullptr ? dropout_kernel<kWidth, T, true> : dropout_kernel<kWidth, T, false>;
      kernel<<<static_cast<unsigned>(grid), kDropoutThreads, 0, launch.stream>>>(
          p, DropoutRule(p.probability), parts, static_cast<const T*>(residual), static_cast<const T*>(x),
          static_cast<const T*>(bias), static_cast<T*>(y));
    });
  });
}

Status dropout(const Dropout& p, const void* x, void* y, const Launch& launch) {
  const auto addresses = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
  const DropoutRule rule(p.probability);
  if (p.element != Element::kBf16 || !rule.drops || p.hidden % 8 != 0 || addresses % 16 != 0 || !dropout_pairs(p))
    return bias_dropout_add(p, nullptr, x, nullptr, y, launch);
  const DropoutParts parts(1, p.hidden / 8, kDropoutVectors<8>);
  const dim3 grid(parts.of_row, static_cast<unsigned>(p.batch / 2), static_cast<unsigned>(p.seq));
  dropout_pair_kernel<<<grid, 32, 0, launch.stream>>>(p, rule, parts, static_cast<const bf16*>(x),
                                                      static_cast<bf16*>(y));
  return launched("dropout");
}

Status multiply(Element element, const void* x, float factor, void* y, int64_t count, const Launch& launch) {
  return by_element("multiply", element, [&]<typename T>(T) {
    by_width(count, {x, y}, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      multiply_kernel<kWidth, T><<<grid_for(count / kWidth), kBlock, 0, launch.stream>>>(
          static_cast<const T*>(x), factor, static_cast<T*>(y), count);
    });
  });
}

Status shift_tokens(const int32_t* tokens, int32_t* moved, int64_t count, int64_t by, const int32_t* past,
                    const Launch& launch) {
  shift_tokens_kernel<<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kBlock, 0, launch.stream>>>(
      tokens, moved, count, by, past);
  return launched("shift_tokens");
}

Status rope_any(Element element, const RopeAttrs& a, int64_t seq, int64_t batch, void* qkv, const float* table,
                const int32_t* own, const Launch& launch) {
  const RopeAny r{seq * batch,
                  batch,
                  int64_t{a.heads + a.kv_heads} * a.head_dim + int64_t{a.kv_heads} * a.value_dim(),
                  a.first_head,
                  a.end_head() - a.first_head,
                  a.head_dim,
                  a.turned() / 2,
                  a.rotary_offset,
                  a.rotation.interleaved,
                  a.inverse ? -1.0f : 1.0f};
  return by_element("rope_any", element, [&]<typename T>(T) {
    rope_any_kernel<T>
        <<<grid_for(r.tokens * r.heads * r.half), kBlock, 0, launch.stream>>>(r, static_cast<T*>(qkv), table, own);
  });
}

}  // namespace mbb::trainer::cuda
