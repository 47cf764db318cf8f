// Rotary embedding over packed qkv [s, b, (heads + kv_heads)·d + kv_heads·dv] (layout: attrs.h).
#include <fmt/core.h>

#include <cmath>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/rotation.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {

std::vector<double> frequencies_of(const Rotation& rotation, int dim) {
  if (!rotation.frequencies.empty()) return rotation.frequencies;
  std::vector<double> frequencies;
  for (int pair = 0; pair < dim / 2; ++pair) frequencies.push_back(std::pow(rotation.theta, -2.0 * pair / dim));
  return frequencies;
}

Status check_rotation(const Rotation& rotation, int part, const Tensor& x, bool starts) {
  const int dim = rotation.turned(part);
  const auto frequencies = static_cast<int>(rotation.frequencies.size());
  if (dim % 2 != 0 || dim > part || (frequencies != 0 && frequencies != dim / 2))
    return fail(ErrorCode::kBadArgument,
                fmt::format("RoPE turns {} elements of {} with {} frequencies", dim, part, frequencies));
  if (x.shape.rank() != 3)
    return fail(ErrorCode::kBadArgument, fmt::format("RoPE turns rows of [s, b, ..], not of {}", x.shape.str()));
  if (starts != rotation.packed || (rotation.packed && x.shape[1] != 1))
    return fail(ErrorCode::kBadArgument, "rotary positions of a pack read its starts, and the pack is alone");
  return {};
}

namespace {

Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<RopeAttrs>(attrs);
  const int64_t want = static_cast<int64_t>(a.heads + a.kv_heads) * a.head_dim + int64_t{a.kv_heads} * a.value_dim();
  if (in[0]->shape.rank() != 3 || in[0]->shape[-1] != want)
    return fail(ErrorCode::kBadArgument,
                fmt::format("packed qkv is {}, last dimension must be {}", in[0]->shape.str(), want));
  if (a.first_head < 0 || a.first_head >= a.end_head() || a.end_head() > a.heads + a.kv_heads)
    return fail(ErrorCode::kBadArgument, fmt::format("RoPE turns heads {} to {} of {} queries and {} keys",
                                                     a.first_head, a.end_head(), a.heads, a.kv_heads));
  Rotation rotation = a.rotation;
  rotation.dim = a.turned();
  MB_TRY(check_rotation(rotation, a.head_dim - a.rotary_offset, *in[0], in.size() == 2));
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void grad(GradContext& c) {
  RopeAttrs a = c.attrs<RopeAttrs>();
  a.inverse = !a.inverse;
  std::vector<TensorId> in{c.grad()};
  if (a.rotation.packed) in.push_back(c.saved_in(1));
  c.emit_grad(0, kRope, "bwd", in, a);
}

// In place only the turned elements are touched.
double bytes(const OpView& op) {
  const auto& a = std::get<RopeAttrs>(op.op.attrs);
  const Tensor& qkv = op.in(0);
  if (op.program.storage(op.op.in[0]) != op.program.storage(op.op.out[0]))
    return 2.0 * static_cast<double>(qkv.bytes());
  const int64_t turned = qkv.shape.rows() * (a.end_head() - a.first_head) * a.turned();
  return 2.0 * static_cast<double>(bytes_of(qkv.dtype, static_cast<size_t>(turned)));
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"rope/gqa", &kRope, {{{5, 2, 64}}}, RopeAttrs{4, 2, 8}});
  all.push_back({"rope/heads", &kRope, {{{3, 2, 1920}}}, RopeAttrs{9, 3, 128}});
  RopeAttrs partial{4, 2, 8};
  partial.rotation.dim = 4;
  all.push_back({"rope/partial", &kRope, {{{5, 2, 64}}}, partial});
  RopeAttrs latent{2, 2, 12};
  latent.rotation = {.dim = 4, .interleaved = true, .frequencies = {0.7, 0.02}, .factor = 1.25};
  latent.rotary_offset = 8;
  latent.v_head_dim = 6;
  all.push_back({"rope/latent", &kRope, {{{5, 1, 60}}}, latent});
  RopeAttrs wide{5, 5, 48};  // whole vectors of interleaved pairs
  wide.rotation = {.dim = 16, .interleaved = true};
  wide.rotary_offset = 32;
  wide.v_head_dim = 32;
  all.push_back({"rope/latent_wide", &kRope, {{{13, 1, 640}}}, wide});
  RopeAttrs keys{4, 2, 8};
  keys.first_head = 4;
  keys.turned_heads = 2;
  all.push_back({"rope/keys", &kRope, {{{5, 2, 64}}}, keys});
  RopeAttrs packed{4, 2, 8};
  packed.rotation.packed = true;
  all.push_back({"rope/packed", &kRope, {{{9, 1, 64}}, {{4}, DType::kI32, Fill::kStarts, 7}}, packed});
}

}  // namespace

const OpKind kRope{.name = "rope",
                   .shape = shape,
                   .grad = grad,
                   .bytes = bytes,
                   .cpu = cpu_rope,
                   .cuda = "rope",
                   .cases = cases,
                   .in_place = true};

}  // namespace mbb::trainer
