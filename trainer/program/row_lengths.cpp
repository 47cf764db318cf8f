// Shares by window, each computed once.
#include "trainer/program/row_lengths.h"

namespace mbb::trainer {

AttentionShares::Share AttentionShares::of(const AttentionAttrs& attrs) {
  if (rows_ == nullptr || !attrs.packed || !attrs.causal) return {};
  const auto found = shares_.find(attrs.window);
  if (found != shares_.end()) return found->second;
  const BatchLengths whole = BatchLengths::uniform(rows_->row);
  const auto pairs = [&](const BatchLengths& of) { return attrs.window > 0 ? of.window_pairs(attrs.window) : of.s2(); };
  const BatchLengths& all = rows_->sequences;
  return shares_[attrs.window] = {pairs(all) / (rows_->rows * pairs(whole)), all.s2() / all.tokens()};
}

double op_flops(const OpView& view, AttentionShares& shares) {
  const auto* attention = std::get_if<AttentionAttrs>(&view.op.attrs);
  return attention == nullptr ? op_flops(view) : op_flops(view) * shares.of(*attention).pairs;
}

}  // namespace mbb::trainer
