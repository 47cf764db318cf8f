// Which keys a query sees where sequences are packed or a window slides, and which queries a key is seen by: device
// code and its test on the host read the same functions.
#pragma once

#include <cstdint>

namespace mbb::trainer::cuda {

// Keys [begin(query), end(query)). Neither falls from one query to the next.
struct KeySpan {
  const int32_t* own = nullptr;   // [seq], first token of a query's own sequence; null: one sequence
  const int32_t* past = nullptr;  // [seq], one behind its last, where queries look both ways; null: they are causal
  int64_t seq = 0;
  int window = 0;  // keys a query sees, its own among them, when causal; 0: all

  // Rows behind the sequence, which kernels fill tiles with, see what its last one sees.
  constexpr int64_t begin(int64_t query) const {
    const int64_t row = query < seq ? query : seq - 1;
    const int64_t first = own == nullptr ? 0 : own[row];
    return window > 0 && row + 1 - window > first ? row + 1 - window : first;
  }
  constexpr int64_t end(int64_t query) const {
    const int64_t row = query < seq ? query : seq - 1;
    return past != nullptr ? past[row] : row + 1;
  }
  // The first query that sees `key` or a later one.
  constexpr int64_t queries_begin(int64_t key) const { return past != nullptr ? own[key] : key; }
  // One behind the last query that sees `key` or an earlier one that is not behind the sequence: a block of keys whose
  // last is `key` is seen by queries in front of it alone.
  constexpr int64_t queries_end(int64_t key) const {
    if (key >= seq) key = seq - 1;
    if (past != nullptr) return past[key];
    int64_t sees = key, behind = seq;
    while (behind - sees > 1) {
      const int64_t middle = sees + (behind - sees) / 2;
      (begin(middle) <= key ? sees : behind) = middle;
    }
    return behind;
  }
};

}  // namespace mbb::trainer::cuda
