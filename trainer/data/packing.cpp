// Cutting a stream into sequences, first-fit decreasing over a tree of free space, rows by global index.
#include "trainer/data/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "profiler/base/check.h"
#include "trainer/data/rng.h"

namespace mbb::trainer {
namespace {

// Free tokens of packs in order, as a tree of maxima: the first pack with room in O(log n).
class FreeSpace {
 public:
  FreeSpace(size_t packs, int64_t size) {
    while (leaves_ < packs) leaves_ *= 2;
    most_.assign(2 * leaves_, size);
  }
  size_t first_with(int64_t tokens) const {
    size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= tokens ? 2 * node : 2 * node + 1;
    return node - leaves_;
  }
  void set(size_t pack, int64_t free) {
    size_t node = pack + leaves_;
    most_[node] = free;
    while ((node /= 2) > 0) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
  }

 private:
  size_t leaves_ = 1;
  std::vector<int64_t> most_;
};

int64_t drawn_length(const SequenceCuts& cuts, const RandomStream& random, int64_t index) {
  const auto i = static_cast<uint64_t>(index);
  if (cuts.lengths == SequenceLengths::kUniform)
    return 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * cuts.mean - 1), i, 0));
  const double middle = std::log(static_cast<double>(cuts.mean)) - 0.5 * cuts.sigma * cuts.sigma;
  const double length = std::exp(middle + cuts.sigma * static_cast<double>(random.normal(i, 0)));
  return std::max<int64_t>(1, std::llround(std::min(length, 1e15)));
}

Status keep(const SequenceCuts& cuts, int64_t number, SequenceRange range, CutSequences& out) {
  if (range.length <= cuts.longest) {
    out.sequences.push_back(range);
    return {};
  }
  switch (cuts.too_long) {
    case LongSequences::kDrop: ++out.dropped; return {};
    case LongSequences::kTruncate:
      ++out.truncated;
      out.sequences.push_back({range.offset, cuts.longest});
      return {};
    case LongSequences::kRefuse: break;
  }
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("sequence {} has {} tokens, and the longest allowed are {}", number, range.length, cuts.longest),
      "raise packing.packed_sequence_size or train.seq_length, or set packing.too_long = truncate or drop");
}

Status cut_documents(const TokenSource& source, const SequenceCuts& cuts, CutSequences& out) {
  const int64_t documents = std::min(source.num_documents(), cuts.most);
  for (int64_t d = 0; d < documents; ++d) {
    const DocumentRange document = source.document(d);
    if (document.length < 2)
      ++out.empty;
    else
      MB_TRY(keep(cuts, d, {document.offset, document.length - 1}, out));
  }
  return {};
}

Status cut_by_draw(const TokenSource& source, const SequenceCuts& cuts, CutSequences& out) {
  const RandomStream random(cuts.seed, "data.lengths", 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < cuts.most; ++i) {
    const int64_t length = drawn_length(cuts, random, i);
    if (offset + length + 1 > source.num_tokens()) break;
    MB_TRY(keep(cuts, i, {offset, length}, out));
    offset += length;
  }
  return {};
}

}  // namespace

Result<CutSequences> cut_sequences(const TokenSource& source, const SequenceCuts& cuts) {
  MB_CHECK(cuts.lengths != SequenceLengths::kStream, "fixed windows are a Dataset's");
  CutSequences out;
  if (cuts.lengths == SequenceLengths::kDocuments)
    MB_TRY(cut_documents(source, cuts, out));
  else
    MB_TRY(cut_by_draw(source, cuts, out));
  if (out.sequences.empty())
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} holds no sequence: {} too long and dropped, {} without a token to predict",
                            source.describe(), out.dropped, out.empty),
                "raise packing.packed_sequence_size or train.seq_length, or name more data");
  return out;
}

std::vector<Pack> pack_first_fit_decreasing(std::span<const int64_t> lengths, int64_t size, int64_t most_sequences) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<Pack> packs;
  FreeSpace space(std::max<size_t>(1, lengths.size()), size);
  for (const int32_t sequence : order) {
    const int64_t length = lengths[static_cast<size_t>(sequence)];
    MB_CHECK(length >= 1 && length <= size, "a sequence that is empty or longer than a pack");
    const size_t at = space.first_with(length);
    if (at >= packs.size()) packs.resize(at + 1);
    Pack& pack = packs[at];
    pack.sequences.push_back(sequence);
    pack.tokens += length;
    const bool full = static_cast<int64_t>(pack.sequences.size()) == most_sequences;
    space.set(at, full ? 0 : size - pack.tokens);
  }
  return packs;
}

Result<SequenceDataset> SequenceDataset::open(TokenSourcePtr source, const SequenceCuts& cuts,
                                              const RowOptions& options) {
  SequenceDataset data(std::move(source), options);
  MB_ASSIGN(data.cut_, cut_sequences(*data.source_, cuts));
  std::vector<int64_t> lengths;
  for (const SequenceRange& range : data.cut_.sequences) lengths.push_back(range.length);
  if (options.packed)
    data.rows_ = pack_first_fit_decreasing(lengths, options.size, options.most_sequences);
  else
    for (size_t i = 0; i < lengths.size(); ++i) data.rows_.push_back({{static_cast<int32_t>(i)}, lengths[i]});
  return data;
}

double SequenceDataset::efficiency() const {
  int64_t tokens = 0;
  for (const Pack& row : rows_) tokens += row.tokens;
  return static_cast<double>(tokens) / static_cast<double>(rows() * options_.size);
}

const Pack& SequenceDataset::row_of(int64_t global_row) const {
  MB_CHECK(global_row >= 0, "rows count from 0");
  const auto epoch = static_cast<uint64_t>(global_row / rows());
  const Permutation permutation(RandomStream(options_.seed, "data.order", epoch), rows_.size());
  return rows_[permutation(static_cast<uint64_t>(global_row % rows()))];
}

std::vector<int64_t> SequenceDataset::lengths(int64_t global_row) const {
  std::vector<int64_t> lengths;
  for (const int32_t sequence : row_of(global_row).sequences)
    lengths.push_back(cut_.sequences[static_cast<size_t>(sequence)].length);
  return lengths;
}

RowFacts SequenceDataset::facts(int64_t global_row) const {
  RowFacts facts;
  for (const int64_t length : lengths(global_row)) {
    ++facts.sequences;
    facts.tokens += length;
    facts.squares += length * length;
  }
  return facts;
}

Status SequenceDataset::row(int64_t global_row, std::span<int32_t> tokens, std::span<int32_t> labels,
                            std::span<int32_t> starts) const {
  const Pack& pack = row_of(global_row);
  std::fill(tokens.begin(), tokens.end(), 0);
  std::fill(labels.begin(), labels.end(), -1);
  std::fill(starts.begin(), starts.end(), static_cast<int32_t>(pack.tokens));
  size_t at = 0;
  for (size_t i = 0; i < pack.sequences.size(); ++i) {
    const SequenceRange& range = cut_.sequences[static_cast<size_t>(pack.sequences[i])];
    const auto length = static_cast<size_t>(range.length);
    if (!starts.empty()) starts[i] = static_cast<int32_t>(at);
    if (!tokens.empty()) MB_TRY(source_->read(range.offset, tokens.subspan(at, length)));
    if (!labels.empty()) MB_TRY(source_->read(range.offset + 1, labels.subspan(at, length)));
    at += length;
  }
  return {};
}

}  // namespace mbb::trainer
