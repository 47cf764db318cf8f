// Learned position embedding, added to the hidden states.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: x [s, b, h], table [positions, h] [, starts]; out: x + table[position]. A pack may be longer than the table, its
// sequences not.
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs& attrs) {
  const bool packed = std::get<PositionAttrs>(attrs).packed;
  if (in.size() != (packed ? 3 : 2) || (packed && in[0]->shape[1] != 1))
    return fail(ErrorCode::kBadArgument, "positions of a pack read its starts, and the pack is alone");
  if (in[0]->shape.rank() != 3 || in[1]->shape.cols() != in[0]->shape.cols() ||
      (!packed && in[0]->shape[0] > in[1]->shape[0]))
    return fail(ErrorCode::kBadArgument,
                "positions " + in[1]->shape.str() + " for hidden states " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

// in: dy, table (for its extents) [, starts] [, main grad]; out: main grad of the table (f32).
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, DType::kF32}};
}

void grad(GradContext& c) {
  const PositionAttrs a = c.attrs<PositionAttrs>();
  std::vector<TensorId> in{c.grad(), c.saved_in(1)};
  if (a.packed) in.push_back(c.saved_in(2));
  c.emit_wgrad(1, kPositionEmbeddingGrad, "wgrad", in, [&](bool accumulate) {
    return Attrs{PositionAttrs{a.sequence_sharded, accumulate, a.packed, a.positions}};
  });
  if (c.wants(0)) c.set_grad(0, c.grad());
}

double bytes(const OpView& op) {
  const double rows = static_cast<double>(op.in(0).shape[0] * op.in(0).shape[-1]);
  return static_cast<double>(op.in(0).bytes()) + static_cast<double>(op.out(0).bytes()) +
         rows * static_cast<double>(size_of(op.in(1).dtype));
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"position_embedding/small",
                 &kPositionEmbedding,
                 {{{5, 2, 8}}, {{7, 8}, DType::kF32, Fill::kNormal, 0, true}},
                 PositionAttrs{}});
  all.push_back({"position_embedding/wide",
                 &kPositionEmbedding,
                 {{{3, 2, 1288}}, {{4, 1288}, DType::kF32, Fill::kNormal, 0, true}},
                 PositionAttrs{}});
  all.push_back({"position_embedding/packed",
                 &kPositionEmbedding,
                 {{{9, 1, 8}}, {{9, 8}, DType::kF32, Fill::kNormal, 0, true}, {{5}, DType::kI32, Fill::kStarts, 8}},
                 PositionAttrs{.packed = true}});
}

}  // namespace

const OpKind kPositionEmbedding{.name = "position_embedding",
                                .shape = shape,
                                .grad = grad,
                                .bytes = bytes,
                                .cpu = cpu_position_embedding,
                                .cuda = "position_embedding",
                                .cases = cases,
                                .in_place = true};
const OpKind kPositionEmbeddingGrad{.name = "position_embedding_grad",
                                    .shape = shape_grad,
                                    .cpu = cpu_position_embedding_grad,
                                    .cuda = "position_embedding_grad"};

}  // namespace mbb::trainer
