// From a configuration to its twin: what is kept, what is made small, and the words for it.
#include "suites/runner/twin.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "profiler/base/text.h"
#include "trainer/program/explain.h"
#include "trainer/run/layout.h"
#include "trainer/run/pipeline_layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

using trainer::Config;
using trainer::Layout;

int64_t ceil_to(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// "tp 8 → 4" for each number that became another.
class Changes {
 public:
  void add(const char* what, int64_t before, int64_t after) {
    if (before != after) parts_.push_back(fmt::format("{} {} → {}", what, before, after));
  }
  void say(std::string part) { parts_.push_back(std::move(part)); }
  std::string text() const { return parts_.empty() ? "nothing reduced" : join(parts_, ", "); }

 private:
  std::vector<std::string> parts_;
};

struct Sizes {
  int64_t tp = 1, cp = 1, pp = 1, ep = 1, etp = 1, dp = 1;

  // Data-parallel sizes are multiples of this: experts lie over whole tp · cp · dp ranks of a stage.
  int64_t dp_unit(int64_t instances) const {
    const int64_t dense = tp * cp;
    return std::lcm(std::lcm(dense, ep * etp) / dense, instances);
  }
};

int64_t world(const Sizes& s, int64_t dp, const Layout& l) {
  const auto& p = l.config.parallel;
  const int64_t encoder_tp = p.encoder_tensor_model_parallel_size > 0 ? p.encoder_tensor_model_parallel_size : s.tp;
  return dp * s.cp * (s.tp * s.pp + encoder_tp * p.encoder_pipeline_model_parallel_size);
}

// The largest size that leaves one of two or more when it is halved.
int64_t* largest(Sizes& s) {
  int64_t* found = nullptr;
  for (int64_t* size : {&s.ep, &s.pp, &s.tp, &s.cp, &s.etp})
    if (*size >= 4 && (found == nullptr || *size > *found)) found = size;
  return found;
}

Sizes reduced(const Layout& l) {
  Sizes s{l.tp, l.cp, l.pp, l.ep, l.etp, l.dp};
  const int64_t instances = l.config.data_parallel.num_distributed_optimizer_instances;
  while (world(s, s.dp_unit(instances), l) > kTwinRanks) {
    int64_t* size = largest(s);
    if (size == nullptr) break;
    *size /= 2;
  }
  const int64_t unit = s.dp_unit(instances), most = std::max<int64_t>(1, kTwinRanks / world(s, 1, l));
  if (s.dp > most || s.dp % unit != 0) s.dp = std::max(unit, std::min(most, s.dp) / unit * unit);
  return s;
}

// Numbers, data and observation: fp32, a few steps, nothing of this machine.
void plain_numbers(Config& c) {
  c.precision = {};
  c.optimizer.use_precision_aware_optimizer = false;
  c.optimizer.main_params_dtype = c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = trainer::StateType::kFp32;
  c.parallel.moe_fp8_dispatch = false;
  c.data_parallel.grad_reduce_in_fp32 = true;
  KnobMap sites;
  for (const auto& [entry, value] : c.tp_overlap.tp_comm_overlap_cfg)
    if (!entry.ends_with(".fp8_buf")) sites[entry] = value;
  c.tp_overlap.tp_comm_overlap_cfg = std::move(sites);
  c.data = {};
  c.data.kind = trainer::DataKind::kSynthetic;
  c.host = {};
  c.profiling = {};
  c.profiling.profile_step_start = c.profiling.profile_step_end = 0;
  c.debug = {};
  c.debug.record_gradients = true;
  c.train.train_iters = kTwinSteps;
  c.optimizer.lr = 1e-3;
  c.optimizer.min_lr = 1e-4;
  c.optimizer.lr_warmup_iters = 1;
  c.memory.limit_gib = 0;
  c.parallel.nvlink_domain_size = 0;
  c.parallel.moe_router_replay.clear();
}

// Layers of each chunk: one, two in the chunks that had more than the others.
std::string small_layout(const std::vector<trainer::ChunkParts>& chunks, int64_t& layers) {
  int64_t fewest = 0;
  for (const auto& chunk : chunks)
    if (chunk.layers > 0) fewest = fewest == 0 ? chunk.layers : std::min(fewest, chunk.layers);
  std::string text;
  layers = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t kept = chunks[i].layers == 0 ? 0 : chunks[i].layers == fewest ? 1 : 2;
    layers += kept;
    if (i > 0) text += '|';
    if (chunks[i].embedding) text += 'E';
    text.append(static_cast<size_t>(kept), 't');
    text.append(static_cast<size_t>(chunks[i].mtp_layers), 'm');
    if (chunks[i].loss) text += 'L';
  }
  return text;
}

Status small_pipeline(const Layout& l, const Sizes& s, Config& c, Changes& changes) {
  auto& p = c.parallel;
  int64_t layers = 0;
  if (!p.pipeline_layout.empty() && s.pp == l.pp) {
    MB_ASSIGN(const auto chunks, trainer::parse_pipeline_layout(p.pipeline_layout));
    p.pipeline_layout = small_layout(chunks, layers);
  } else {
    if (!p.pipeline_layout.empty()) changes.say("pipeline_layout → equal chunks");
    p.pipeline_layout.clear();
    p.virtual_pipeline_model_parallel_size = l.vpp;
    // Recompute and offload by number of layers need some to count.
    const bool counted = c.memory.recompute_num_layers > 1 || c.memory.cpu_offloading;
    const int64_t chunks = s.pp * l.vpp;
    const int64_t alone = l.model.moe.first_dense_layers > 0 ? 3 : 2;  // of one chunk
    const int64_t each = chunks == 1 ? alone : counted ? 2 : 1;
    const int64_t taken =
        (p.account_for_embedding_in_pipeline_split ? 1 : 0) + (p.account_for_loss_in_pipeline_split ? 1 : 0);
    layers = chunks * each;
    if (taken > 0) layers = chunks * (each + 1) - taken;
  }
  changes.add("layers", l.model.num_layers, layers);
  c.model.num_layers = layers;
  c.memory.recompute_num_layers = std::min<int64_t>(c.memory.recompute_num_layers, 2);
  c.memory.cpu_offloading_num_layers = std::min<int64_t>(c.memory.cpu_offloading_num_layers, 1);
  p.microbatch_group_size_per_virtual_pipeline_stage = 0;
  // One communication type a layer: those of the first ones.
  if (p.cp_comm_type.find(',') != std::string::npos) {
    std::vector<std::string> types;
    for (const std::string_view type : split(p.cp_comm_type, ',')) types.emplace_back(type);
    std::vector<std::string> kept;
    for (size_t i = 0; i < static_cast<size_t>(layers); ++i) kept.push_back(types[i % types.size()]);
    p.cp_comm_type = join(kept, ",");
  }
  return {};
}

// Heads that divide over TP and over the ranks of an all-to-all of context parallelism.
void small_heads(const Layout& l, const Sizes& s, Config& c) {
  const bool by_heads = std::any_of(l.cp_comm.begin(), l.cp_comm.end(), [](trainer::CpComm comm) {
    return comm == trainer::CpComm::kA2a || comm == trainer::CpComm::kA2aP2p;
  });
  const int64_t parts = s.tp * (by_heads ? s.cp : 1);
  const bool grouped = l.model.num_query_groups < l.model.num_attention_heads;
  const int64_t groups = std::max<int64_t>(2, parts);
  c.model.num_attention_heads = ceil_to(std::max<int64_t>(4, groups * (grouped ? 2 : 1)), parts);
  if (l.model.is_mla()) {
    c.model.num_query_groups = 0;
    c.model.q_lora_rank = l.model.mla.q_lora_rank > 0 ? 12 : 0;
    c.model.kv_lora_rank = 8;
    c.model.qk_head_dim = 8;
    c.model.qk_pos_emb_head_dim = 4;
    c.model.v_head_dim = 6;
    c.model.kv_channels = 0;
    return;
  }
  c.model.num_query_groups = grouped ? groups : c.model.num_attention_heads;
  c.model.kv_channels = 8;
}

void small_model(const Layout& l, const Sizes& s, Config& c, Changes& changes) {
  auto& m = c.model;
  changes.add("hidden", l.model.hidden_size, 32);
  m.hidden_size = 32;
  m.ffn_hidden_size = ceil_to(48, s.tp);
  small_heads(l, s, c);
  m.vocab_size = ceil_to(64, s.tp);
  m.make_vocab_size_divisible_by = 1;  // the table is the same for one rank
  m.max_position_embeddings = 0;
  if (l.model.sliding_window > 0) m.window_size = 5;
  if (l.model.is_encoder_decoder()) m.encoder_num_layers = 2;
  if (!l.model.is_moe()) return;
  const auto& moe = l.model.moe;
  m.moe_router_num_groups = moe.num_groups > 1 ? 4 : 0;
  m.moe_router_group_topk = moe.num_groups > 1 ? 2 : 0;
  m.moe_router_topk = std::min<int64_t>(moe.top_k, 3);
  m.num_experts = std::min(moe.num_experts, ceil_to(std::max<int64_t>(8, 2 * s.ep), std::lcm(s.ep, int64_t{4})));
  changes.add("experts", moe.num_experts, m.num_experts);
  m.moe_ffn_hidden_size = ceil_to(24, s.etp);
  if (moe.shared_ffn_hidden_size > 0) m.moe_shared_expert_intermediate_size = ceil_to(24, s.tp);
  if (moe.first_dense_layers > 0) m.moe_first_dense_layers = 1;
}

// Slots of the worst case, where so few tokens are not balanced: forced balance deals a rank's rows out in turn.
void roomy_slots(const Sizes& s, Config& c) {
  const int64_t tokens = c.train.micro_batch_size * c.train.seq_length / (s.cp * s.tp);
  const bool balanced = c.parallel.moe_router_force_load_balancing &&
                        tokens * c.model.moe_router_topk % std::max<int64_t>(1, c.model.num_experts) == 0;
  if (!balanced) c.parallel.moe_dropless_bound = 0;
}

void small_batch(const Layout& l, const Sizes& s, Config& c, Changes& changes) {
  auto& t = c.train;
  t.micro_batch_size = std::min<int64_t>(t.micro_batch_size, 2);
  changes.add("micro-batch", l.micro_batch, t.micro_batch_size);
  int64_t micro_batches = std::min<int64_t>(l.micro_batches, s.pp > 1 ? s.pp + 2 : 2);
  if (l.vpp > 1) micro_batches = s.pp * std::clamp<int64_t>(l.micro_batches / s.pp, 1, 2);
  changes.add("micro-batches", l.micro_batches, micro_batches);
  t.global_batch_size = micro_batches * t.micro_batch_size * s.dp;
  // Each rank holds two chunks of a sequence, whose rows divide over sequence parallelism and, under its overlap, over
  // four splits. Attention takes the square of it.
  const int64_t splits = l.config.tp_overlap.tp_comm_overlap ? 4 : 1;
  const int64_t sequence = std::max<int64_t>(16, 2 * splits * s.tp * s.cp);
  changes.add("tokens", l.sequence, l.packed() ? 2 * sequence : sequence);
  t.seq_length = sequence;
  if (t.encoder_seq_length > 0) t.encoder_seq_length = sequence;
  if (l.packed()) c.packing.packed_sequence_size = 2 * sequence;
  c.packing.mean_length = 0;
  if (c.packing.max_sequences > 8 && l.packed()) c.packing.max_sequences = 8;
  if (c.data_parallel.bucket_size > 0) c.data_parallel.bucket_size = 4096;
  c.memory.lora_rank = std::min<int64_t>(c.memory.lora_rank, 4);
}

void map(const Layout& l, const Sizes& s, Config& c, Changes& changes) {
  auto& p = c.parallel;
  changes.add("tp", l.tp, s.tp);
  changes.add("cp", l.cp, s.cp);
  changes.add("pp", l.pp, s.pp);
  changes.add("ep", l.ep, s.ep);
  if (l.model.is_moe()) changes.add("etp", l.etp, s.etp);
  changes.add("dp", l.dp, s.dp);
  p.gpus = world(s, s.dp, l);
  p.tensor_model_parallel_size = s.tp;
  p.context_parallel_size = s.cp;
  p.pipeline_model_parallel_size = s.pp;
  p.expert_model_parallel_size = s.ep;
  if (l.model.is_moe()) p.expert_tensor_parallel_size = s.etp;
  if (p.hierarchical_context_parallel_sizes.size() == 2 && s.cp != l.cp)
    p.hierarchical_context_parallel_sizes = {2, s.cp / 2};
}

// The same work on one rank: no mapping, no overlap, no pass that saves memory or fuses.
Config alone_of(const Config& mapped) {
  const Config defaults;
  Config c = mapped;
  auto& p = c.parallel;
  p = defaults.parallel;
  p.moe_expert_capacity_factor = mapped.parallel.moe_expert_capacity_factor;
  p.moe_token_drop_policy = mapped.parallel.moe_token_drop_policy;
  p.moe_router_force_load_balancing = mapped.parallel.moe_router_force_load_balancing;
  c.data_parallel = defaults.data_parallel;
  c.overlap = defaults.overlap;
  c.tp_overlap = defaults.tp_overlap;
  c.fusion = defaults.fusion;
  auto& m = c.memory;
  m.recompute_granularity = defaults.memory.recompute_granularity;
  m.recompute_method = defaults.memory.recompute_method;
  m.recompute_num_layers = defaults.memory.recompute_num_layers;
  m.recompute_modules = defaults.memory.recompute_modules;
  m.cpu_offloading = m.cpu_offloading_weights = false;
  m.cpu_offloading_num_layers = 0;
  return c;
}

Result<std::string> hash_of(const Config& config, int& ranks) {
  MB_ASSIGN(const Layout layout, trainer::resolve(config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  ranks = layout.mesh.world_size();
  return fmt::format("{}-{}", trainer::program_hash(programs), ranks);
}

}  // namespace

Result<Twin> twin_of(const Config& config) {
  MB_ASSIGN(const Layout layout, trainer::resolve(config));
  const Sizes sizes = reduced(layout);
  Changes changes;
  Twin twin;
  twin.mapped = config;
  plain_numbers(twin.mapped);
  map(layout, sizes, twin.mapped, changes);
  MB_TRY(small_pipeline(layout, sizes, twin.mapped, changes));
  small_model(layout, sizes, twin.mapped, changes);
  small_batch(layout, sizes, twin.mapped, changes);
  roomy_slots(sizes, twin.mapped);
  if (config.precision.recipe != trainer::Recipe::kFp32) changes.say("in fp32");
  twin.reduction = changes.text();
  twin.alone = alone_of(twin.mapped);
  int one = 1;
  auto mapped = hash_of(twin.mapped, twin.ranks);
  if (!mapped) return tl::unexpected<Error>(std::move(mapped.error()).during("its twin (" + twin.reduction + ")"));
  twin.mapped_hash = std::move(*mapped);
  auto alone = hash_of(twin.alone, one);
  if (!alone) return tl::unexpected<Error>(std::move(alone.error()).during("its twin on one rank"));
  twin.alone_hash = std::move(*alone);
  return twin;
}

void add_twin_verdict(baselines::Cell& cell, const Twin& twin, const TwinEnd& end) {
  baselines::VerdictRow row;
  row.subject = kTwinSubject;
  row.verdict = end.verdict;
  row.against = "one rank";
  row.change = end.difference;
  row.text = fmt::format("{} ({} ranks: {})", end.text, twin.ranks, twin.reduction);
  if (end.verdict == baselines::Verdict::kBroken && cell.status == baselines::CellStatus::kOk) {
    cell.status = baselines::CellStatus::kBroken;
    cell.reason = "its twin does not train as one rank does: " + end.text;
  }
  cell.verdicts.push_back(std::move(row));
}

void add_twin_verdict(baselines::Cell& cell, const Error& no_twin) {
  baselines::VerdictRow row;
  row.subject = kTwinSubject;
  row.verdict = baselines::Verdict::kInconclusive;
  row.against = "one rank";
  row.text = "no twin: " + no_twin.what;
  cell.verdicts.push_back(std::move(row));
}

}  // namespace mbb::suites
