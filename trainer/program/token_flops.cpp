// Per-token model FLOPs, with what frozen weights spare.
#include "trainer/program/token_flops.h"

#include <iterator>
#include <set>
#include <string>

#include "trainer/program/explain.h"

namespace mbb::trainer {
namespace {

bool freezes(const Layout& layout) {
  return layout.config.memory.lora_rank > 0 || !layout.config.memory.frozen.empty();
}

// "layers.0.attn.qkv.lora_a." for each factor of an adapter that all tensor-parallel ranks hold whole.
std::set<std::string> held_whole(const Program& program) {
  std::set<std::string> prefixes;
  for (const Tensor& t : program.tensors)
    if (t.partial_over_tp && t.category == Category::kWeight && t.path.find(".lora_") != std::string::npos)
      prefixes.insert(t.path.substr(0, t.path.rfind('.') + 1));
  return prefixes;
}

// FLOPs of a step's linear layers over all GPUs. Recompute does not count, and what every tensor-parallel rank repeats
// counts once.
double linear_flops(const Layout& layout, const StepPrograms& programs, const Explain& costs) {
  double sum = 0;
  for (size_t c = 0; c < costs.classes.size(); ++c) {
    const std::set<std::string> whole = held_whole(programs.programs[c]);
    const auto repeats = [&](const std::string& path) {
      const auto after = whole.upper_bound(path);
      return after != whole.begin() && path.starts_with(*std::prev(after));
    };
    const auto gpus = static_cast<double>(costs.classes[c].gpus);
    for (const SegmentRow& segment : costs.classes[c].segments)
      for (const OpRow& op : segment.ops)
        if (op.model_flops && op.role != Role::kNone)
          sum += op.flops * static_cast<double>(op.runs) * gpus / (repeats(op.path) ? layout.tp : 1);
  }
  return sum;
}

BatchLengths full_rows(const Layout& layout) {
  return BatchLengths::uniform(layout.sequence, 1, layout.encoder_sequence);
}

TokenFlops trained(const Layout& layout, const StepPrograms& programs, const Explain& costs,
                   const BatchLengths& batch) {
  const ModelShape shape = layout.padded_model();
  const ModelFlops causal = model_flops(shape, batch, FlopsConvention::kCausal);
  const ModelFlops full = model_flops(shape, batch, FlopsConvention::kFull);
  const double tokens = batch.tokens();
  if (!freezes(layout)) return {causal.total() / tokens, full.total() / tokens};
  const double linear = linear_flops(layout, programs, costs) / static_cast<double>(layout.tokens_per_step());
  return {linear + causal.attention_core / tokens, linear + full.attention_core / tokens, kTrainedFlopsFormulaId,
          kTrainedFlopsFormulaVersion};
}

}  // namespace

TokenFlops token_flops(const Layout& layout, const StepPrograms& programs, const Explain& costs) {
  return trained(layout, programs, costs, full_rows(layout));
}

TokenFlops token_flops(const Layout& layout, const StepPrograms& programs, const BatchLengths& batch) {
  return trained(layout, programs, freezes(layout) ? explain(layout, programs) : Explain{}, batch);
}

TokenFlops token_flops(const Layout& layout, const StepPrograms& programs) {
  return token_flops(layout, programs, full_rows(layout));
}

}  // namespace mbb::trainer
