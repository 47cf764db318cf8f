// Balanced chunks, and the pairs causal attention looks at between two sets of them.
#include "trainer/program/positions.h"

#include <algorithm>

#include "profiler/base/check.h"

namespace mbb::trainer {
namespace {

struct Run {
  int64_t start, count;
};

template <typename Visit>
void each_run(const Positions& positions, int64_t rows, Visit&& visit) {
  if (positions.whole()) return visit(Run{0, rows});
  for (int64_t first = 0; first < rows; first += positions.run)
    visit(Run{positions.at(first), std::min(positions.run, rows - first)});
}

double pairs_in_window(const Run& queries, const Run& keys, int64_t window) {
  int64_t pairs = 0;
  for (int64_t q = queries.start; q < queries.start + queries.count; ++q) {
    const int64_t first = std::max(keys.start, q + 1 - window);
    const int64_t end = std::min(keys.start + keys.count, q + 1);
    pairs += std::max<int64_t>(0, end - first);
  }
  return static_cast<double>(pairs);
}

// Keys up to and half of the query's own: the area under the diagonal.
double pairs_below(const Run& queries, const Run& keys) {
  // Σ over q of clamp(q + ½ − keys.start, 0, keys.count), in closed form: whole rows, then a triangle.
  const int64_t end = keys.start + keys.count;
  const int64_t queries_end = queries.start + queries.count;
  const int64_t above = std::max<int64_t>(0, queries_end - std::max(queries.start, end));
  const int64_t from = std::clamp(queries.start, keys.start, end);
  const int64_t to = std::clamp(queries_end, keys.start, end);
  const auto square = [&](int64_t at) {
    const auto n = static_cast<double>(at - keys.start);
    return 0.5 * n * n;
  };
  return static_cast<double>(above) * static_cast<double>(keys.count) + square(to) - square(from);
}

}  // namespace

Positions Positions::rows(int64_t first, int64_t count) const {
  MB_CHECK(!whole() && first % run == 0 && count % run == 0, "positions are cut between runs");
  Positions part{sequence, run, {}};
  part.starts.assign(starts.begin() + first / run, starts.begin() + (first + count) / run);
  return part;
}

Positions context_positions(int64_t sequence, int size, int index) {
  if (size == 1) return {};
  const int64_t run = sequence / (2 * size);
  return {sequence, run, {index * run, (2 * size - 1 - index) * run}};
}

Positions group_positions(int64_t sequence, int size, int first, int count) {
  if (size == 1) return {};
  Positions all{sequence, sequence / (2 * size), {}};
  for (int index = first; index < first + count; ++index) {
    const Positions part = context_positions(sequence, size, index);
    all.starts.insert(all.starts.end(), part.starts.begin(), part.starts.end());
  }
  return all;
}

Positions gathered_positions(int64_t sequence, int size) {
  return group_positions(sequence, size, 0, size);
}

double visible_pairs(const Positions& queries, int64_t query_rows, const Positions& keys, int64_t key_rows,
                     int64_t window) {
  double pairs = 0;
  each_run(queries, query_rows, [&](const Run& q) {
    each_run(keys, key_rows,
             [&](const Run& k) { pairs += window > 0 ? pairs_in_window(q, k, window) : pairs_below(q, k); });
  });
  return pairs;
}

}  // namespace mbb::trainer
