// Rows of a fixed size that hold sequences of many lengths, and what the lengths leave of the work over whole rows: of
// attention cores, and of experts, who get no padding. One definition for explain, op rows and projections.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "trainer/models/flops.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// Packed, a token attends to its own sequence only, so that attention over a pack is worth the pairs of tokens in its
// sequences: causal and an encoder's self attention the squares of their lengths, cross attention the products of both
// parts' lengths. Of rows that hold a padded sequence each, attention is executed over the whole row.
struct RowLengths {
  BatchLengths sequences;
  int64_t row = 0;          // tokens of a row
  double rows = 0;          // that hold them
  int64_t encoder_row = 0;  // tokens of a row's encoder part; 0 without an encoder

  double tokens_of(double count) const { return sequences.tokens() / rows * count; }  // with a label, of rows
};

// Of the attention cores of a step, by whose they are and their windows.
class AttentionShares {
 public:
  // null: rows are whole sequences. `rows` must outlive this.
  explicit AttentionShares(const RowLengths* rows) : rows_(rows) {}

  struct Share {
    double pairs = 1;  // of the pairs of queries and keys
    double keys = 0;   // of a pair's query, on average; 0: the row's
  };
  Share of(const Op& op);  // which has AttentionAttrs
  // Of the rows' tokens, those with a label.
  double tokens() const { return rows_ == nullptr ? 1 : rows_->tokens_of(1) / static_cast<double>(rows_->row); }

 private:
  enum class Core { kCausal, kEncoder, kCross };
  Share share_of(Core core, int window) const;

  const RowLengths* rows_;
  std::map<std::pair<Core, int>, Share> shares_;
};

// FLOPs of an op, an attention core's and experts' products by those shares.
double op_flops(const OpView& view, AttentionShares& shares);

}  // namespace mbb::trainer
