// Kernels of what several ranks' programs hold: parts of attention merged, gradients of parts added, FP8 messages,
// expert rows that arrive in pieces. Any shape and alignment; sums in a fixed order.
#pragma once

#include <span>

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Parts a call takes at most.
inline constexpr size_t kMostParts = 64;

// Rows [first, first + rows) of the whole.
struct RowPart {
  const void* data = nullptr;
  const float* lse = nullptr;  // of attention: [b, heads, rows]
  int64_t first = 0, rows = 0;
};

// out [rows, b, heads * value_dim] = sum of exp(lse_i - lse) * part_i, lse [b, heads, rows] = log of the sum of
// exp(lse_i), with one more logit a head in it where sinks [heads] are given.
struct Merge {
  Element element = Element::kBf16;
  int64_t rows = 0, batch = 1, heads = 1, value_dim = 64;
  const void* sinks = nullptr;
};
Status merge_attention(const Merge& args, std::span<const RowPart> parts, void* out, float* lse, const Launch& launch);

// out [rows, width] = the sum of the parts where they lie, zero elsewhere.
Status add_parts(Element element, int64_t rows, int64_t width, std::span<const RowPart> parts, void* out,
                 const Launch& launch);

// message: `count` E4M3 bytes, then their inverse scale in fp32. amax: one float of workspace.
Status pack_fp8(Element element, const void* x, int64_t count, uint8_t* message, float* amax, const Launch& launch);
Status unpack_fp8(Element element, const uint8_t* message, int64_t count, void* x, const Launch& launch);

// Pieces of rows, segments i32 [2, pieces], piece p of expert p mod experts, put together: merged i32 [2, experts] and,
// for each of the `rows` rows of the buffer, where it lies when each expert's pieces follow one another; -1 where
// nobody fills it.
Status merge_pieces(const int32_t* segments, int64_t pieces, int64_t experts, int64_t rows, int32_t* merged,
                    int32_t* places, const Launch& launch);

// moved[row * batch + b] = tokens[map[row] * batch + b], or -1 where map[row] is negative.
Status map_tokens(const int32_t* tokens, const int32_t* map, int64_t rows, int64_t batch, int32_t* moved,
                  const Launch& launch);

}  // namespace mbb::trainer::cuda
