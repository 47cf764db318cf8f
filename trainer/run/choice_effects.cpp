// The list of choices, and steps without one of them.
#include "trainer/run/choice_effects.h"

#include <algorithm>
#include <optional>

#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// Only knobs of the sizes of the mesh change how many rank classes there are, and none of them is here.
const std::vector<Choice>& all_choices() {
  static const std::vector<Choice> all{
      // Of what quantizes, the pass tells what it adds to bf16.
      {"recipe",
       {"precision.recipe", "data_parallel.grad_reduce_in_fp32", "optimizer.use_precision_aware_optimizer",
        "optimizer.main_params_dtype", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"}},
      {"packing", {"packing.packed_sequence_size", "packing.max_sequences"}},
      {"max_sequences", {"packing.max_sequences"}},
      {"LoRA", {"memory.lora_rank", "memory.lora_alpha", "memory.lora_targets"}},
      {"frozen weights", {"memory.frozen"}},
      {"avoid_record_streams off", {"memory.avoid_record_streams"}},
      {"expandable_segments off", {"memory.expandable_segments"}},
      {"attention_backend", {"fusion.attention_backend", "fusion.masked_softmax_fusion"}},
      {"masked_softmax_fusion off", {"fusion.masked_softmax_fusion"}},
      {"apply_rope_fusion off", {"fusion.apply_rope_fusion"}},
      {"first_last_layers_bf16", {"precision.first_last_layers_bf16"}},
      {"fp8_margin", {"precision.fp8_margin"}},
      {"fp8_amax_history_len", {"precision.fp8_amax_history_len"}},
      {"fp8_amax_compute_algo", {"precision.fp8_amax_compute_algo"}},
      {"fp8_power_of_two_scales off", {"precision.fp8_power_of_two_scales"}},
      {"fp8_param", {"precision.fp8_param"}},
      {"precision-aware optimizer",
       {"optimizer.use_precision_aware_optimizer", "optimizer.main_params_dtype", "optimizer.exp_avg_dtype",
        "optimizer.exp_avg_sq_dtype"}},
      {"sequence_parallel off", {"parallel.sequence_parallel"}},
      {"cp_comm_type", {"parallel.cp_comm_type", "parallel.hierarchical_context_parallel_sizes"}},
      {"cp_ring_use_ce", {"parallel.cp_ring_use_ce"}},
      {"moe_expert_capacity_factor", {"parallel.moe_expert_capacity_factor", "parallel.moe_token_drop_policy"}},
      {"moe_token_drop_policy", {"parallel.moe_token_drop_policy"}},
      {"moe_dropless_bound", {"parallel.moe_dropless_bound"}},
      {"moe_exchange", {"parallel.moe_exchange"}},
      {"moe_fp8_dispatch", {"parallel.moe_fp8_dispatch"}},
      {"moe_permute_fusion off", {"parallel.moe_permute_fusion"}},
      {"moe_router_fusion", {"parallel.moe_router_fusion"}},
      {"moe_router_force_load_balancing", {"parallel.moe_router_force_load_balancing"}},
      {"sharding strategy",
       {"data_parallel.data_parallel_sharding_strategy", "data_parallel.use_torch_fsdp2",
        "data_parallel.reshard_after_forward", "data_parallel.fsdp_prefetch_units",
        "parallel.use_distributed_optimizer"}},
      {"reshard_after_forward off", {"data_parallel.reshard_after_forward"}},
      {"fsdp_prefetch_units", {"data_parallel.fsdp_prefetch_units"}},
      {"distributed optimizer instances", {"data_parallel.num_distributed_optimizer_instances"}},
      {"bucket_size", {"data_parallel.bucket_size"}},
      {"grad_reduce_in_fp32 off", {"data_parallel.grad_reduce_in_fp32"}},
      {"overlap_grad_reduce", {"data_parallel.overlap_grad_reduce"}},
      {"overlap_param_gather", {"data_parallel.overlap_param_gather"}},
      {"align_param_gather", {"data_parallel.align_param_gather"}},
      {"overlap_param_gather_with_optimizer_step", {"data_parallel.overlap_param_gather_with_optimizer_step"}},
      {"pipeline messages", {"overlap.overlap_p2p_comm", "overlap.batch_p2p_comm"}},
      {"tp_comm_overlap_cfg", {"overlap.tp_comm_overlap_cfg"}},
      {"recompute_method", {"memory.recompute_method", "memory.recompute_num_layers"}},
  };
  return all;
}

// The configuration without a choice, where it was made.
std::optional<Config> without(const Choice& choice, const Layout& layout) {
  Config config = layout.config;
  KnobSources sources;
  for (const std::string& key : choice.knobs) {
    const Knob& knob = **knobs().find(key);
    const Status set = knobs().set_text(config, sources, key, knobs().default_text(knob), {});
    MB_CHECK(set.has_value(), "a default is a value: " + key);
  }
  if (knobs().to_lines(config) == knobs().to_lines(layout.config)) return std::nullopt;
  return config;
}

}  // namespace

std::span<const Choice> choices() {
  return all_choices();
}

void add_choice_effects(const Layout& layout, StepPrograms& programs) {
  const auto told = [&](const std::string& knob) {
    return std::any_of(programs.effects.begin(), programs.effects.end(), [&](const auto& effects) {
      return std::any_of(effects.begin(), effects.end(), [&](const PassEffect& e) { return e.knob == knob; });
    });
  };
  for (const Choice& choice : choices()) {
    if (told(choice.knobs.front())) continue;  // by its pass
    const std::optional<Config> config = without(choice, layout);
    if (!config) continue;
    const auto other = resolve(*config);
    if (!other || knobs().to_lines(other->config) == knobs().to_lines(layout.config)) continue;
    const auto built = build_programs(*other);
    if (!built) continue;
    MB_CHECK(built->programs.size() == programs.programs.size(),
             choice.row + " changes how many rank classes there are");
    for (size_t i = 0; i < programs.programs.size(); ++i) {
      PassEffect effect{choice.row, choice.knobs.front(), pass_facts(built->programs[i]),
                        pass_facts(programs.programs[i]),
                        op_edits(op_marks(built->programs[i]), op_marks(programs.programs[i]))};
      effect.before.arena_bytes = built->plans[i].arena_bytes;
      effect.after.arena_bytes = programs.plans[i].arena_bytes;
      if (effect.changed()) programs.effects[i].push_back(std::move(effect));
    }
  }
}

}  // namespace mbb::trainer
