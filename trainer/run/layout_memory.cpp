// Rules of recompute, offload, adapters, fusions and packing, each named with its knob.
#include "trainer/run/layout_memory.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/text.h"
#include "trainer/passes/recompute.h"
#include "trainer/run/layout_rules.h"
#include "trainer/run/precision_rules.h"

namespace mbb::trainer {
namespace {

// What keeps SwiGLU and the products around it apart, or needs one of them by itself.
Status check_swiglu_fusion(const Layout& l, bool dense) {
  const char* const knob = "fusion.swiglu_fusion = true";
  if (l.model.activation != Activation::kSwiglu || l.model.mlp_bias || !dense)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} with model {}, which has no SwiGLU right behind a dense product", knob, l.model.name),
                "leave it as it is by default");
  const auto refuse = [&](const char* other, const char* why) {
    return fail(ErrorCode::kBadArgument, fmt::format("{} with {}: {}", knob, other, why), "leave one of them out");
  };
  const MemoryConfig& m = l.config.memory;
  if (is_quantized(l.config.precision.recipe))
    return refuse("a precision.recipe that quantizes", "quantized layers gate and quantize in one op");
  if (m.lora_rank > 0) return refuse("memory.lora_rank", "adapters are added before the gate");
  if (l.config.tp_overlap.tp_comm_overlap) return refuse("overlap.tp_comm_overlap", "it splits the products");
  if (m.recompute_granularity == RecomputeGranularity::kSelective)
    for (const std::string_view module : split(m.recompute_modules, ','))
      if (module == "act") return refuse("act among memory.recompute_modules", "the product would be repeated too");
  return {};
}

Status check_fusion(const Layout& l) {
  const FusionConfig& f = l.config.fusion;
  const bool unfused = f.attention_backend == AttentionBackend::kUnfused;
  if (!unfused && !f.masked_softmax_fusion)
    return fail(
        ErrorCode::kBadArgument,
        "fusion.masked_softmax_fusion = false, and only fusion.attention_backend = unfused has a softmax of its "
        "own",
        "set fusion.attention_backend = unfused, or leave it on");
  const char* part = l.model.attention_sinks                           ? "attention sinks"
                     : l.model.position == PositionKind::kRelativeBias ? "a position bias"
                                                                       : nullptr;
  if (unfused && part != nullptr)
    return fail(ErrorCode::kBadArgument,
                fmt::format("fusion.attention_backend = unfused with model {}, which has {}", l.model.name, part),
                "set fusion.attention_backend = auto");
  const auto needs = [&](const char* knob, const char* what) {
    return fail(ErrorCode::kBadArgument, fmt::format("{} with model {}, which has no {}", knob, l.model.name, what),
                "leave it as it is by default");
  };
  const bool dense = has_dense_mlp(l.model);
  if (f.bias_activation_fusion && (!l.model.mlp_bias || !dense || l.model.activation == Activation::kSwiglu))
    return needs("fusion.bias_activation_fusion = true", "biased activation in a dense MLP");
  if (f.swiglu_fusion) MB_TRY(check_swiglu_fusion(l, dense || l.model.moe.shared_ffn_hidden_size > 0));
  const bool biased_sum = l.model.attention_out_bias || (l.model.mlp_bias && dense);
  if (f.bias_dropout_fusion && !biased_sum && l.config.train.hidden_dropout == 0)
    return needs("fusion.bias_dropout_fusion = true", "bias or dropout before a residual sum");
  if (!f.apply_rope_fusion && l.model.position != PositionKind::kRope)
    return needs("fusion.apply_rope_fusion = false", "rotary positions");
  return {};
}

Status check_adapters(const Layout& l) {
  const MemoryConfig& m = l.config.memory;
  const MemoryConfig defaults;
  if (m.lora_rank == 0) {
    if (m.lora_alpha != defaults.lora_alpha || m.lora_targets != defaults.lora_targets)
      return fail(ErrorCode::kBadArgument,
                  "memory.lora_alpha or memory.lora_targets is given, and memory.lora_rank is 0",
                  "set memory.lora_rank");
    return {};
  }
  if (m.lora_rank > l.model.hidden_size)
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("memory.lora_rank = {} is more than model.hidden_size = {}", m.lora_rank, l.model.hidden_size),
        "such an adapter is wider than the layer beside it: give a lower rank");
  if (!m.frozen.empty())
    return fail(ErrorCode::kBadArgument, "memory.frozen with memory.lora_rank: adapters are all that trains then",
                "leave memory.frozen out");
  std::vector<std::string> known{"proj"};
  if (l.model.is_mla())
    known.insert(known.end(), {"q_down", "q_up", "kv_down", "kv_up"});
  else
    known.emplace_back("qkv");
  known.insert(known.end(), {"fc1", "fc2"});
  if (l.model.is_encoder_decoder()) known.insert(known.end(), {"q", "kv"});
  for (const std::string_view name : split(m.lora_targets, ','))
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail(ErrorCode::kBadArgument,
                  fmt::format("memory.lora_targets: model {} has no linear layer '{}'", l.model.name, printable(name)),
                  "layers, with commas between: " + join(known, ", "));
  return {};
}

Status check_offload(const Layout& l) {
  const MemoryConfig& m = l.config.memory;
  if (m.cpu_offloading || (m.cpu_offloading_num_layers == 0 && !m.cpu_offloading_weights)) return {};
  const char* knob = m.cpu_offloading_weights ? "memory.cpu_offloading_weights" : "memory.cpu_offloading_num_layers";
  return fail(ErrorCode::kBadArgument, fmt::format("{} is given, and memory.cpu_offloading is off", knob),
              fmt::format("set memory.cpu_offloading = true, or leave {} out", knob));
}

// Sequences of one row each are padded; packs hold several, whose positions and attention know nothing of each other.
Status check_packing(const Layout& l) {
  const PackingConfig& p = l.config.packing;
  const PackingConfig defaults;
  const auto refuse = [](std::string what, std::string hint) {
    return fail(ErrorCode::kBadArgument, std::move(what), std::move(hint));
  };
  if (!l.has_sequences()) {
    if (p.packed_sequence_size != 0 || p.mean_length != 0 || p.too_long != defaults.too_long)
      return refuse("[packing] is given, and packing.sequences = stream has no sequences to pack",
                    "set packing.sequences = documents, uniform or lognormal");
  } else if (l.model.is_encoder_decoder() && l.micro_batch != 1) {
    return refuse(fmt::format("train.micro_batch_size = {} with packing.sequences and model {}: where a row's encoder "
                              "part ends is known of one row at a time",
                              l.micro_batch, l.model.name),
                  "set train.micro_batch_size = 1");
  }
  const bool drawn = p.sequences == SequenceLengths::kUniform || p.sequences == SequenceLengths::kLognormal;
  if (!drawn && p.mean_length != 0)
    return refuse("packing.mean_length is given, and packing.sequences draws no lengths",
                  "set packing.sequences = uniform or lognormal");
  if (p.sequences != SequenceLengths::kLognormal && p.length_sigma != defaults.length_sigma)
    return refuse("packing.length_sigma is given, and only packing.sequences = lognormal reads it", "leave it out");
  if (!l.packed()) {
    if (p.max_sequences != defaults.max_sequences)
      return refuse("packing.max_sequences is given, and packing.packed_sequence_size is 0",
                    "set packing.packed_sequence_size");
    return {};
  }
  if (l.micro_batch != 1)
    return refuse(fmt::format("train.micro_batch_size = {} with packing.packed_sequence_size: a pack is alone in its "
                              "micro-batch",
                              l.micro_batch),
                  "set train.micro_batch_size = 1 and raise packing.packed_sequence_size");
  if (l.config.train.seq_length > p.packed_sequence_size)
    return refuse(fmt::format("train.seq_length = {} is more than packing.packed_sequence_size = {}",
                              l.config.train.seq_length, p.packed_sequence_size),
                  "train.seq_length is the longest sequence a pack may hold");
  if (l.config.train.encoder_seq_length > p.packed_sequence_size)
    return refuse(fmt::format("train.encoder_seq_length = {} is more than packing.packed_sequence_size = {}, which the "
                              "encoder's packs have too",
                              l.config.train.encoder_seq_length, p.packed_sequence_size),
                  "raise packing.packed_sequence_size");
  return {};
}

Status check_recompute(const Layout& l) {
  const MemoryConfig& m = l.config.memory;
  const MemoryConfig defaults;
  const auto contradicts = [](const char* knob, const char* granularity) {
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is given, and only memory.recompute_granularity = {} reads it", knob, granularity),
                fmt::format("set memory.recompute_granularity = {}, or leave {} out", granularity, knob));
  };
  if (m.recompute_granularity != RecomputeGranularity::kFull) {
    if (m.recompute_method != defaults.recompute_method) return contradicts("memory.recompute_method", "full");
    if (m.recompute_num_layers != defaults.recompute_num_layers)
      return contradicts("memory.recompute_num_layers", "full");
  }
  MB_ASSIGN(const auto modules, parse_recompute_modules(m.recompute_modules));
  if (m.recompute_granularity != RecomputeGranularity::kSelective) {
    if (m.recompute_modules != defaults.recompute_modules) return contradicts("memory.recompute_modules", "selective");
    return {};
  }
  for (const RecomputeModule* module : modules) {
    const char* lacks = nullptr;
    if (module->needs_experts && !l.model.is_moe()) lacks = "experts";
    if (module->needs_shared_expert && l.model.moe.shared_ffn_hidden_size == 0) lacks = "shared expert";
    if (module->needs_mla && !l.model.is_mla()) lacks = "latent attention";
    if (module->dense_only && !has_dense_mlp(l.model)) lacks = "dense MLP: experts' are called moe and moe_act";
    if (lacks == nullptr) continue;
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("memory.recompute_modules names {}, and model {} has no {}", module->name, l.model.name, lacks),
        fmt::format("leave {} out of memory.recompute_modules", module->name));
  }
  return {};
}

}  // namespace

Status check_memory_rules(const Layout& layout) {
  MB_TRY(check_recompute(layout));
  MB_TRY(check_fusion(layout));
  MB_TRY(check_adapters(layout));
  MB_TRY(check_offload(layout));
  return check_packing(layout);
}

Status check_layers_of_chunks(const Layout& layout) {
  int64_t most = 0;
  for (const std::vector<Chunk>& stage : layout.stages)
    for (const Chunk& chunk : stage) most = std::max(most, chunk.num_layers);
  // An encoder's layers and those of multi-token prediction are in some chunk too.
  most += layout.model.num_encoder_layers + layout.model.num_mtp_layers;
  const auto check = [&](const char* knob, int64_t layers) -> Status {
    if (layers <= most) return {};
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} is more than the {} layers of a chunk", knob, layers, most),
                fmt::format("layers are counted within a chunk of a stage: give at most {}", most));
  };
  MB_TRY(check("memory.recompute_num_layers", layout.config.memory.recompute_num_layers));
  return check("memory.cpu_offloading_num_layers", layout.config.memory.cpu_offloading_num_layers);
}

}  // namespace mbb::trainer
