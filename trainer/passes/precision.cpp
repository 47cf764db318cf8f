// Rewriting the GEMMs of Transformer blocks to quantized operands.
#include "trainer/passes/precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "trainer/ops/table.h"
#include "trainer/passes/fp8_param.h"
#include "trainer/passes/precision_recipe.h"

namespace mbb::trainer {
namespace {

// Which GEMMs a recipe takes.
class Choice {
 public:
  explicit Choice(const Layout& layout)
      : kept_(layout.config.precision.first_last_layers_bf16),
        layers_(layout.model.num_layers),
        encoder_layers_(layout.model.num_encoder_layers) {}

  bool takes(const Op& op) const {
    const bool product =
        op.kind == &kGemm || op.kind == &kGroupedGemm || op.kind == &kGroupedGemmDgrad || op.kind == &kGroupedGemmWgrad;
    if (!product || op.role == Role::kNone) return false;
    const int64_t layer = block_layer(op.path);
    if (layer < 0) return false;
    if (op.path.starts_with("mtp.")) return true;
    const int64_t layers = op.path.starts_with("encoder.") ? encoder_layers_ : layers_;
    return layer >= kept_ && layer < layers - kept_;
  }

 private:
  int64_t kept_, layers_, encoder_layers_;
};

class Rewriter {
 public:
  // `gathered_weights`: weights are whole around their uses only, so that each segment quantizes them as it reads them.
  Rewriter(Program& program, const Choice& choice, RecipeOps& recipe, bool gathered_weights, int forward, int backward)
      : program_(program), b_(program), choice_(choice), recipe_(recipe), gathered_weights_(gathered_weights) {
    std::map<TensorId, TensorId> gathered;
    for (const int segment : {forward, backward}) {
      for (const Op& op : program.segments[static_cast<size_t>(segment)].ops) {
        for (const TensorId id : op.in) readers_[id] += choice.takes(op) ? 0 : 1;
        if (op.kind != &kAllGather) continue;
        const auto [first, added] = gathered.try_emplace(op.in[0], op.out[0]);
        if (!added) gathered_from_[op.out[0]] = first->second;
      }
    }
    rewrite(forward);
    rewrite(backward);
  }

 private:
  // Whether only GEMMs that are quantized read the tensor, in any segment.
  bool only_quantized_reads(TensorId id) const {
    const auto at = readers_.find(id);
    return at != readers_.end() && at->second == 0;
  }

  void rewrite(int segment) {
    std::vector<Op> before = std::move(program_.segments[static_cast<size_t>(segment)].ops);
    program_.segments[static_cast<size_t>(segment)].ops.clear();
    b_.enter(segment);
    if (gathered_weights_)
      std::erase_if(quantized_,
                    [&](const auto& entry) { return program_.tensor(entry.first).category == Category::kWeight; });
    for (Op& op : before) {
      if (choice_.takes(op))
        gemm(op);
      else if (!quantizing_producer(op))
        b_.ops().push_back(std::move(op));
    }
    recipe_.end_segment(b_);
  }

  // The same op with its value quantized, where nothing reads the value itself.
  bool quantizing_producer(const Op& op) {
    const OpKind* fused = recipe_.quantizing_form(*op.kind);
    if (fused == nullptr || block_layer(op.path) < 0 || !only_quantized_reads(op.out[0])) return false;
    EmitOptions options;
    options.category = program_.tensor(op.out[0]).category;
    options.out_path = program_.tensor(op.out[0]).path + ".fp8";
    options.out.assign(3, kNoTensor);
    options.out.insert(options.out.end(), op.out.begin() + 1, op.out.end());
    const auto out = b_.emit(*fused, op.path + ".quantize", op.in, op.attrs, options);
    b_.ops().back().covers = {op.path};
    quantized_[op.out[0]] = {{out[0], out[2]}, {out[1], out[2]}};
    return true;
  }

  // The quantized form of a value, made here on first use.
  Quantized of(TensorId id, Operand operand, bool expert) {
    if (const auto at = quantized_.find(id); at != quantized_.end()) return at->second;
    const Tensor value = program_.tensor(id);
    EmitOptions options;
    options.category = value.category;
    options.out_path = value.path + ".quantized";
    const bool once = operand == Operand::kWeight && !gathered_weights_;
    if (once) options.when = When::kFirst;
    const auto again = gathered_from_.find(id);
    const TensorId state_of = again == gathered_from_.end() ? id : again->second;
    const Quantized made = recipe_.quantize(b_, id, state_of, operand, expert, options);
    if (once)
      for (const TensorId each : b_.ops().back().out) program_.tensor(each).scope = Scope::kStep;
    return quantized_[id] = made;
  }

  void gemm(const Op& op) {
    const bool fprop = op.role == Role::kFprop, wgrad = op.role == Role::kWgrad;
    const bool expert = op.kind != &kGemm;
    const Quantized left = of(op.in[0], fprop ? Operand::kInput : Operand::kGradient, expert);
    const Quantized right = of(op.in[1], wgrad ? Operand::kInput : Operand::kWeight, expert);
    recipe_.product(b_, op, wgrad ? left.column : left.row, fprop ? right.row : right.column);
  }

  Program& program_;
  Builder b_;
  const Choice& choice_;
  RecipeOps& recipe_;
  bool gathered_weights_;
  std::map<TensorId, int> readers_;             // readers that are no quantized GEMM
  std::map<TensorId, TensorId> gathered_from_;  // gathered again -> as the forward gathered it
  std::map<TensorId, Quantized> quantized_;
};

}  // namespace

PrecisionPass::PrecisionPass(Program& program, const Layout& layout)
    : program_(program), layout_(layout), recipe_(recipe_ops(layout)) {}

PrecisionPass::~PrecisionPass() = default;

void PrecisionPass::run(int forward, int backward) {
  if (!recipe_) return;
  Rewriter(program_, Choice(layout_), *recipe_, layout_.shards_parameters(), forward, backward);
  if (layout_.config.precision.fp8_param) keep_weights_in_fp8(program_);
}

void PrecisionPass::once_a_step(Builder& builder) {
  if (recipe_) recipe_->once_a_step(builder);
}

int64_t block_layer(std::string_view path) {
  for (const std::string_view stack : {"layers.", "encoder.layers.", "mtp."}) {
    if (!path.starts_with(stack)) continue;
    std::string_view rest = path.substr(stack.size());
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    // Of a prediction depth only the Transformer layer counts, not the projection before it.
    const std::string_view block = stack == "mtp." ? ".layer." : ".";
    return error == std::errc() && rest.starts_with(block) ? layer : -1;
  }
  return -1;
}

namespace {

// What both sides of a quantized matrix are multiples of. E8M0 and E4M3 scales are of whole blocks. Scales in fp32 may
// be of a part of a block at the end of a side, and there the tensor cores' loads of 16 bytes set the step.
int64_t side_step(const QuantizeBlocksAttrs& a) {
  constexpr int64_t kLoad = 16;
  const bool partial = a.scale == BlockScale::kF32 || a.scale == BlockScale::kPowerOfTwo;
  return partial ? kLoad : a.block;
}

// The rows of experts with a capacity follow from it, not from the tokens alone. Nothing where `op` has none of them.
std::string capacity_remedy(const Program& program, const Op& op, int64_t rows, int64_t step) {
  if (rows % step == 0 || op.path.find(".mlp.") == std::string::npos) return {};
  for (const Segment& segment : program.segments)
    for (const Op& plan : segment.ops) {
      const auto* dispatch = std::get_if<DispatchAttrs>(&plan.attrs);
      if (dispatch == nullptr || plan.kind != &kDispatchPlan || dispatch->capacity == 0) continue;
      const int64_t choices = program.tensor(plan.in[0]).shape.elements();
      const double balanced = static_cast<double>(choices) / static_cast<double>(dispatch->experts);
      const int64_t together = std::max<int64_t>(1, rows / dispatch->capacity);  // experts in one matrix
      int64_t capacity = dispatch->capacity;
      while (capacity * together % step != 0) ++capacity;
      // Half a row below, so that rounding what is printed here never asks for one more.
      return fmt::format(
          "experts take {} rows each (parallel.moe_expert_capacity_factor times the balanced {:.4g}), {} of them in a "
          "matrix: set parallel.moe_expert_capacity_factor = {:.4g}, which gives {}; or take recipe = fp8_current",
          dispatch->capacity, balanced, together, (static_cast<double>(capacity) - 0.5) / balanced, capacity);
    }
  return {};
}

}  // namespace

Status check_block_shapes(const Program& program) {
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const auto* a = std::get_if<QuantizeBlocksAttrs>(&op.attrs);
      if (a == nullptr) continue;
      const Shape& x = program.tensor(op.in[0]).shape;
      const bool stack = program.tensor(op.in[0]).category == Category::kWeight && x.rank() == 3;  // experts' weights
      const int64_t rows = stack ? x[1] : x.rows(), step = side_step(*a);
      if (rows % step == 0 && x.cols() % step == 0) continue;
      const std::string of_capacity = capacity_remedy(program, op, rows, step);
      const std::string blocks = step == a->block
                                     ? fmt::format("{}", a->block)
                                     : fmt::format("{}, whose last one covers a multiple of {}", a->block, step);
      return fail(ErrorCode::kBadArgument,
                  fmt::format("precision.recipe: op {}: a matrix of {} x {} does not divide into blocks of {}", op.path,
                              rows, x.cols(), blocks),
                  !of_capacity.empty()
                      ? of_capacity
                      : fmt::format("make micro_batch_size x seq_length and the model's widths, both over "
                                    "tensor_model_parallel_size where they are cut, multiples of {}; or take "
                                    "recipe = fp8_current",
                                    step));
    }
  }
  return {};
}

Status check_fp8_rows(const Program& program) {
  constexpr int64_t kRows = 16, kColumns = 8;  // of a tile that a kernel quantizes and transposes
  const auto is_fp8 = [](const Tensor& t) { return t.dtype == DType::kE4M3 || t.dtype == DType::kE5M2; };
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      if (op.out.size() < 3) continue;  // codes, their transpose, scale and amax
      const Tensor &codes = program.tensor(op.out[0]), &transpose = program.tensor(op.out[1]);
      const int64_t rows = codes.shape.rows(), columns = codes.shape.cols();
      if (!is_fp8(codes) || !is_fp8(transpose) || transpose.shape.cols() != rows) continue;
      if ((rows % kRows == 0 || transpose.left_out) && columns % kColumns == 0) continue;
      return fail(
          ErrorCode::kBadArgument,
          fmt::format("precision.recipe: op {}: a GPU quantizes matrices whose rows {} divides and whose columns "
                      "{} divides, and this one is {} x {}",
                      op.path, kRows, kColumns, rows, columns),
          fmt::format("make micro_batch_size x seq_length (over context_parallel_size) and the model's widths "
                      "over tensor_model_parallel_size multiples of {}; or take recipe = bf16, or device = cpu",
                      kRows));
    }
  }
  return {};
}

}  // namespace mbb::trainer
