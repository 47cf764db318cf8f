// Fusion by pattern, over the op lists of one chunk.
#include "trainer/passes/fusion.h"

#include <algorithm>
#include <map>
#include <set>

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

using Ops = std::vector<Op>;

// Who reads a tensor, over all segments.
std::map<TensorId, int> count_readers(const Program& program) {
  std::map<TensorId, int> readers;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (const TensorId id : op.in) ++readers[id];
  return readers;
}

// Position of the last op before `end` that writes `id`, or -1.
int writer_before(const Ops& ops, TensorId id, int end) {
  for (int i = end - 1; i >= 0; --i) {
    const auto& out = ops[static_cast<size_t>(i)].out;
    if (std::find(out.begin(), out.end(), id) != out.end()) return i;
  }
  return -1;
}

bool writes(const Op& op, TensorId id) {
  return std::find(op.out.begin(), op.out.end(), id) != op.out.end();
}

// The GEMM takes the sum's place: it writes the sum's output and reads the residual last.
bool into_gemm(Ops& ops, size_t sum, size_t branch, const std::map<TensorId, int>& readers) {
  const TensorId product = ops[sum].in[branch], residual = ops[sum].in[1 - branch];
  const int at = writer_before(ops, product, static_cast<int>(sum));
  if (at < 0 || readers.at(product) != 1) return false;
  Op& gemm = ops[static_cast<size_t>(at)];
  const OpKind* fused = gemm.kind == &kGemm ? &kGemmAdd : gemm.kind == &kGemmScaled ? &kGemmScaledAdd : nullptr;
  const bool written = writer_before(ops, residual, at) >= 0 || writer_before(ops, residual, static_cast<int>(sum)) < 0;
  if (fused == nullptr || gemm.role != Role::kFprop || !written) return false;
  gemm.kind = fused;
  gemm.in.push_back(residual);
  gemm.out = ops[sum].out;
  gemm.covers = {gemm.path, ops[sum].path};
  return true;
}

// Both variants of the norm's backward (first micro-batch and later ones) take the sum's place.
bool into_norm_grad(Ops& ops, size_t sum, size_t part, const std::map<TensorId, int>& readers) {
  const TensorId dx = ops[sum].in[part], residual = ops[sum].in[1 - part];
  std::vector<size_t> norms;
  for (size_t i = 0; i < sum; ++i)
    if (writes(ops[i], dx)) norms.push_back(i);
  if (norms.empty() || readers.at(dx) != 1) return false;
  for (const size_t i : norms)
    if (ops[i].kind != &kRmsNormGrad) return false;
  if (writer_before(ops, residual, static_cast<int>(norms.front())) < 0 &&
      writer_before(ops, residual, static_cast<int>(sum)) >= 0)
    return false;  // written between the norm and the sum
  for (const size_t i : norms) {
    ops[i].kind = &kRmsNormGradAdd;
    ops[i].in.insert(ops[i].in.begin() + 4, residual);
    ops[i].out[1] = ops[sum].out[0];
    ops[i].covers = {ops[i].path, ops[sum].path};
  }
  return true;
}

void fuse_sums(Program& program, int segment, bool (*into)(Ops&, size_t, size_t, const std::map<TensorId, int>&)) {
  Ops& ops = program.segments[static_cast<size_t>(segment)].ops;
  const auto readers = count_readers(program);
  std::set<size_t> gone;
  for (size_t i = 0; i < ops.size(); ++i)
    if (ops[i].kind == &kAdd && (into(ops, i, 1, readers) || into(ops, i, 0, readers))) gone.insert(i);
  Ops kept;
  for (size_t i = 0; i < ops.size(); ++i)
    if (!gone.contains(i)) kept.push_back(std::move(ops[i]));
  ops = std::move(kept);
}

Op* find_kind(Ops& ops, const OpKind& kind) {
  for (Op& op : ops)
    if (op.kind == &kind) return &op;
  return nullptr;
}

}  // namespace

void fuse_residuals(Program& program, int forward, int backward) {
  fuse_sums(program, forward, into_gemm);
  fuse_sums(program, backward, into_norm_grad);
}

void fuse_cross_entropy(Program& program, int forward, int backward) {
  Ops& ops = program.segments[static_cast<size_t>(forward)].ops;
  Ops& back = program.segments[static_cast<size_t>(backward)].ops;
  const Op* max = find_kind(ops, kCrossEntropyMax);
  Op* sum = find_kind(ops, kCrossEntropySum);
  const Op* grad = find_kind(back, kCrossEntropyGrad);
  if (max == nullptr || sum == nullptr || grad == nullptr) return;
  if (sum->in[1] != max->out[0] || grad->in[1] != max->out[0] || grad->in[2] != sum->out[0])
    return;  // reduced over TP between
  const TensorId logits = sum->in[0], labels = sum->in[2], sums = sum->out[0], gradient = grad->out[0];
  sum->kind = &kCrossEntropyFused;
  sum->covers = {max->path, sum->path, grad->path};
  sum->path = "loss.fused.fwd";
  sum->in = {logits, labels};
  sum->out = {gradient, sums};
  sum->attrs = NoAttrs{};
  // The loss reads the sums and labels only; naming the logits would keep them beside their gradient.
  for (Op& op : ops)
    if (op.kind == &kCrossEntropyLoss) op.in[0] = op.in[1] = sums;
  std::erase_if(ops, [](const Op& op) { return op.kind == &kCrossEntropyMax; });
  std::erase_if(back, [](const Op& op) { return op.kind == &kCrossEntropyGrad; });
}

}  // namespace mbb::trainer
