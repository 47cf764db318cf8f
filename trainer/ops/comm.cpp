// Collectives and pipeline sends as ops. Gathers and scatters work on dimension 0, which is the sequence of [s, b, h].
//
// Gradients: all-gather <-> reduce-scatter; an all-to-all's is exchanged the other way; the all-reduce of a
// row-parallel output is the identity backward; a send's gradient is received, a receive's is sent. The reshard ops are
// messages between meshes, whose TP may differ.
#include <fmt/core.h>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// Extents after a gather depend on the group's size, which the builder knows: `CommAttrs::group_size`.
Result<std::vector<TensorSpec>> gather_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<CommAttrs>(attrs);
  Shape s = in[0]->shape;
  if (!a.own_shard) s[0] *= a.group_size;
  return std::vector<TensorSpec>{{s, in[0]->dtype}};
}

Result<std::vector<TensorSpec>> scatter_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<CommAttrs>(attrs);
  Shape s = in[0]->shape;
  if (s[0] % a.group_size != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} rows do not divide over {} ranks", s[0], a.group_size));
  if (!a.own_shard) s[0] /= a.group_size;
  return std::vector<TensorSpec>{{s, in[0]->dtype}};
}

Result<std::vector<TensorSpec>> same(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

// One part of dimension 0 for each member: part j of member i becomes part i of member j.
Result<std::vector<TensorSpec>> exchange_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<CommAttrs>(attrs);
  if (in[0]->shape.rank() == 0 || in[0]->shape[0] % a.group_size != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} does not divide over {} ranks", in[0]->shape.str(), a.group_size));
  return same(in, attrs);
}

// in: rows [n, h], packed by destination; counts i32 [members · c] of what is sent, and of what arrives: a member's c
// counts add up to its rows. out: CommAttrs::message, packed by source; what is left over is zero.
Result<std::vector<TensorSpec>> exchange_rows_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<CommAttrs>(attrs);
  if (a.message.rank() != 2 || a.message.cols() != in[0]->shape.cols() || in[1]->shape.elements() % a.group_size != 0 ||
      !(in[1]->shape == in[2]->shape))
    return fail(ErrorCode::kBadArgument,
                fmt::format("rows {} to {} by counts {}", in[0]->shape.str(), a.message.str(), in[1]->shape.str()));
  return std::vector<TensorSpec>{{a.message, in[0]->dtype}};
}

Result<std::vector<TensorSpec>> nothing(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{};
}

// A receive writes the tensor its builder declared; in[0] is absent, so its spec comes from the attributes.
Result<std::vector<TensorSpec>> recv_shape(Inputs, const Attrs& attrs) {
  const auto& a = std::get<CommAttrs>(attrs);
  return std::vector<TensorSpec>{{a.message, a.message_dtype}};
}

EmitOptions on(const Op& op, Category category) {
  return {.stream = op.stream, .category = category};
}

void gather_grad(GradContext& c) {
  c.emit_grad(0, kReduceScatter, "bwd", {c.grad()}, c.op().attrs, on(c.op(), Category::kGradient));
}
void scatter_grad(GradContext& c) {
  c.emit_grad(0, kAllGather, "bwd", {c.grad()}, c.op().attrs, on(c.op(), Category::kComm));
}
void reduce_grad(GradContext& c) {
  c.set_grad(0, c.grad());
}

void exchange_grad(GradContext& c) {
  c.emit_grad(0, kAllToAll, "bwd", {c.grad()}, c.op().attrs, on(c.op(), Category::kGradient));
}
void exchange_rows_grad(GradContext& c) {
  CommAttrs a = c.attrs<CommAttrs>();
  a.message = c.in_tensor(0).shape;
  c.emit_grad(0, kAllToAllRows, "bwd", {c.grad(), c.saved_in(2), c.saved_in(1)}, a, on(c.op(), Category::kGradient));
}

// Into a column-parallel layer without sequence parallelism: the same value forward, a sum over the group backward.
void identity_grad(GradContext& c) {
  c.emit_grad(0, kAllReduce, "bwd", {c.grad()}, c.op().attrs, on(c.op(), Category::kGradient));
}

CommAttrs reversed(CommAttrs a) {
  a.direction = a.direction == Direction::kForward ? Direction::kBackward : Direction::kForward;
  return a;
}

void received_grad(GradContext& c, const OpKind& receive) {
  CommAttrs a = reversed(c.attrs<CommAttrs>());
  a.message = c.in_tensor(0).shape;
  a.message_dtype = c.in_tensor(0).dtype;
  c.emit_grad(0, receive, "recv_grad", {}, a,
              {.stream = message_stream(a.form, a.direction, true), .category = Category::kComm});
}
void sent_grad(GradContext& c, const OpKind& send) {
  const CommAttrs a = reversed(c.attrs<CommAttrs>());
  c.builder().emit(send, c.base() + ".send_grad", {c.grad()}, a,
                   {.stream = message_stream(a.form, a.direction, false)});
}

void send_grad(GradContext& c) {
  received_grad(c, kRecv);
}
void recv_grad(GradContext& c) {
  sent_grad(c, kSend);
}
void reshard_send_grad(GradContext& c) {
  received_grad(c, kReshardRecv);
}
void reshard_recv_grad(GradContext& c) {
  sent_grad(c, kReshardSend);
}

double no_bytes(const OpView&) {
  return 0;
}

}  // namespace

const OpKind kAllGather{.name = "all_gather",
                        .shape = gather_shape,
                        .grad = gather_grad,
                        .cpu = cpu_all_gather,
                        .cuda = "all_gather",
                        .communicates = true};
const OpKind kReduceScatter{.name = "reduce_scatter",
                            .shape = scatter_shape,
                            .grad = scatter_grad,
                            .cpu = cpu_reduce_scatter,
                            .cuda = "reduce_scatter",
                            .communicates = true};
const OpKind kAllReduce{.name = "all_reduce",
                        .shape = same,
                        .grad = reduce_grad,
                        .cpu = cpu_all_reduce,
                        .cuda = "all_reduce",
                        .in_place = true,
                        .communicates = true};
const OpKind kAllToAll{.name = "all_to_all",
                       .shape = exchange_shape,
                       .grad = exchange_grad,
                       .cpu = cpu_all_to_all,
                       .cuda = "all_to_all",
                       .communicates = true};
const OpKind kAllToAllRows{.name = "all_to_all_rows",
                           .shape = exchange_rows_shape,
                           .grad = exchange_rows_grad,
                           .cpu = cpu_all_to_all_rows,
                           .cuda = "all_to_all_rows",
                           .communicates = true};
const OpKind kGroupIdentity{.name = "group_identity",
                            .shape = same,
                            .grad = identity_grad,
                            .bytes = no_bytes,
                            .cpu = cpu_group_identity,
                            .cuda = "group_identity",
                            .in_place = true};
const OpKind kSend{.name = "send",
                   .shape = nothing,
                   .grad = send_grad,
                   .bytes = no_bytes,
                   .cpu = cpu_send,
                   .cuda = "send",
                   .gradient_root = true,
                   .communicates = true};
const OpKind kRecv{.name = "recv",
                   .shape = recv_shape,
                   .grad = recv_grad,
                   .bytes = no_bytes,
                   .cpu = cpu_recv,
                   .cuda = "recv",
                   .communicates = true};

const OpKind kReshardSend{.name = "reshard_send",
                          .shape = nothing,
                          .grad = reshard_send_grad,
                          .bytes = no_bytes,
                          .cpu = cpu_reshard_send,
                          .cuda = "reshard_send",
                          .gradient_root = true,
                          .communicates = true};
const OpKind kReshardRecv{.name = "reshard_recv",
                          .shape = recv_shape,
                          .grad = reshard_recv_grad,
                          .bytes = no_bytes,
                          .cpu = cpu_reshard_recv,
                          .cuda = "reshard_recv",
                          .communicates = true};

}  // namespace mbb::trainer
