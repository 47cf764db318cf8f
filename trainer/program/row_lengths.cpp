// Shares by core and window, each computed once.
#include "trainer/program/row_lengths.h"

namespace mbb::trainer {

AttentionShares::Share AttentionShares::of(const Op& op) {
  const auto& attrs = std::get<AttentionAttrs>(op.attrs);
  if (rows_ == nullptr || !attrs.packed) return {};
  // Both ways attend an encoder's tokens to each other, and a decoder's to the encoder's.
  const Core core = attrs.causal ? Core::kCausal : op.path.starts_with("encoder.") ? Core::kEncoder : Core::kCross;
  const auto [at, added] = shares_.try_emplace({core, attrs.window});
  if (added) at->second = share_of(core, attrs.window);
  return at->second;
}

AttentionShares::Share AttentionShares::share_of(Core core, int window) const {
  const auto pairs = [&](const BatchLengths& of) {
    if (core == Core::kEncoder) return of.encoder_s2();
    if (core == Core::kCross) return of.cross_pairs();
    return window > 0 ? of.window_pairs(window) : of.s2();
  };
  const BatchLengths& all = rows_->sequences;
  const double queries = core == Core::kEncoder ? all.encoder_tokens() : all.tokens();
  const double seen = core == Core::kCausal ? all.s2() : pairs(all);
  return {pairs(all) / (rows_->rows * pairs(BatchLengths::uniform(rows_->row, 1, rows_->encoder_row))), seen / queries};
}

double op_flops(const OpView& view, AttentionShares& shares) {
  const Attrs& attrs = view.op.attrs;
  if (std::holds_alternative<AttentionAttrs>(attrs)) return op_flops(view) * shares.of(view.op).pairs;
  const bool experts =
      std::holds_alternative<GroupedGemmAttrs>(attrs) || std::holds_alternative<GroupedQuantizedAttrs>(attrs);
  return experts ? op_flops(view) * shares.tokens() : op_flops(view);
}

}  // namespace mbb::trainer
