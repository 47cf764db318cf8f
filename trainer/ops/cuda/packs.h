// Where the sequences of a pack lie, by token: tables on the device that attention, rotary positions and position
// embeddings read. Starts [count] ascend; those behind the last sequence stand at the number of tokens, and tokens
// behind it are one more sequence.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// What queries and keys see of each other: key rows [begin, past) of query i, query rows [first, last) of key j, before
// any mask of places.
struct PackSpans {
  const int32_t *key_begin = nullptr, *key_past = nullptr;      // [queries]
  const int32_t *query_begin = nullptr, *query_past = nullptr;  // [keys]
};

// Of each of `tokens` tokens, in the pack of `starts`: the rows [begin, past) of the same sequence in the pack of
// `others`, of `other_tokens` tokens. Either result may be null.
struct SequenceRows {
  const int32_t* starts = nullptr;
  int64_t tokens = 0;
  const int32_t* others = nullptr;  // as many starts
  int64_t other_tokens = 0;
  int64_t count = 0;
};
Status sequence_rows(const SequenceRows& rows, int32_t* begin, int32_t* past, const Launch& launch);

// Tables of cuDNN's packed layout, of `count` sequences: lengths i32 [count], then for each of `widths` the element
// where a sequence of rows that wide begins, i64 [count + 1].
constexpr int kPackWidths = 3;
int64_t ragged_bytes(int64_t count);
Status ragged_tables(const int32_t* starts, int64_t count, int64_t tokens, const int64_t (&widths)[kPackWidths],
                     void* tables, const Launch& launch);
int32_t* ragged_lengths(void* tables);
int64_t* ragged_offsets(void* tables, int64_t count, int width);

}  // namespace mbb::trainer::cuda
