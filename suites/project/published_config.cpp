// Rows of the published table as knobs.
#include "suites/project/published_config.h"

#include <fmt/core.h>

#include "trainer/models/model.h"

namespace mbb::suites {
namespace {

using baselines::PublishedRow;
using trainer::Config;
using trainer::Recipe;

tl::unexpected<Error> unusable(std::string reason) {
  return fail(ErrorCode::kUnavailable, std::move(reason));
}

bool is_bridge(const PublishedRow& row) {
  return row.source.find("Megatron-Bridge") != std::string::npos;
}

// Sources of NVIDIA's Megatron stack: their recipes are published, so that what a row leaves out is known.
bool is_megatron(const PublishedRow& row) {
  return is_bridge(row) || row.release.starts_with("NeMo 2") || row.release.starts_with("dgxc");
}

Result<Recipe> recipe_of(const PublishedRow& row) {
  if (row.precision == "bf16") return Recipe::kBf16;
  if (row.precision == "fp8_current") return Recipe::kFp8Current;
  if (row.precision == "fp8_blockwise") return Recipe::kFp8Blockwise;
  if (row.precision == "mxfp8") return Recipe::kMxfp8;
  // Bridge's default FP8 on this card is current scaling; NeMo's before it was delayed scaling.
  if (row.precision == "fp8") return is_bridge(row) ? Recipe::kFp8Current : Recipe::kFp8Delayed;
  return unusable(fmt::format("precision {}", row.precision));
}

// What the trainer's public recipes for this card set beside the mapping, by model.
struct RecipeFacts {
  std::string_view model;
  bool overlaps_exchanges = false;     // all-to-all under another micro-batch
  std::string_view recompute_modules;  // selective
  int64_t recompute_layers = 0;        // whole layers, with full sharding
};
constexpr RecipeFacts kRecipes[] = {
    {.model = "qwen3-235b-a22b", .overlaps_exchanges = true},
    {.model = "gpt-oss-120b", .recompute_modules = "layernorm,moe_act"},
    {.model = "llama3-8b", .recompute_layers = 5},
};

RecipeFacts facts_of(const PublishedRow& row) {
  RecipeFacts facts;
  for (const RecipeFacts& known : kRecipes)
    if (known.model == row.model_id) facts = known;
  // The main branch's document of 2026 says it of its rows.
  if (row.release.starts_with("main")) facts.overlaps_exchanges = true;
  return facts;
}

void set_experts(const PublishedRow& row, Config& config) {
  trainer::ParallelConfig& p = config.parallel;
  p.expert_model_parallel_size = std::max<int64_t>(row.ep, 1);
  p.expert_tensor_parallel_size = std::max<int64_t>(row.etp, 1);
  p.moe_router_force_load_balancing = true;
  p.moe_dropless_bound = 1;  // with a balanced load no buffer is larger
  p.moe_router_fusion = true;
  const bool overlaps = facts_of(row).overlaps_exchanges && (row.vpp > 1 || row.pp == 1);
  config.overlap.overlap_moe_expert_parallel_comm = config.overlap.delay_wgrad_compute = overlaps;
}

void set_recompute(const PublishedRow& row, Config& config) {
  const RecipeFacts facts = facts_of(row);
  if (!facts.recompute_modules.empty()) {
    config.memory.recompute_granularity = trainer::RecomputeGranularity::kSelective;
    config.memory.recompute_modules = facts.recompute_modules;
  }
  if (facts.recompute_layers > 0 && row.sharding.starts_with("FSDP")) {
    config.memory.recompute_granularity = trainer::RecomputeGranularity::kFull;
    config.memory.recompute_method = trainer::RecomputeMethod::kBlock;
    config.memory.recompute_num_layers = facts.recompute_layers;
  }
}

}  // namespace

// dgxc prints no interleaving where its recipe is NeMo's: the same model's other row with that mapping has it.
int64_t published_interleaving(const PublishedRow& row) {
  if (row.vpp > 0 || row.pp <= 1) return std::max<int64_t>(row.vpp, 1);
  for (const PublishedRow& other : baselines::published_rows())
    if (other.model_id == row.model_id && other.hardware == row.hardware && other.tp == row.tp && other.pp == row.pp &&
        other.vpp > 0 && is_megatron(other))
      return other.vpp;
  return is_bridge(row) ? 1 : 0;
}

bool overlaps_tensor_parallel(const PublishedRow& row) {
  return row.tp > 1 && row.ep <= 1;
}

Result<Config> published_config(const PublishedRow& row) {
  if (!is_megatron(row)) return unusable("another trainer");
  if (!row.variant.empty()) return unusable(fmt::format("variant {}", row.variant));
  const auto model = trainer::find_model(row.model_id);
  if (!model) return unusable(fmt::format("no model {} here", row.model_id));
  if (row.tp <= 0 || row.pp <= 0 || row.gpus <= 0 || row.global_batch <= 0 || row.micro_batch <= 0)
    return unusable("the mapping is not stated");
  if (!(row.tokens_per_s_per_gpu > 0)) return unusable("no tokens/s");
  const int64_t vpp = published_interleaving(row);
  if (vpp == 0) return unusable("the interleaving is not stated");
  Config config;
  config.model.name = row.model_id;
  config.train.micro_batch_size = row.micro_batch;
  config.train.global_batch_size = row.global_batch;
  config.train.seq_length = row.seq_length;
  MB_ASSIGN(config.precision.recipe, recipe_of(row));
  trainer::ParallelConfig& p = config.parallel;
  p.gpus = row.gpus;
  p.tensor_model_parallel_size = row.tp;
  p.pipeline_model_parallel_size = row.pp;
  p.context_parallel_size = std::max<int64_t>(row.cp, 1);
  p.virtual_pipeline_model_parallel_size = vpp;
  const int64_t slots = row.pp * vpp;
  if (model->num_layers % slots != 0 && (model->num_layers + 2) % slots == 0)
    p.account_for_embedding_in_pipeline_split = p.account_for_loss_in_pipeline_split = true;
  if (model->is_moe()) set_experts(row, config);
  trainer::DataParallelConfig& d = config.data_parallel;
  d.overlap_grad_reduce = d.overlap_param_gather = true;
  d.grad_reduce_in_fp32 = false;
  if (row.sharding.starts_with("FSDP"))
    d.data_parallel_sharding_strategy = trainer::ShardingStrategy::kOptimGradsParams;
  set_recompute(row, config);
  config.fusion.cross_entropy_loss_fusion = row.tp == 1;
  return config;
}

}  // namespace mbb::suites
