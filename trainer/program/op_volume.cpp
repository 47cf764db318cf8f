// One byte rule a communication kind.
#include "trainer/program/op_volume.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trainer/ops/table.h"

namespace mbb::trainer {

CommVolume comm_volume(const OpView& view) {
  const Op& op = view.op;
  const auto& attrs = std::get<CommAttrs>(op.attrs);
  struct Rule {
    const OpKind* kind;
    CommOp op;
    bool counts_output;      // the part of a member is the output, not the input
    bool shard_of_whole;     // with own_shard both are the whole buffer
    bool divided = false;    // the operand holds a part for every member
    bool real_rows = false;  // what it moves is known at run time: the useful rows, at balanced load
  };
  static constexpr std::array kRules{Rule{&kAllGather, CommOp::kAllGather, false, true},
                                     Rule{&kReduceScatter, CommOp::kReduceScatter, true, true},
                                     Rule{&kAllReduce, CommOp::kAllReduce, false, false},
                                     Rule{&kSend, CommOp::kSend, false, false},
                                     Rule{&kRecv, CommOp::kRecv, true, false},
                                     Rule{&kReshardSend, CommOp::kSend, false, false},
                                     Rule{&kReshardRecv, CommOp::kRecv, true, false},
                                     Rule{&kRingShift, CommOp::kSend, false, false},
                                     Rule{&kAllToAll, CommOp::kAllToAll, false, false, true},
                                     Rule{&kAllToAllRows, CommOp::kAllToAll, false, false, true, true}};
  for (const Rule& rule : kRules) {
    if (rule.kind != op.kind) continue;
    const Tensor& part = rule.counts_output ? view.out(0) : view.in(0);
    auto count = static_cast<size_t>(part.shape.elements());
    if ((rule.shard_of_whole && attrs.own_shard) || rule.divided) count /= static_cast<size_t>(attrs.group_size);
    count /= static_cast<size_t>(attrs.shards);
    CommVolume volume{rule.op, algorithmic_bytes(rule.op, attrs.group_size, part.dtype, count),
                      wire_bytes(rule.op, attrs.group_size, part.dtype, count)};
    volume.useful_bytes = volume.wire_bytes;
    if (attrs.useful_rows > 0) {
      const double share = std::min(1.0, static_cast<double>(attrs.useful_rows) / static_cast<double>(part.shape[0]));
      volume.useful_bytes = static_cast<uint64_t>(std::llround(share * static_cast<double>(volume.wire_bytes)));
    }
    if (rule.real_rows) volume.wire_bytes = volume.useful_bytes;
    return volume;
  }
  MB_CHECK(false, fmt::format("no byte rule for communication {} ({})", op.path, op.kind->name));
}

}  // namespace mbb::trainer
