// Token embedding, vocabulary parallel: tokens outside the local rows contribute zeros, which a reduction over TP
// completes.
#include <cmath>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

// in: tokens i32 [s, b], table [v, h]; out: [s, b, h].
Result<std::vector<TensorSpec>> shape(Inputs in, const Attrs&) {
  Shape out = in[0]->shape;
  out.push_back(in[1]->shape.cols());
  return std::vector<TensorSpec>{{out, in[1]->dtype}};
}

// in: dy, tokens, table (for its extents) [, main grad]; out: main grad of the table.
Result<std::vector<TensorSpec>> shape_grad(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[2]->shape, DType::kF32}};
}

void grad(GradContext& c) {
  if (c.in_tensor(1).main_grad == kNoTensor) return;
  c.emit_wgrad(1, kEmbeddingGrad, "wgrad", {c.grad(), c.saved_in(0), c.saved_in(1)},
               [](bool accumulate) { return Attrs{EmbeddingAttrs{accumulate}}; });
}

double bytes(const OpView& op) {
  return static_cast<double>(op.in(0).bytes()) + 2.0 * static_cast<double>(op.out(0).bytes());
}
// The first micro-batch writes the whole table once, zeros where no token is; later ones read and write the rows that
// tokens have: as many as ids drawn evenly would have.
double bytes_grad(const OpView& op) {
  const double read = static_cast<double>(op.in(0).bytes() + op.in(1).bytes());
  const auto table = static_cast<double>(op.out(0).bytes());
  if (!std::get<EmbeddingAttrs>(op.op.attrs).accumulate) return read + table;
  const auto rows = static_cast<double>(op.out(0).shape.rows());
  const auto tokens = static_cast<double>(op.in(1).shape.elements());
  return read + 2.0 * table * -std::expm1(tokens * std::log1p(-1.0 / rows));
}

void cases(std::vector<OpCase>& all) {
  all.push_back({"embedding/small",
                 &kEmbedding,
                 {{{6, 2}, DType::kI32, Fill::kInts, 10}, {{10, 8}, DType::kF32, Fill::kNormal, 0, true}},
                 EmbeddingAttrs{}});
}

}  // namespace

const OpKind kEmbedding{.name = "embedding",
                        .shape = shape,
                        .grad = grad,
                        .bytes = bytes,
                        .cpu = cpu_embedding,
                        .cuda = "embedding",
                        .cases = cases};
const OpKind kEmbeddingGrad{.name = "embedding_grad",
                            .shape = shape_grad,
                            .bytes = bytes_grad,
                            .cpu = cpu_embedding_grad,
                            .cuda = "embedding_grad"};

}  // namespace mbb::trainer
