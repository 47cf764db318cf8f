// Reverse walk over a forward segment: each op's gradient rule emits its backward ops; contributions to one tensor are
// added.
#include "trainer/program/autodiff.h"

#include <algorithm>

#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

std::string without_suffix(const std::string& path) {
  const std::string suffix = ".fwd";
  return path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : path;
}

}  // namespace

const Tensor& GradContext::in_tensor(size_t i) const {
  return autodiff_.b_.tensor(op_.in[i]);
}
Builder& GradContext::builder() {
  return autodiff_.b_;
}
TensorId GradContext::grad(size_t output) const {
  return autodiff_.grad_of(op_.out[output]);
}
TensorId GradContext::saved_in(size_t i) {
  return autodiff_.saved(op_.in[i]);
}
TensorId GradContext::saved_out(size_t i) {
  return autodiff_.saved(op_.out[i]);
}

bool GradContext::wants(size_t input) const {
  const auto it = autodiff_.depends_.find(op_.in[input]);
  return it != autodiff_.depends_.end() && it->second;
}

TensorId GradContext::emit_grad(size_t input, const OpKind& kind, const std::string& suffix, std::vector<TensorId> in,
                                Attrs attrs, EmitOptions options) {
  if (options.category == Category::kActivation) options.category = Category::kGradient;
  options.out_path = base_ + "." + suffix + ".out";
  const TensorId out =
      builder().emit(kind, base_ + "." + suffix, std::move(in), std::move(attrs), std::move(options))[0];
  set_grad(input, out);
  return out;
}

void GradContext::set_grad(size_t input, TensorId gradient) {
  autodiff_.contribute(op_.in[input], gradient, base_);
}

void GradContext::emit_wgrad(size_t weight, const OpKind& kind, const std::string& suffix,
                             const std::vector<TensorId>& in, const std::function<Attrs(bool)>& attrs, size_t slot,
                             EmitOptions options) {
  if (options.out.size() <= slot) options.out.resize(slot + 1, kNoTensor);
  emit_accumulating({weight}, slot, kind, suffix, in, attrs, std::move(options));
}

void GradContext::emit_wgrads(const std::vector<size_t>& weights, const OpKind& kind, const std::string& suffix,
                              const std::vector<TensorId>& in, const std::function<Attrs(bool)>& attrs,
                              EmitOptions options) {
  if (options.out.size() < weights.size()) options.out.resize(weights.size(), kNoTensor);
  emit_accumulating(weights, 0, kind, suffix, in, attrs, std::move(options));
}

TensorId GradContext::main_grad_of(size_t weight) {
  const Tensor& of = in_tensor(weight);
  if (of.main_grad != kNoTensor) return of.main_grad;
  Tensor nobodys;
  nobodys.path = base_ + "." + std::to_string(weight) + ".frozen_grad";
  nobodys.dtype = DType::kF32;
  nobodys.shape = of.shape;
  nobodys.category = Category::kWorkspace;
  nobodys.scope = Scope::kStep;
  return builder().declare(std::move(nobodys));
}

// Frozen weights have no main gradient. An op that writes nothing else is left out; one that writes something else too
// runs for that, and what it writes for a frozen weight is read by nobody.
void GradContext::emit_accumulating(const std::vector<size_t>& weights, size_t slot, const OpKind& kind,
                                    const std::string& suffix, const std::vector<TensorId>& in,
                                    const std::function<Attrs(bool)>& attrs, EmitOptions options) {
  const bool trains =
      std::any_of(weights.begin(), weights.end(), [&](size_t w) { return in_tensor(w).main_grad != kNoTensor; });
  const bool writes_more =
      std::any_of(options.out.begin(), options.out.end(), [](TensorId id) { return id != kNoTensor; });
  if (!trains && !writes_more) return;
  std::vector<TensorId> main_grads;
  for (size_t i = 0; i < weights.size(); ++i) {
    main_grads.push_back(main_grad_of(weights[i]));
    options.out[slot + i] = main_grads[i];
  }
  // A second op on the same weight in this segment (tied embeddings) always accumulates.
  const bool written = autodiff_.written_.contains(main_grads[0]);
  autodiff_.written_.insert(main_grads.begin(), main_grads.end());
  options.category = Category::kGradient;
  options.role = Role::kWgrad;
  options.out_path = base_ + "." + suffix + ".out";
  const std::string path = base_ + "." + suffix;
  if (!written) {
    options.when = When::kFirst;
    options.out = builder().emit(kind, path, in, attrs(false), options);
  }
  options.when = written ? When::kAlways : When::kNotFirst;
  std::vector<TensorId> reads = in;
  reads.insert(reads.end(), main_grads.begin(), main_grads.end());
  builder().emit(kind, path, reads, attrs(true), options);
}

TensorId GradContext::declare_grad(size_t input, const std::string& suffix) {
  Tensor t;
  t.path = base_ + "." + suffix + ".out";
  t.dtype = in_tensor(input).dtype;
  t.shape = in_tensor(input).shape;
  t.category = Category::kGradient;
  return builder().declare(std::move(t));
}

TensorId Autodiff::grad_of(TensorId tensor) const {
  const auto it = grads_.find(tensor);
  return it == grads_.end() ? kNoTensor : it->second;
}

void Autodiff::contribute(TensorId tensor, TensorId gradient, const std::string& base) {
  TensorId& held = grads_.try_emplace(tensor, kNoTensor).first->second;
  if (held == kNoTensor) {
    held = gradient;
    return;
  }
  EmitOptions options;
  options.category = Category::kGradient;
  options.out_path = base + ".grad_sum.out";
  held = b_.emit1(kAdd, base + ".grad_sum", {held, gradient}, NoAttrs{}, options);
}

// Gathered activations are not kept for the backward: they are gathered again from the local shard, which is kept.
TensorId Autodiff::saved(TensorId tensor) {
  const auto producer = gathered_.find(tensor);
  if (producer == gathered_.end()) return tensor;
  const auto again = regathered_.find(tensor);
  if (again != regathered_.end()) return again->second;
  const Op gather = *producer->second;
  EmitOptions options;
  options.stream = gather.stream;
  options.category = Category::kComm;
  const TensorId out =
      b_.emit1(*gather.kind, without_suffix(gather.path) + ".regather", gather.in, gather.attrs, options);
  regathered_[tensor] = out;
  return out;
}

void Autodiff::find_dependents(int forward) {
  forward_ops_ = b_.program().segments[static_cast<size_t>(forward)].ops;
  for (const Op& op : forward_ops_) {
    bool depends = receives(op);
    for (TensorId in : op.in) {
      if (b_.tensor(in).main_grad != kNoTensor) depends_[in] = true;
      const auto it = depends_.find(in);
      depends = depends || (it != depends_.end() && it->second);
    }
    for (TensorId out : op.out) depends_[out] = depends_[out] || (depends && op.kind->grad != nullptr);
    if (op.kind == &kAllGather) gathered_[op.out[0]] = &op;
  }
}

void Autodiff::run(int forward, const std::map<TensorId, TensorId>& seeds, const std::set<TensorId>& wanted) {
  for (TensorId tensor : wanted) depends_[tensor] = true;
  for (const auto& [tensor, gradient] : seeds) {
    grads_[tensor] = gradient;
    depends_[tensor] = true;
  }
  find_dependents(forward);
  for (auto op = forward_ops_.rbegin(); op != forward_ops_.rend(); ++op) {
    if (op->kind->grad == nullptr) continue;
    const bool reached =
        std::any_of(op->out.begin(), op->out.end(), [&](TensorId t) { return grad_of(t) != kNoTensor; });
    if (!reached && !op->kind->gradient_root) continue;
    GradContext context(*this, *op, without_suffix(op->path));
    op->kind->grad(context);
  }
}

}  // namespace mbb::trainer
