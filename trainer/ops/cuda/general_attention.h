// Attention of every form the op knows, in fp32 or bf16, without tiles: sliding windows, sinks, relative position bias,
// dropout, values of another width, cross attention. Right before fast (attention_backend = unfused); no atomics, every
// sum in a fixed order.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/packs.h"

namespace mbb::trainer::cuda {

// Rows of `q` and `kv` are tokens in [s, b] order. Packed qkv: q == kv, offsets behind the queries.
struct GeneralAttention {
  Element element = Element::kBf16;
  const AttentionAttrs* attrs = nullptr;
  int64_t batch = 1, queries = 0, keys = 0;  // queries and keys of a sequence
  const void* q = nullptr;
  const void* kv = nullptr;
  int64_t q_row = 0, kv_row = 0;             // elements of a row
  int64_t key_offset = 0, value_offset = 0;  // in a row of kv
  const void* weight = nullptr;              // sinks [heads] or bias table [heads, buckets]
  const int32_t* buckets = nullptr;          // of distance key - query, from -(queries - 1) on
  PackSpans packs = {};                      // packed: what rows see of each other
  const int32_t* samples = nullptr;          // dropout: [batch]
  const float* record = nullptr;             // dropout: the step record
  int64_t first_head = 0;                    // of all ranks' heads, for dropout's numbers
  // A part of the sequence: where rows of queries and keys lie in the whole ones, both or neither.
  const int32_t* query_places = nullptr;
  const int32_t* key_places = nullptr;
  int64_t all_queries = 0, all_keys = 0;  // tokens of the whole sequences
};

// out [s, b, heads * value_dim]; lse [b, heads, s]. A query that sees no key gets zeros and -inf.
Status general_attention_forward(const GeneralAttention& args, void* out, float* lse, const Launch& launch);

struct GeneralAttentionGrad {
  const void* out = nullptr;
  const void* dout = nullptr;
  const float* lse = nullptr;  // [b, heads, lse_rows], of the queries from first_query on
  int64_t lse_rows = 0, first_query = 0;
  void* dq = nullptr;        // laid out as q
  void* dkv = nullptr;       // laid out as kv; may be dq
  float* dweight = nullptr;  // of sinks or table
  void* workspace = nullptr;
};
int64_t general_attention_workspace(const GeneralAttention& args);
Status general_attention_backward(const GeneralAttention& args, const GeneralAttentionGrad& grad, const Launch& launch);

}  // namespace mbb::trainer::cuda
