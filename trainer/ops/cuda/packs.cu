// Tables of packs.
#include "trainer/ops/cuda/packs.h"

#include "trainer/ops/cuda/by_element.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int kThreads = 256;

unsigned grid_of(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

__global__ void sequence_rows_kernel(SequenceRows r, int32_t* begin, int32_t* past) {
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= r.tokens) return;
  int64_t sequence = 0;
  while (sequence + 1 < r.count && r.starts[sequence + 1] <= token) ++sequence;
  if (begin != nullptr) begin[token] = r.others[sequence];
  if (past != nullptr)
    past[token] = sequence + 1 < r.count ? r.others[sequence + 1] : static_cast<int32_t>(r.other_tokens);
}

struct Widths {
  int64_t of[kPackWidths];
};

__global__ void ragged_tables_kernel(const int32_t* starts, int64_t count, int64_t tokens, Widths widths,
                                     int32_t* lengths, int64_t* offsets) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at > count) return;
  const int64_t begin = at < count ? starts[at] : tokens;
  if (at < count) lengths[at] = static_cast<int32_t>((at + 1 < count ? starts[at + 1] : tokens) - begin);
  for (int i = 0; i < kPackWidths; ++i) offsets[i * (count + 1) + at] = begin * widths.of[i];
}

int64_t lengths_bytes(int64_t count) {
  return (count * 4 + 15) / 16 * 16;
}

}  // namespace

Status sequence_rows(const SequenceRows& rows, int32_t* begin, int32_t* past, const Launch& launch) {
  sequence_rows_kernel<<<grid_of(rows.tokens), kThreads, 0, launch.stream>>>(rows, begin, past);
  return launched("sequence_rows");
}

int64_t ragged_bytes(int64_t count) {
  return lengths_bytes(count) + kPackWidths * (count + 1) * 8;
}

int32_t* ragged_lengths(void* tables) {
  return static_cast<int32_t*>(tables);
}

int64_t* ragged_offsets(void* tables, int64_t count, int width) {
  return reinterpret_cast<int64_t*>(static_cast<char*>(tables) + lengths_bytes(count)) + width * (count + 1);
}

Status ragged_tables(const int32_t* starts, int64_t count, int64_t tokens, const int64_t (&widths)[kPackWidths],
                     void* tables, const Launch& launch) {
  Widths all{};
  for (int i = 0; i < kPackWidths; ++i) all.of[i] = widths[i];
  ragged_tables_kernel<<<grid_of(count + 1), kThreads, 0, launch.stream>>>(
      starts, count, tokens, all, ragged_lengths(tables), ragged_offsets(tables, count, 0));
  return launched("ragged_tables");
}

}  // namespace mbb::trainer::cuda
