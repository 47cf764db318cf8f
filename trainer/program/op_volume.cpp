// One byte rule a communication kind.
#include "trainer/program/op_volume.h"

#include <fmt/core.h>

#include <array>

#include "trainer/ops/table.h"

namespace mbb::trainer {

CommVolume comm_volume(const OpView& view) {
  const Op& op = view.op;
  const auto& attrs = std::get<CommAttrs>(op.attrs);
  struct Rule {
    const OpKind* kind;
    CommOp op;
    bool counts_output;   // the part of a member is the output, not the input
    bool shard_of_whole;  // with own_shard both are the whole buffer
  };
  static constexpr std::array kRules{Rule{&kAllGather, CommOp::kAllGather, false, true},
                                     Rule{&kReduceScatter, CommOp::kReduceScatter, true, true},
                                     Rule{&kAllReduce, CommOp::kAllReduce, false, false},
                                     Rule{&kSend, CommOp::kSend, false, false},
                                     Rule{&kRecv, CommOp::kRecv, true, false},
                                     Rule{&kReshardSend, CommOp::kSend, false, false},
                                     Rule{&kReshardRecv, CommOp::kRecv, true, false}};
  for (const Rule& rule : kRules) {
    if (rule.kind != op.kind) continue;
    const Tensor& part = rule.counts_output ? view.out(0) : view.in(0);
    auto count = static_cast<size_t>(part.shape.elements());
    if (rule.shard_of_whole && attrs.own_shard) count /= static_cast<size_t>(attrs.group_size);
    count /= static_cast<size_t>(attrs.shards);
    return {rule.op, algorithmic_bytes(rule.op, attrs.group_size, part.dtype, count),
            wire_bytes(rule.op, attrs.group_size, part.dtype, count)};
  }
  MB_CHECK(false, fmt::format("no byte rule for communication {} ({})", op.path, op.kind->name));
}

}  // namespace mbb::trainer
