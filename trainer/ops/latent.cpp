// Multi-head latent attention: packed qkv from its projections (layout: attrs.h).
#include <algorithm>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/rotation.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: queries, rotary key, keys and values, starts of a pack that turns; out: packed qkv
// [heads·(n + r) | heads·(n + r) | heads·v].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<LatentAttrs>(attrs);
  const int64_t key = a.nope + a.rope;
  if (in[0]->shape[-1] != a.heads * key || in[1]->shape[-1] != a.rope ||
      in[2]->shape[-1] != int64_t{a.heads} * (a.nope + a.value))
    return fail(ErrorCode::kBadArgument, "latent projections are " + in[0]->shape.str() + ", " + in[1]->shape.str() +
                                             " and " + in[2]->shape.str());
  if (a.turns) MB_TRY(check_rotation(a.rotation, a.rope, *in[0], in.size() == 4));
  return std::vector<TensorSpec>{{in[0]->shape.with_last(a.heads * (2 * key + a.value)), in[0]->dtype}};
}

// in: gradient of packed qkv, starts of a pack that turns; out: gradients of the three projections.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<LatentAttrs>(attrs);
  const Shape& s = in[0]->shape;
  const DType dtype = in[0]->dtype;
  if (a.turns) MB_TRY(check_rotation(a.rotation, a.rope, *in[0], in.size() == 2));
  return std::vector<TensorSpec>{{s.with_last(int64_t{a.heads} * (a.nope + a.rope)), dtype},
                                 {s.with_last(a.rope), dtype},
                                 {s.with_last(int64_t{a.heads} * (a.nope + a.value)), dtype}};
}

void grad(GradContext& c) {
  const TensorId dkey = c.declare_grad(1, "bwd.key");
  const TensorId dkv = c.declare_grad(2, "bwd.kv");
  std::vector<TensorId> in{c.grad()};
  if (c.attrs<LatentAttrs>().packed()) in.push_back(c.saved_in(3));
  c.emit_grad(0, kLatentPackGrad, "bwd", in, c.op().attrs, {.out = {kNoTensor, dkey, dkv}});
  c.set_grad(1, dkey);
  c.set_grad(2, dkv);
}

void cases(std::vector<OpCase>& all) {
  all.push_back(
      {"latent_pack/small", &kLatentPack, {{{4, 2, 18}}, {{4, 2, 2}}, {{4, 2, 21}}}, LatentAttrs{3, 4, 2, 3}});
  const auto turned = [&](const std::string& name, int64_t tokens, int64_t batch, const LatentAttrs& attrs,
                          const Rotation& rotation) {
    all.push_back(turned_packing_case(name, tokens, batch, attrs, rotation));
  };
  turned("halves", 5, 2, {3, 5, 6, 4}, {});
  turned("interleaved", 5, 2, {3, 5, 6, 4}, {.interleaved = true});
  turned("halves_of_part", 4, 1, {2, 3, 7, 5}, {.theta = 50.0, .dim = 4});
  turned("scaled_part", 4, 2, {2, 1, 5, 3},
         {.dim = 4, .interleaved = true, .frequencies = {0.7, 0.02}, .factor = 1.25});
  turned("packed", 9, 1, {2, 4, 4, 2}, {.interleaved = true, .packed = true});
  turned("chunks", 8, 2, {2, 3, 4, 2}, {.positions = context_positions(16, 2, 1)});
  // Whole vectors.
  turned("vectors", 7, 2, {5, 24, 16, 8}, {.interleaved = true});
  turned("vectors_halves", 7, 2, {5, 8, 32, 16}, {.dim = 16});
}

}  // namespace

OpCase turned_packing_case(const std::string& name, int64_t tokens, int64_t batch, LatentAttrs attrs,
                           const Rotation& rotation) {
  attrs.turns = true;
  attrs.rotation = rotation;
  const int64_t heads = attrs.heads;
  std::vector<CaseInput> in{{{tokens, batch, heads * (attrs.nope + attrs.rope)}},
                            {{tokens, batch, attrs.rope}},
                            {{tokens, batch, heads * (attrs.nope + attrs.value)}}};
  if (rotation.packed) in.push_back({{std::min<int64_t>(9, tokens / 2)}, DType::kI32, Fill::kStarts, tokens - 2});
  return {"latent_pack/" + name, &kLatentPack, in, attrs};
}

const OpKind kLatentPack{
    .name = "latent_pack", .shape = shape, .grad = grad, .cpu = cpu_latent_pack, .cuda = "latent_pack", .cases = cases};
const OpKind kLatentPackGrad{
    .name = "latent_pack_grad", .shape = shape_grad, .cpu = cpu_latent_pack_grad, .cuda = "latent_pack_grad"};

}  // namespace mbb::trainer
