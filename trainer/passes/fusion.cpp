// Fusion by pattern, over the op lists of one chunk.
#include "trainer/passes/fusion.h"

#include <algorithm>
#include <map>
#include <set>

#include "trainer/ops/table.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

using Ops = std::vector<Op>;

// How many read each tensor, over all segments.
std::vector<int> count_readers(const Program& program) {
  std::vector<int> readers(program.tensors.size(), 0);
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (const TensorId id : op.in) ++readers[static_cast<size_t>(id)];
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
bool into_gemm(Ops& ops, size_t sum, size_t branch, const std::vector<int>& readers) {
  const TensorId product = ops[sum].in[branch], residual = ops[sum].in[1 - branch];
  const int at = writer_before(ops, product, static_cast<int>(sum));
  if (at < 0 || readers.at(static_cast<size_t>(product)) != 1) return false;
  Op& gemm = ops[static_cast<size_t>(at)];
  const OpKind* fused = gemm.kind == &kGemm         ? &kGemmAdd
                        : gemm.kind == &kGemmScaled ? &kGemmScaledAdd
                        : gemm.kind == &kGemmBlocks ? &kGemmBlocks
                                                    : nullptr;
  const bool written = writer_before(ops, residual, at) >= 0 || writer_before(ops, residual, static_cast<int>(sum)) < 0;
  if (fused == nullptr || gemm.role != Role::kFprop || !written) return false;
  gemm.kind = fused;
  if (fused == &kGemmBlocks) std::get<GemmBlocksAttrs>(gemm.attrs).accumulate = true;
  gemm.in.push_back(residual);
  gemm.out = ops[sum].out;
  gemm.covers = {gemm.path, ops[sum].path};
  return true;
}

// Both variants of the norm's backward (first micro-batch and later ones) take the sum's place.
bool into_norm_grad(Ops& ops, size_t sum, size_t part, const std::vector<int>& readers) {
  const TensorId dx = ops[sum].in[part], residual = ops[sum].in[1 - part];
  std::vector<size_t> norms;
  for (size_t i = 0; i < sum; ++i)
    if (writes(ops[i], dx)) norms.push_back(i);
  if (norms.empty() || readers.at(static_cast<size_t>(dx)) != 1) return false;
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

void fuse_sums(Program& program, int segment, bool (*into)(Ops&, size_t, size_t, const std::vector<int>&)) {
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

// Position of the only op of `ops` that reads `id`, or -1; -1 too when an op of `others` reads it.
int only_reader(const Ops& ops, const Ops& others, TensorId id) {
  int found = -1;
  const auto reads = [&](const Op& op) { return std::find(op.in.begin(), op.in.end(), id) != op.in.end(); };
  if (std::any_of(others.begin(), others.end(), reads)) return -1;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!reads(ops[i])) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

bool is_plain_bias(const Op& op) {
  return op.kind == &kBiasAdd && std::get<BiasAttrs>(op.attrs).scale == 1.0F;
}

void erase(Ops& ops, const std::set<size_t>& gone) {
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

namespace {

// The plain product that wrote `id` before `end`, or -1.
int product_before(const Ops& ops, TensorId id, size_t end, Role role) {
  const int at = writer_before(ops, id, static_cast<int>(end));
  if (at < 0) return -1;
  const Op &gemm = ops[static_cast<size_t>(at)], &reader = ops[end];
  const bool plain = gemm.kind == &kGemm && gemm.role == role && gemm.in.size() == 2 && gemm.out.size() == 1;
  return plain && gemm.when == reader.when && gemm.stream == reader.stream ? at : -1;
}

}  // namespace

void fuse_swiglu(Program& program, int forward, int backward) {
  Ops& ops = program.segments[static_cast<size_t>(forward)].ops;
  std::set<size_t> gone;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != &kSwiglu) continue;
    const int at = product_before(ops, ops[i].in[0], i, Role::kFprop);
    if (at < 0) continue;
    Op& gemm = ops[static_cast<size_t>(at)];
    gemm.kind = &kGemmSwiglu;
    gemm.out.push_back(ops[i].out[0]);
    gemm.covers = {gemm.path, ops[i].path};
    gone.insert(i);
  }
  erase(ops, gone);
  const auto readers = count_readers(program);
  Ops& back = program.segments[static_cast<size_t>(backward)].ops;
  gone.clear();
  for (size_t i = 0; i < back.size(); ++i) {
    if (back[i].kind != &kSwigluGrad || readers.at(static_cast<size_t>(back[i].in[0])) != 1) continue;
    const int at = product_before(back, back[i].in[0], i, Role::kDgrad);
    if (at < 0) continue;
    Op gemm = back[static_cast<size_t>(at)];
    // It now reads its operands later.
    const auto changed = [&](TensorId id) { return writer_before(back, id, static_cast<int>(i)) > at; };
    if (changed(gemm.in[0]) || changed(gemm.in[1])) continue;
    gemm.kind = &kGemmSwigluGrad;
    gemm.in.push_back(back[i].in[1]);
    gemm.out = back[i].out;
    gemm.covers = {gemm.path, back[i].path};
    back[i] = std::move(gemm);
    gone.insert(static_cast<size_t>(at));
  }
  erase(back, gone);
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

void fuse_bias_activation(Program& program, int forward, int backward) {
  Ops& ops = program.segments[static_cast<size_t>(forward)].ops;
  Ops& back = program.segments[static_cast<size_t>(backward)].ops;
  std::set<size_t> gone;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!is_plain_bias(ops[i])) continue;
    const TensorId x = ops[i].in[0], bias = ops[i].in[1], biased = ops[i].out[0];
    const int reader = only_reader(ops, {}, biased);
    if (reader < 0 || ops[static_cast<size_t>(reader)].kind != &kActivation) continue;
    std::vector<Op*> grads;
    bool others = false;
    for (Op& op : back) {
      if (std::find(op.in.begin(), op.in.end(), biased) == op.in.end()) continue;
      if (op.kind == &kActivationGrad && op.in[1] == biased)
        grads.push_back(&op);
      else
        others = true;
    }
    if (others) continue;
    Op& activation = ops[static_cast<size_t>(reader)];
    activation.covers = {ops[i].path, activation.path};
    activation.kind = &kBiasActivation;
    activation.in = {x, bias};
    for (Op* grad : grads) {
      grad->kind = &kBiasActivationGrad;
      grad->in = {grad->in[0], x, bias};
    }
    gone.insert(i);
  }
  erase(ops, gone);
}

void fuse_bias_dropout(Program& program, int forward, int backward) {
  Ops& ops = program.segments[static_cast<size_t>(forward)].ops;
  const Ops& back = program.segments[static_cast<size_t>(backward)].ops;
  std::set<size_t> gone;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != &kAdd) continue;
    Op& sum = ops[i];
    std::vector<std::string> covers{sum.path};
    TensorId x = sum.in[1];
    // The op that wrote x, where this one is all that reads it.
    const auto absorb = [&](const auto& fits) -> const Op* {
      const int at = writer_before(ops, x, static_cast<int>(i));
      if (at < 0 || !fits(ops[static_cast<size_t>(at)]) || only_reader(ops, back, x) < 0) return nullptr;
      const Op& op = ops[static_cast<size_t>(at)];
      gone.insert(static_cast<size_t>(at));
      covers.insert(covers.begin(), op.path);
      x = op.in[0];
      return &op;
    };
    const Op* dropout = absorb([](const Op& op) { return op.kind == &kDropout; });
    const Op* bias = absorb(is_plain_bias);
    if (dropout == nullptr && bias == nullptr) continue;
    std::vector<TensorId> in{sum.in[0], x};
    if (bias != nullptr) in.push_back(bias->in[1]);
    if (dropout != nullptr) in.insert(in.end(), dropout->in.begin() + 1, dropout->in.end());
    sum.attrs = dropout != nullptr ? dropout->attrs : Attrs{DropoutAttrs{}};
    sum.kind = &kBiasDropoutAdd;
    sum.in = std::move(in);
    sum.covers = std::move(covers);
  }
  erase(ops, gone);
}

namespace {

bool accumulates(const Attrs& attrs) {
  if (const auto* scaled = std::get_if<ScaledGemmAttrs>(&attrs)) return scaled->accumulate;
  if (const auto* blocks = std::get_if<GemmBlocksAttrs>(&attrs)) return blocks->accumulate;
  return std::get<GemmAttrs>(attrs).accumulate;
}

// The product alone; quantized ones say their output's type themselves.
void overwrite_in_bf16(Attrs& attrs) {
  if (auto* scaled = std::get_if<ScaledGemmAttrs>(&attrs)) {
    scaled->accumulate = false;
    scaled->out = DType::kBf16;
  } else if (auto* blocks = std::get_if<GemmBlocksAttrs>(&attrs)) {
    blocks->accumulate = false;
    blocks->out = DType::kBf16;
  } else {
    std::get<GemmAttrs>(attrs).accumulate = false;
  }
}

}  // namespace

void split_gradient_accumulation(Program& program, int backward) {
  Builder b(program);
  b.enter(backward);
  const Ops before = std::move(b.ops());
  b.ops().clear();
  std::map<std::pair<std::string, TensorId>, TensorId> products;  // of a path's first-micro-batch form
  for (Op op : before) {
    if (op.role != Role::kWgrad || (op.kind != &kGemm && op.kind != &kGemmScaled && op.kind != &kGemmBlocks)) {
      b.ops().push_back(std::move(op));
      continue;
    }
    const TensorId main_grad = op.out[0];
    const bool adds = accumulates(op.attrs);
    TensorId& product = products.try_emplace({op.path, main_grad}, kNoTensor).first->second;
    if (product == kNoTensor) {
      Tensor t = program.tensor(main_grad);
      t.path = op.path + ".product";
      t.dtype = op.kind == &kGemm ? program.tensor(op.in[0]).dtype : DType::kBf16;
      t.category = Category::kGradient;
      t.scope = Scope::kCall;
      product = b.declare(std::move(t));
      Op gemm = op;
      gemm.when = When::kAlways;
      gemm.out = {product};
      if (adds) gemm.in.pop_back();
      overwrite_in_bf16(gemm.attrs);
      b.ops().push_back(std::move(gemm));
    }
    const EmitOptions options{.when = op.when, .stream = op.stream, .out = {main_grad}};
    if (adds)
      b.emit(kAdd, op.path + ".accumulate", {main_grad, product}, NoAttrs{}, options);
    else
      b.emit(kCast, op.path + ".store", {product}, NoAttrs{}, options);
  }
}

}  // namespace mbb::trainer
