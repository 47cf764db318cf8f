// Rows of a pack by its starts.
#include "trainer/program/packed_rows.h"

#include "profiler/base/check.h"

namespace mbb::trainer {
namespace {

// Place of the sequence that row `row` of every `ways`-th of the pack belongs to, at or after `sequence`.
size_t sequence_of(std::span<const int32_t> starts, int64_t ways, int64_t row, size_t sequence) {
  while (sequence + 1 < starts.size() && starts[sequence + 1] / ways <= row) ++sequence;
  return sequence;
}

}  // namespace

std::vector<PackedRow> packed_rows(const Positions& positions, std::span<const int32_t> starts, int64_t rows) {
  std::vector<PackedRow> all;
  all.reserve(static_cast<size_t>(rows));
  size_t sequence = 0;
  if (positions.whole()) {
    for (int64_t row = 0; row < rows; ++row) {
      sequence = sequence_of(starts, 1, row, sequence);
      all.push_back({static_cast<int64_t>(sequence), starts[sequence], row});
    }
    return all;
  }
  // Two runs are what one rank holds of a sequence that is alone in its pack.
  const int64_t of_rank = 2 * positions.run, ranks = positions.sequence / of_rank;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t local = row % of_rank;
    if (local == 0) sequence = 0;
    sequence = sequence_of(starts, ranks, local, sequence);
    const int64_t first = starts[sequence];
    const int64_t end = sequence + 1 < starts.size() ? starts[sequence + 1] : positions.sequence;
    const int64_t chunk = (end - first) / (2 * ranks), within = local - first / ranks;
    MB_CHECK(first % (2 * ranks) == 0 && (end - first) % (2 * ranks) == 0, "sequences of a pack divide over its ranks");
    const size_t pair = 2 * static_cast<size_t>(row / of_rank);
    const bool late = within >= chunk;
    const int64_t number = positions.starts[pair + (late ? 1 : 0)] / positions.run;
    all.push_back({static_cast<int64_t>(sequence), first, first + number * chunk + within - (late ? chunk : 0)});
  }
  return all;
}

}  // namespace mbb::trainer
