// Cutting a stream into sequences, first-fit decreasing over a tree of free space, rows by global index.
#include "trainer/data/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

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

// Gives a pair's encoder its share, a multiple of the unit, so that neither part is empty or too long; nothing where
// the sequence is too short for that.
std::optional<SequenceRange> split(const SequenceCuts& cuts, int64_t unit, SequenceRange range) {
  if (range.length < 1) return std::nullopt;
  if (cuts.longest_encoder == 0) return range;
  const auto units = [&](int64_t tokens) { return tokens / unit * unit; };
  const int64_t least = units(std::max<int64_t>(1, range.length - cuts.longest) + unit - 1);
  const int64_t most = units(std::min(range.length - 1, cuts.longest_encoder));
  if (least > most) return std::nullopt;
  const int64_t share = range.length * cuts.longest_encoder / (cuts.longest + cuts.longest_encoder);
  range.encoder = std::clamp(units(share), least, most);
  range.length -= range.encoder;
  return range;
}

// `range` is of the whole sequence.
Status keep(const SequenceCuts& cuts, int64_t unit, int64_t number, SequenceRange range, CutSequences& out) {
  const int64_t longest = cuts.longest + cuts.longest_encoder;
  const auto take = [&](const SequenceRange& whole) {
    if (const auto parts = split(cuts, unit, whole))
      out.sequences.push_back(*parts);
    else
      ++out.empty;
  };
  if (range.length <= longest) {
    take(range);
    return {};
  }
  switch (cuts.too_long) {
    case LongSequences::kDrop: ++out.dropped; return {};
    case LongSequences::kTruncate:
      ++out.truncated;
      take({range.offset, longest});
      return {};
    case LongSequences::kRefuse: break;
  }
  const bool encoder = cuts.longest_encoder > 0;
  return fail(ErrorCode::kBadArgument,
              fmt::format("packing.too_long = refuse: sequence {} has {} tokens, and train.seq_length{} allows {}",
                          number, range.length, encoder ? " with the encoder's part" : "", longest),
              fmt::format("raise train.seq_length to {} (and packing.packed_sequence_size, where it is lower), or set "
                          "packing.too_long = truncate or drop",
                          range.length - cuts.longest_encoder));
}

Status cut_documents(const TokenSource& source, const SequenceCuts& cuts, int64_t unit, CutSequences& out) {
  const int64_t documents = std::min(source.num_documents(), cuts.most);
  for (int64_t d = 0; d < documents; ++d) {
    const DocumentRange document = source.document(d);
    MB_TRY(keep(cuts, unit, d, {document.offset, document.length - 1}, out));
  }
  return {};
}

Status cut_by_draw(const TokenSource& source, const SequenceCuts& cuts, int64_t unit, CutSequences& out) {
  const RandomStream random(cuts.seed, "data.lengths", 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < cuts.most; ++i) {
    const int64_t length = drawn_length(cuts, random, i);
    if (offset + length + 1 > source.num_tokens()) break;
    MB_TRY(keep(cuts, unit, i, {offset, length}, out));
    offset += length;
  }
  return {};
}

}  // namespace

Result<CutSequences> cut_sequences(const TokenSource& source, const SequenceCuts& cuts, int64_t unit) {
  MB_CHECK(cuts.lengths != SequenceLengths::kStream, "fixed windows are a Dataset's");
  MB_CHECK(cuts.longest_encoder % unit == 0, "the longest encoder's part is no multiple of its unit");
  CutSequences out;
  if (cuts.lengths == SequenceLengths::kDocuments)
    MB_TRY(cut_documents(source, cuts, unit, out));
  else
    MB_TRY(cut_by_draw(source, cuts, unit, out));
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
  MB_ASSIGN(data.cut_, cut_sequences(*data.source_, cuts, options.unit));
  std::vector<int64_t> lengths;
  for (const SequenceRange& range : data.cut_.sequences) lengths.push_back(range.row_tokens(options.unit));
  if (options.packed)
    data.rows_ = pack_first_fit_decreasing(lengths, options.size, options.most_sequences);
  else
    for (size_t i = 0; i < lengths.size(); ++i) data.rows_.push_back({{static_cast<int32_t>(i)}, lengths[i]});
  return data;
}

double SequenceDataset::efficiency() const {
  int64_t tokens = 0;
  for (const SequenceRange& range : cut_.sequences) tokens += range.length + range.encoder;
  return static_cast<double>(tokens) / static_cast<double>(rows() * (options_.size + options_.encoder_size));
}

const Pack& SequenceDataset::row_of(int64_t global_row) const {
  MB_CHECK(global_row >= 0, "rows count from 0");
  const auto epoch = static_cast<uint64_t>(global_row / rows());
  const Permutation permutation(RandomStream(options_.seed, "data.order", epoch), rows_.size());
  return rows_[permutation(static_cast<uint64_t>(global_row % rows()))];
}

std::vector<SequenceRange> SequenceDataset::sequences(int64_t global_row) const {
  std::vector<SequenceRange> all;
  for (const int32_t sequence : row_of(global_row).sequences)
    all.push_back(cut_.sequences[static_cast<size_t>(sequence)]);
  return all;
}

RowFacts SequenceDataset::facts(int64_t global_row) const {
  RowFacts facts;
  for (const SequenceRange& range : sequences(global_row)) {
    ++facts.sequences;
    facts.tokens += range.length;
    facts.squares += range.length * range.length;
  }
  return facts;
}

namespace {

// Where the sequences of a row begin, each padded to a multiple of `unit`; then the row's tokens, to the end of
// `starts`.
std::vector<int64_t> begins(std::span<const SequenceRange> sequences, bool encoder, int64_t unit,
                            std::span<int32_t> starts) {
  std::vector<int64_t> all;
  int64_t at = 0;
  for (const SequenceRange& range : sequences) {
    all.push_back(at);
    at += SequenceRange{0, encoder ? range.encoder : range.length}.row_tokens(unit);
  }
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i < all.size() ? all[i] : at);
  return all;
}

}  // namespace

Status SequenceDataset::row(int64_t global_row, std::span<int32_t> tokens, std::span<int32_t> labels,
                            std::span<int32_t> starts) const {
  std::fill(tokens.begin(), tokens.end(), 0);
  std::fill(labels.begin(), labels.end(), -1);
  const std::vector<SequenceRange> ranges = sequences(global_row);
  const std::vector<int64_t> at = begins(ranges, false, options_.unit, starts);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto begin = static_cast<size_t>(at[i]), length = static_cast<size_t>(ranges[i].length);
    const int64_t offset = ranges[i].offset + ranges[i].encoder;
    if (!tokens.empty()) MB_TRY(source_->read(offset, tokens.subspan(begin, length)));
    if (!labels.empty()) MB_TRY(source_->read(offset + 1, labels.subspan(begin, length)));
  }
  return {};
}

Status SequenceDataset::encoder_row(int64_t global_row, std::span<int32_t> tokens, std::span<int32_t> starts) const {
  std::fill(tokens.begin(), tokens.end(), 0);
  const std::vector<SequenceRange> ranges = sequences(global_row);
  const std::vector<int64_t> at = begins(ranges, true, 1, starts);
  for (size_t i = 0; !tokens.empty() && i < ranges.size(); ++i)
    MB_TRY(source_->read(ranges[i].offset,
                         tokens.subspan(static_cast<size_t>(at[i]), static_cast<size_t>(ranges[i].encoder))));
  return {};
}

}  // namespace mbb::trainer
