// Rewriting GEMMs of the blocks to FP8.
#include "trainer/passes/fp8_current.h"

#include <map>
#include <string>

#include "trainer/ops/table.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

struct Quantized {
  TensorId q, transposed, scales;
};

class Rewriter {
 public:
  Rewriter(Program& program, int forward, int backward) : program_(program), b_(program) {
    for (const int segment : {forward, backward})
      for (const Op& op : program.segments[static_cast<size_t>(segment)].ops)
        for (const TensorId id : op.in) readers_[id] += is_block_gemm(op) ? 0 : 1;
    rewrite(forward);
    rewrite(backward);
  }

 private:
  static bool is_block_gemm(const Op& op) {
    return op.kind == &kGemm && op.role != Role::kNone && op.path.starts_with("layers.");
  }
  // Whether only block GEMMs read the tensor, in any segment.
  bool only_block_gemms_read(TensorId id) const {
    const auto at = readers_.find(id);
    return at != readers_.end() && at->second == 0;
  }

  void rewrite(int segment) {
    std::vector<Op> before = std::move(program_.segments[static_cast<size_t>(segment)].ops);
    program_.segments[static_cast<size_t>(segment)].ops.clear();
    b_.enter(segment);
    for (Op& op : before) {
      if (is_block_gemm(op))
        gemm(op);
      else if (!quantizing_producer(op))
        b_.ops().push_back(std::move(op));
    }
  }

  // The same op with its value quantized, where nothing reads the value itself.
  bool quantizing_producer(const Op& op) {
    const OpKind* fused = op.kind == &kRmsNorm      ? &kRmsNormQuantize
                          : op.kind == &kSwiglu     ? &kSwigluQuantize
                          : op.kind == &kSwigluGrad ? &kSwigluGradQuantize
                                                    : nullptr;
    if (fused == nullptr || !op.path.starts_with("layers.") || !only_block_gemms_read(op.out[0])) return false;
    EmitOptions options;
    options.category = program_.tensor(op.out[0]).category;
    options.out_path = program_.tensor(op.out[0]).path + ".fp8";
    if (op.kind == &kRmsNorm) options.out = {kNoTensor, kNoTensor, kNoTensor, op.out[1]};
    const auto out = b_.emit(*fused, op.path + ".quantize", op.in, op.attrs, options);
    b_.ops().back().covers = {op.path};
    quantized_[op.out[0]] = {out[0], out[1], out[2]};
    return true;
  }

  // The FP8 form of a value, made here on first use.
  Quantized of(TensorId id, DType to) {
    if (const auto at = quantized_.find(id); at != quantized_.end()) return at->second;
    const Tensor value = program_.tensor(id);
    const bool weight = value.category == Category::kWeight;
    EmitOptions options;
    options.category = value.category;
    options.out_path = value.path + ".fp8";
    if (weight) options.when = When::kFirst;
    const auto out = b_.emit(kQuantize, value.path + ".quantize", {id}, QuantizeAttrs{to}, options);
    if (weight)
      for (const TensorId made : out) program_.tensor(made).scope = Scope::kStep;
    return quantized_[id] = {out[0], out[1], out[2]};
  }

  void gemm(const Op& op) {
    Quantized left{}, right{};
    ScaledGemmAttrs attrs{std::get<GemmAttrs>(op.attrs).accumulate, op.role == Role::kFprop,
                          program_.tensor(op.out[0]).dtype};
    std::vector<TensorId> in;
    switch (op.role) {
      case Role::kFprop:  // X · Wᵀ
        left = of(op.in[0], DType::kE4M3), right = of(op.in[1], DType::kE4M3);
        in = {left.q, right.q};
        break;
      case Role::kDgrad:  // dY · W = dY · (Wᵀ)ᵀ
        left = of(op.in[0], DType::kE5M2), right = of(op.in[1], DType::kE4M3);
        in = {left.q, right.transposed};
        break;
      case Role::kWgrad:  // dYᵀ · X = dYᵀ · (Xᵀ)ᵀ
      case Role::kNone:
        left = of(op.in[0], DType::kE5M2), right = of(op.in[1], DType::kE4M3);
        in = {left.transposed, right.transposed};
        break;
    }
    in.push_back(left.scales);
    in.push_back(right.scales);
    if (attrs.accumulate) in.push_back(op.out[0]);
    b_.emit(kGemmScaled, op.path, in, attrs, {.role = op.role, .when = op.when, .stream = op.stream, .out = op.out});
  }

  Program& program_;
  Builder b_;
  std::map<TensorId, int> readers_;  // readers that are no block GEMM
  std::map<TensorId, Quantized> quantized_;
};

}  // namespace

void to_fp8_current(Program& program, int forward, int backward) {
  Rewriter(program, forward, backward);
}

}  // namespace mbb::trainer
