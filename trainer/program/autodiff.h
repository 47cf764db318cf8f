// The backward segment of a forward segment, from the gradient rules of the op table.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "trainer/program/builder.h"

namespace mbb::trainer {

class Autodiff;

// What a gradient rule sees: one forward op, the gradients of its outputs, and a place to put those of its inputs.
class GradContext {
 public:
  GradContext(Autodiff& autodiff, const Op& op, std::string base)
      : autodiff_(autodiff), op_(op), base_(std::move(base)) {}

  const Op& op() const { return op_; }
  template <typename T>
  const T& attrs() const {
    return std::get<T>(op_.attrs);
  }
  const Tensor& in_tensor(size_t i) const;

  // Gradient of output i, or kNoTensor when nothing downstream depends on it.
  TensorId grad(size_t output = 0) const;
  // A forward tensor as the backward may read it: the tensor itself, or its value gathered again (see regather()).
  TensorId saved_in(size_t i);
  TensorId saved_out(size_t i);
  bool wants(size_t input) const;

  // Emits a backward op "<base>.<suffix>" whose first output is the gradient of `input`.
  TensorId emit_grad(size_t input, const OpKind& kind, const std::string& suffix, std::vector<TensorId> in, Attrs attrs,
                     EmitOptions options = {});
  // Gives the gradient of an input that is already there (a residual's, for example).
  void set_grad(size_t input, TensorId gradient);
  // Emits "<base>.<suffix>" twice: on the first micro-batch it overwrites the main gradient of weight input `weight`,
  // later it accumulates. Nothing is emitted for a frozen weight alone. `attrs(accumulate)` gives the attributes,
  // `options.out` the outputs with kNoTensor at `slot`.
  void emit_wgrad(size_t weight, const OpKind& kind, const std::string& suffix, const std::vector<TensorId>& in,
                  const std::function<Attrs(bool accumulate)>& attrs, size_t slot = 0, EmitOptions options = {});

  // The same for an op that gives the gradients of several weights: its first outputs, in this order.
  void emit_wgrads(const std::vector<size_t>& weights, const OpKind& kind, const std::string& suffix,
                   const std::vector<TensorId>& in, const std::function<Attrs(bool accumulate)>& attrs,
                   EmitOptions options = {});
  // Declares "<base>.<suffix>.out", the gradient of `input`, for an op that writes it beside gradients of weights.
  TensorId declare_grad(size_t input, const std::string& suffix);

  const std::string& base() const { return base_; }
  Builder& builder();

 private:
  TensorId main_grad_of(size_t weight);
  // The gradients of `weights` are outputs from `slot` on.
  void emit_accumulating(const std::vector<size_t>& weights, size_t slot, const OpKind& kind, const std::string& suffix,
                         const std::vector<TensorId>& in, const std::function<Attrs(bool accumulate)>& attrs,
                         EmitOptions options);

  Autodiff& autodiff_;
  const Op& op_;
  std::string base_;
};

class Autodiff {
 public:
  explicit Autodiff(Builder& builder) : b_(builder) {}

  // Differentiates `forward` into the current segment of the builder. `seeds` maps forward outputs to their gradients
  // (already tensors of the backward segment). Afterwards grad_of() gives the gradients of the segment's inputs.
  // Inputs in `wanted` get a gradient although no weight is before them.
  void run(int forward, const std::map<TensorId, TensorId>& seeds, const std::set<TensorId>& wanted = {});
  TensorId grad_of(TensorId tensor) const;

 private:
  friend class GradContext;
  void find_dependents(int forward);
  void contribute(TensorId tensor, TensorId gradient, const std::string& base);
  TensorId saved(TensorId tensor);

  Builder& b_;
  std::map<TensorId, TensorId> grads_;
  std::map<TensorId, bool> depends_;        // on a weight that trains or on a segment input that wants a gradient
  std::map<TensorId, const Op*> gathered_;  // outputs of all-gathers, rebuilt in the backward instead of kept
  std::map<TensorId, TensorId> regathered_;
  std::set<TensorId> written_;  // main gradients that an op of the backward writes
  std::vector<Op> forward_ops_;
};

}  // namespace mbb::trainer
