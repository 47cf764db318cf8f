// Multi-head latent attention: packed qkv from its projections (layout: attrs.h).
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: queries, rotary key, keys and values; out: packed qkv [heads·(n + r) | heads·(n + r) | heads·v].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<LatentAttrs>(attrs);
  const int64_t key = a.nope + a.rope;
  if (in[0]->shape[-1] != a.heads * key || in[1]->shape[-1] != a.rope ||
      in[2]->shape[-1] != int64_t{a.heads} * (a.nope + a.value))
    return fail(ErrorCode::kBadArgument, "latent projections are " + in[0]->shape.str() + ", " + in[1]->shape.str() +
                                             " and " + in[2]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape.with_last(a.heads * (2 * key + a.value)), in[0]->dtype}};
}

// in: gradient of packed qkv; out: gradients of the three projections.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<LatentAttrs>(attrs);
  const Shape& s = in[0]->shape;
  const DType dtype = in[0]->dtype;
  return std::vector<TensorSpec>{{s.with_last(int64_t{a.heads} * (a.nope + a.rope)), dtype},
                                 {s.with_last(a.rope), dtype},
                                 {s.with_last(int64_t{a.heads} * (a.nope + a.value)), dtype}};
}

void grad(GradContext& c) {
  const TensorId dkey = c.declare_grad(1, "bwd.key");
  const TensorId dkv = c.declare_grad(2, "bwd.kv");
  c.emit_grad(0, kLatentPackGrad, "bwd", {c.grad()}, c.op().attrs, {.out = {kNoTensor, dkey, dkv}});
  c.set_grad(1, dkey);
  c.set_grad(2, dkv);
}

void cases(std::vector<OpCase>& all) {
  all.push_back(
      {"latent_pack/small", &kLatentPack, {{{4, 2, 18}}, {{4, 2, 2}}, {{4, 2, 21}}}, LatentAttrs{3, 4, 2, 3}});
}

}  // namespace

const OpKind kLatentPack{
    .name = "latent_pack", .shape = shape, .grad = grad, .cpu = cpu_latent_pack, .cuda = "latent_pack", .cases = cases};
const OpKind kLatentPackGrad{
    .name = "latent_pack_grad", .shape = shape_grad, .cpu = cpu_latent_pack_grad, .cuda = "latent_pack_grad"};

}  // namespace mbb::trainer
