// Embedding gradient, deterministic: positions are sorted by token id, then one block sums each id's rows in token
// order.
#include <cub/device/device_radix_sort.cuh>

#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/cuda/vector.cuh"

namespace mbb::trainer::cuda {
namespace {

constexpr int kBlock = 128;

// Blocks (sorted position, 1024-column stripe); only the first position of each id works, over the whole run of that
// id.
template <typename T, typename Gradient>
__global__ void __launch_bounds__(kBlock)
    embedding_backward_kernel(const int32_t* ids, const int32_t* positions, const T* dy, Gradient* dtable,
                              int64_t tokens, int64_t cols, int64_t vocab, int64_t first) {
  const int64_t start = blockIdx.x;
  const int32_t id = ids[start];
  if (start > 0 && ids[start - 1] == id) return;
  const int64_t row = id - first;
  if (row < 0 || row >= vocab) return;
  const int64_t column = (int64_t{blockIdx.y} * kBlock + threadIdx.x) * 8;
  if (column >= cols) return;
  float sum[8] = {};
  for (int64_t at = start; at < tokens && ids[at] == id; ++at) {
    float values[8];
    load8(dy + int64_t{positions[at]} * cols + column, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += values[i];
  }
  float old[8];
  load8(dtable + row * cols + column, old);
#pragma unroll
  for (int i = 0; i < 8; ++i) old[i] += sum[i];
  store8(dtable + row * cols + column, old);
}

__global__ void iota_kernel(int32_t* to, int64_t count) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at < count) to[at] = static_cast<int32_t>(at);
}

size_t sort_bytes(int64_t tokens) {
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                  static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                  static_cast<int>(tokens));
  return bytes;
}

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

int64_t embedding_workspace(int64_t tokens) {
  return 3 * aligned(tokens * 4) + aligned(static_cast<int64_t>(sort_bytes(tokens)));
}

Status embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace, const Launch& launch) {
  if (args.cols % 8 != 0) return fail(ErrorCode::kBadArgument, "embedding_backward: columns must be a multiple of 8");
  if (args.tokens == 0) return {};
  auto* bytes = static_cast<unsigned char*>(workspace);
  const int64_t list = aligned(args.tokens * 4);
  auto* order = reinterpret_cast<int32_t*>(bytes);
  auto* ids = reinterpret_cast<int32_t*>(bytes + list);
  auto* positions = reinterpret_cast<int32_t*>(bytes + 2 * list);
  size_t temporary = sort_bytes(args.tokens);
  iota_kernel<<<static_cast<unsigned>((args.tokens + 255) / 256), 256, 0, launch.stream>>>(order, args.tokens);
  MB_TRY(ok(cub::DeviceRadixSort::SortPairs(bytes + 3 * list, temporary, args.ids, ids, order, positions,
                                            static_cast<int>(args.tokens), 0, 32, launch.stream),
            "sorting tokens for the embedding gradient"));
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  static_cast<unsigned>((args.cols + kBlock * 8 - 1) / (kBlock * 8)));
  const auto start = [&]<typename T, typename Gradient>(T, Gradient) {
    embedding_backward_kernel<T, Gradient>
        <<<grid, kBlock, 0, launch.stream>>>(ids, positions, static_cast<const T*>(dy), static_cast<Gradient*>(dtable),
                                             args.tokens, args.cols, args.vocab, args.first);
  };
  if (args.element == Element::kF32)
    start(float{}, float{});
  else if (args.gradient == Element::kF32)
    start(bf16{}, float{});
  else
    start(bf16{}, bf16{});
  return launched("embedding_backward");
}

}  // namespace mbb::trainer::cuda
