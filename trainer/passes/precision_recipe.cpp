// The recipes: tensorwise FP8 with current and with delayed scaling, and the block formats.
#include "trainer/passes/precision_recipe.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "trainer/data/rng.h"
#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

DType tensorwise_format(Operand operand) {
  return operand == Operand::kGradient ? DType::kE5M2 : DType::kE4M3;
}

std::string quantize_path(const Builder& b, TensorId value) {
  return b.tensor(value).path + ".quantize";
}

EmitOptions in_place_of(const Op& gemm) {
  return {.role = gemm.role, .when = gemm.when, .stream = gemm.stream, .out = gemm.out};
}

// The product of experts in the place of `gemm`: operands and scales, then what it read beside its operands.
void grouped_product(Builder& b, const Op& gemm, std::vector<TensorId> in, GroupedQuantizedAttrs attrs) {
  const OpKind& kind = gemm.role == Role::kFprop   ? kGroupedGemmQuantized
                       : gemm.role == Role::kDgrad ? kGroupedGemmQuantizedDgrad
                                                   : kGroupedGemmQuantizedWgrad;
  attrs.grouped = std::get<GroupedGemmAttrs>(gemm.attrs);
  attrs.local_experts = b.tensor(gemm.role == Role::kWgrad ? gemm.out[0] : gemm.in[1]).shape[0];
  attrs.fast = gemm.role == Role::kFprop;
  attrs.out = b.tensor(gemm.out[0]).dtype;
  in.insert(in.end(), gemm.in.begin() + 2, gemm.in.end());
  b.emit(kind, gemm.path, std::move(in), attrs, in_place_of(gemm));
}

// One scale a tensor. Fprop accumulates fast, dgrad and wgrad do not.
class Tensorwise : public RecipeOps {
 public:
  void product(Builder& b, const Op& gemm, const Copy& a, const Copy& c) override {
    std::vector<TensorId> in{a.q, c.q, a.scales, c.scales};
    if (gemm.kind != &kGemm) return grouped_product(b, gemm, in, {});
    const bool accumulate = std::get<GemmAttrs>(gemm.attrs).accumulate;
    if (accumulate) in.push_back(gemm.out[0]);
    b.emit(kGemmScaled, gemm.path, in,
           ScaledGemmAttrs{accumulate, gemm.role == Role::kFprop, b.tensor(gemm.out[0]).dtype}, in_place_of(gemm));
  }
};

// The scale of each value is that of its present amax, so that the op before can quantize as it writes.
class Current final : public Tensorwise {
 public:
  Quantized quantize(Builder& b, TensorId value, TensorId, Operand operand, bool, const EmitOptions& options) override {
    const auto out =
        b.emit(kQuantize, quantize_path(b, value), {value}, QuantizeAttrs{tensorwise_format(operand)}, options);
    return {{out[0], out[2]}, {out[1], out[2]}};
  }

  const OpKind* quantizing_form(const OpKind& kind) const override {
    if (&kind == &kRmsNorm) return &kRmsNormQuantize;
    if (&kind == &kSwiglu) return &kSwigluQuantize;
    if (&kind == &kSwigluGrad) return &kSwigluGradQuantize;
    return nullptr;
  }
};

// The scale of each value follows from the amaxes of earlier steps. A segment's values share flat states: scales and
// histories, and the amaxes of this step, which one op at the end of the segment collects; once a step they are
// maximized over the ranks that hold the stage, and become history and scales.
class Delayed final : public Tensorwise {
 public:
  explicit Delayed(const Layout& layout)
      : config_(layout.config.precision), ranks_(layout.tp * layout.mesh.sizes().dp * layout.mesh.sizes().cp) {}

  Quantized quantize(Builder& b, TensorId value, TensorId state_of, Operand operand, bool,
                     const EmitOptions& options) override {
    const bool reader = scale_of_.contains(state_of);
    if (!reader) {
      Tensor t;
      t.path = b.tensor(state_of).path + ".scale";
      t.shape = Shape{1};
      t.category = Category::kStep;
      t.scope = Scope::kPersistent;
      scale_of_[state_of] = b.declare(std::move(t));
    }
    const TensorId scale = scale_of_[state_of];
    const auto out = b.emit(kQuantizeDelayed, quantize_path(b, value), {value, scale},
                            QuantizeAttrs{tensorwise_format(operand)}, options);
    if (!reader) present_.push_back({scale, out[2]});
    return {{out[0], out[2]}, {out[1], out[2]}};
  }

  void end_segment(Builder& b) override {
    if (present_.empty()) return;
    const Segment& segment = b.program().segments[static_cast<size_t>(b.segment())];
    const std::string path = "fp8." + segment.name;
    const auto n = static_cast<int64_t>(present_.size());
    State state;
    state.path = path;
    state.to = segment.kind == SegmentKind::kForward ? DType::kE4M3 : DType::kE5M2;
    state.amax = flat(b, path + ".amax", Shape{n}, Scope::kStep);
    state.history = flat(b, path + ".amax_history", Shape{config_.fp8_amax_history_len, n}, Scope::kPersistent);
    state.scale = flat(b, path + ".scale", Shape{n}, Scope::kPersistent);
    b.program().tensor(state.scale).init = {Init::Kind::kOnes, 0};
    std::vector<TensorId> scales;
    for (int64_t i = 0; i < n; ++i) {
      Tensor& view = b.program().tensor(present_[static_cast<size_t>(i)].scale);
      view.view_of = state.scale;
      view.view_offset_bytes = i * static_cast<int64_t>(sizeof(float));
      scales.push_back(present_[static_cast<size_t>(i)].scales);
    }
    b.emit(kAmaxRecord, path + ".amax.record", scales, AmaxAttrs{false}, {.when = When::kFirst, .out = {state.amax}});
    scales.push_back(state.amax);
    b.emit(kAmaxRecord, path + ".amax.record", scales, AmaxAttrs{true}, {.when = When::kNotFirst, .out = {state.amax}});
    // Messages stay last: a batched send and the next call's receive are one exchange.
    auto& ops = b.ops();
    auto records = ops.end() - 2;
    auto messages = records;
    while (messages != ops.begin() && sends(*(messages - 1))) --messages;
    std::rotate(messages, records, ops.end());
    states_.push_back(state);
    present_.clear();
  }

  void once_a_step(Builder& b) override {
    for (const State& s : states_) {
      if (ranks_ > 1)
        b.emit(kAllReduce, s.path + ".amax.all_reduce", {s.amax},
               CommAttrs{.group = GroupKind::kTpDpCp, .group_size = ranks_, .reduce = ReduceKind::kMax},
               {.stream = Stream::kDp, .out = {s.amax}});
      b.emit(kScaleUpdate, s.path + ".scale.update", {s.amax, s.history, s.scale, b.program().ports.step_record},
             ScaleUpdateAttrs{s.to, config_.fp8_margin, config_.fp8_amax_compute_algo == AmaxAlgorithm::kMostRecent},
             {.out = {s.history, s.scale}});
    }
  }

 private:
  struct Slot {
    TensorId scale, scales;
  };
  struct State {
    std::string path;
    DType to = DType::kE4M3;
    TensorId amax = kNoTensor, history = kNoTensor, scale = kNoTensor;
  };

  static TensorId flat(Builder& b, std::string path, Shape shape, Scope scope) {
    Tensor t;
    t.path = std::move(path);
    t.shape = shape;
    t.category = Category::kStep;
    t.scope = scope;
    return b.declare(std::move(t));
  }

  PrecisionConfig config_;
  int ranks_;
  std::map<TensorId, TensorId> scale_of_;
  std::vector<Slot> present_;  // of the segment that is rewritten
  std::vector<State> states_;
};

// A scale a block: 128 in fp32 (weights in squares; the last block of a side may be partial), 32 in E8M0, or 16 of E2M1
// in E4M3 (weights in squares; operands of wgrad rotated, gradients rounded stochastically).
class Blocks final : public RecipeOps {
 public:
  explicit Blocks(const Layout& layout) : layout_(layout), recipe_(layout.config.precision.recipe) {}

  Quantized quantize(Builder& b, TensorId value, TensorId state_of, Operand operand, bool expert,
                     const EmitOptions& options) override {
    QuantizeBlocksAttrs attrs = attrs_of(b.tensor(state_of).path, operand);
    if (expert) attrs.rotate = false;  // it would mix rows of different experts
    if (expert && operand == Operand::kWeight) attrs.stack = b.tensor(value).shape[0];
    std::vector<TensorId> in{value};
    if (attrs.stochastic) {
      in.push_back(samples(b));
      in.push_back(b.program().ports.step_record);
    }
    const auto out = b.emit(kQuantizeBlocks, quantize_path(b, value), in, attrs, options);
    const bool inverse = attrs.scale == BlockScale::kE4M3;
    return {{out[0], out[1], inverse ? out[4] : kNoTensor, attrs.square},
            {out[2], out[3], inverse ? out[5] : kNoTensor, attrs.square}};
  }

  void product(Builder& b, const Op& gemm, const Copy& a, const Copy& c) override {
    std::vector<TensorId> in{a.q, c.q, a.scales, c.scales};
    if (a.inverse != kNoTensor) in.insert(in.end(), {a.inverse, c.inverse});
    if (gemm.kind != &kGemm)
      return grouped_product(b, gemm, in, {.block = block(), .a_square = a.square, .b_square = c.square});
    const bool accumulate = std::get<GemmAttrs>(gemm.attrs).accumulate;
    if (accumulate) in.push_back(gemm.out[0]);
    const GemmBlocksAttrs attrs{accumulate, block(), a.square, c.square, b.tensor(gemm.out[0]).dtype};
    b.emit(kGemmBlocks, gemm.path, in, attrs, in_place_of(gemm));
  }

 private:
  int block() const { return recipe_ == Recipe::kNvfp4 ? 16 : recipe_ == Recipe::kMxfp8 ? 32 : 128; }

  QuantizeBlocksAttrs attrs_of(const std::string& path, Operand operand) const {
    const auto seed = static_cast<uint64_t>(layout_.config.train.seed);
    QuantizeBlocksAttrs a;
    a.block = block();
    a.square = operand == Operand::kWeight && recipe_ != Recipe::kMxfp8;
    if (recipe_ == Recipe::kMxfp8) a.scale = BlockScale::kE8M0;
    if (recipe_ == Recipe::kFp8Blockwise)
      a.scale = layout_.config.precision.fp8_power_of_two_scales ? BlockScale::kPowerOfTwo : BlockScale::kF32;
    if (recipe_ != Recipe::kNvfp4) return a;
    a.to = DType::kE2M1;
    a.scale = BlockScale::kE4M3;
    a.rotate = operand != Operand::kWeight;
    if (a.rotate) a.rotate_signs = static_cast<int64_t>(rng_stream(seed, path_hash("nvfp4.rotation")) & 0xffff);
    a.stochastic = operand == Operand::kGradient;
    if (a.stochastic) a.stream = static_cast<int64_t>(rng_stream(seed, path_hash(path + ".rounding")));
    return a;
  }

  TensorId samples(Builder& b) const {
    TensorId& port = b.program().ports.samples;
    if (port != kNoTensor) return port;
    Tensor t;
    t.path = "samples";
    t.dtype = DType::kI32;
    t.shape = Shape{layout_.micro_batch};
    t.category = Category::kInput;
    t.scope = Scope::kMicroBatch;
    return port = b.declare(std::move(t));
  }

  const Layout& layout_;
  Recipe recipe_;
};

}  // namespace

std::unique_ptr<RecipeOps> recipe_ops(const Layout& layout) {
  switch (layout.config.precision.recipe) {
    case Recipe::kFp32:
    case Recipe::kBf16: return nullptr;
    case Recipe::kFp8Current: return std::make_unique<Current>();
    case Recipe::kFp8Delayed: return std::make_unique<Delayed>(layout);
    case Recipe::kFp8Blockwise:
    case Recipe::kMxfp8:
    case Recipe::kNvfp4: return std::make_unique<Blocks>(layout);
  }
  return nullptr;
}

}  // namespace mbb::trainer
