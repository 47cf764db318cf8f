// Sequences of many lengths from one token stream, and packs of them: rows of a fixed size that hold several sequences
// one behind another.
//
// A sequence of length n is n inputs and n labels: the tokens [offset, offset + n) and the same one further on. A pack
// carries where its sequences begin: starts[i] for sequence i, then the number of tokens in the pack, repeated to a
// fixed capacity (trailing sequences are empty). What lies behind the last sequence is padding: label -1, no loss. So
// is what fills sequences up to a multiple of RowOptions::unit.
//
// For an encoder-decoder a sequence is a pair: its first tokens are the encoder's, the rest the decoder's, and a row
// has a second row beside it, of the encoder's parts in the same order with starts of their own. The encoder's part is
// a multiple of RowOptions::unit and never padded: attention both ways would see the padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/data/token_source.h"

namespace mbb::trainer {

// Where sequences end: fixed windows, at the source's documents, or at lengths drawn from a distribution.
enum class SequenceLengths { kStream, kDocuments, kUniform, kLognormal };
enum class LongSequences { kTruncate, kDrop, kRefuse };

struct SequenceRange {
  int64_t offset = 0;
  int64_t length = 0;   // with a label, behind the encoder's part
  int64_t encoder = 0;  // tokens of the encoder's part

  // What it takes of a row, or of the longer of a pair's rows.
  int64_t row_tokens(int64_t unit) const { return ((length > encoder ? length : encoder) + unit - 1) / unit * unit; }
};

struct SequenceCuts {
  SequenceLengths lengths = SequenceLengths::kDocuments;
  int64_t longest = 0;          // tokens
  int64_t longest_encoder = 0;  // above 0: sequences are pairs, cut in the proportion of the two longest
  LongSequences too_long = LongSequences::kTruncate;
  int64_t mean = 0;    // of drawn lengths, tokens
  double sigma = 1.0;  // of the logarithm of lognormal lengths
  uint64_t seed = 1234;
  int64_t most = int64_t{1} << 20;  // sequences looked at: some sources never end
};

struct CutSequences {
  std::vector<SequenceRange> sequences;
  int64_t truncated = 0;
  int64_t dropped = 0;
  int64_t empty = 0;  // too short for a token to predict and, for a pair, a unit to encode
};

// kUniform draws from 1 to 2·mean − 1, kLognormal around exp(ln mean − sigma²/2). Errors (kBadArgument): a sequence
// that is too long and refused, naming document and length; no sequence left. An encoder's parts are multiples of
// `unit`, which divides the longest.
Result<CutSequences> cut_sequences(const TokenSource& source, const SequenceCuts& cuts, int64_t unit = 1);

// Indices into the sequences, in the order they lie in the pack.
struct Pack {
  std::vector<int32_t> sequences;
  int64_t tokens = 0;
};

// First-fit decreasing: longest first, each into the first pack with `size` tokens and `most_sequences` sequences that
// has room. O(n log n). Every length is at most `size`.
std::vector<Pack> pack_first_fit_decreasing(std::span<const int64_t> lengths, int64_t size, int64_t most_sequences);

// What a step's row costs: tokens with a label, and the sum of squared lengths, which attention's work follows.
struct RowFacts {
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t squares = 0;
};

struct RowOptions {
  int64_t size = 0;  // tokens of a row
  bool packed = false;
  int64_t most_sequences = 64;  // of a pack
  uint64_t seed = 1234;
  int64_t unit = 1;          // every sequence is padded to a multiple of it, and encoders' parts are cut at one
  int64_t encoder_size = 0;  // tokens of the encoder's row beside it
};

// Rows by global index: packs, or one padded sequence a row. Row g of epoch g / rows is a permutation keyed by (seed,
// "data.order", epoch), as a Dataset's windows are.
class SequenceDataset {
 public:
  static Result<SequenceDataset> open(TokenSourcePtr source, const SequenceCuts& cuts, const RowOptions& options);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  const CutSequences& cut() const { return cut_; }
  // Real tokens over tokens of all rows.
  double efficiency() const;
  std::vector<SequenceRange> sequences(int64_t global_row) const;
  RowFacts facts(int64_t global_row) const;
  // Spans are empty or whole: tokens and labels [size], starts [most_sequences + 1]. Safe from many threads.
  Status row(int64_t global_row, std::span<int32_t> tokens, std::span<int32_t> labels, std::span<int32_t> starts) const;
  // Tokens [encoder_size] and starts [most_sequences + 1] of the encoder's row.
  Status encoder_row(int64_t global_row, std::span<int32_t> tokens, std::span<int32_t> starts) const;

 private:
  SequenceDataset(TokenSourcePtr source, const RowOptions& options) : source_(std::move(source)), options_(options) {}
  const Pack& row_of(int64_t global_row) const;

  TokenSourcePtr source_;
  RowOptions options_;
  CutSequences cut_;
  std::vector<Pack> rows_;
};

}  // namespace mbb::trainer
