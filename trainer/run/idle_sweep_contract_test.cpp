// Families under mappings and with what their knobs go with: no knob is accepted, changes nothing of program, plan,
// launch or rows whatever its value, and says nothing. Every name of a knob that lists parts of the model does
// something.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "profiler/base/text.h"
#include "trainer/execute/executor.h"
#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"
#include "trainer/run/launch_environment.h"
#include "trainer/run/settings_test.h"
#include "trainer/run/step_programs.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

struct Around {
  const char* name;
  Settings settings;
};

void PrintTo(const Around& around, std::ostream* out) {
  *out << around.name;
}

// One that a family refuses is skipped there; each is some family's (the second test).
const Around kArounds[] = {
    {"one", {}},
    {"tp2", {"tp=2"}},
    {"tp2_whole_sequence", {"tp=2", "sp=false"}},
    {"tp2_pp2_dp2", {"tp=2", "pp=2", "gpus=8", "recipe=bf16"}},
    {"cp2_dp2", {"cp=2", "gpus=4", "seq_length=16", "encoder_seq_length=12"}},
    {"cp4", {"cp=4", "cp_comm_type=a2a+p2p", "hierarchical_context_parallel_sizes=2,2", "recipe=bf16"}},
    {"vpp2", {"pp=2", "vpp=2", "layers=4", "mbs=1"}},
    {"fsdp", {"gpus=2", "fsdp=true", "recipe=bf16"}},
    {"sharded_gradients", {"gpus=2", "sharding_strategy=optim_grads"}},
    {"nothing_sharded", {"gpus=2", "use_distributed_optimizer=false"}},
    {"overlap", {"gpus=2", "overlap_param_gather=true", "overlap_grad_reduce=true"}},
    {"selective", {"recompute_granularity=selective"}},
    {"full", {"recompute_granularity=full"}},
    {"offload", {"cpu_offloading=true"}},
    {"lora", {"lora_rank=4", "lora_targets=proj", "gpus=2"}},
    {"frozen", {"frozen=layers.*", "gpus=2"}},
    {"unfused", {"attention_backend=unfused"}},
    {"padded", {"sequences=lognormal", "vocab_size=256", "mbs=1"}},
    {"packed", {"sequences=lognormal", "vocab_size=256", "packed_sequence_size=32", "mbs=1"}},
    {"fp8_delayed", {"recipe=fp8_delayed"}},
    {"fp8_dp2", {"recipe=fp8_current", "gpus=2"}},
    {"fp8_overlap", {"recipe=fp8_current", "tp=2", "tp_comm_overlap=true"}},
    {"aware", {"recipe=bf16", "use_precision_aware_optimizer=true"}},
    {"tp_overlap", {"tp=2", "tp_comm_overlap=true"}},
    {"ep2", {"ep=2", "etp=1"}},
    {"ep2_tp2", {"ep=2", "tp=2", "etp=1"}},
    {"ep2_capacity", {"ep=2", "etp=1", "moe_expert_capacity_factor=1"}},
    {"ep2_overlap", {"ep=2", "etp=1", "overlap_moe_expert_parallel_comm=true", "mbs=1", "gbs=8"}},
    {"forced", {"moe_router_force_load_balancing=true"}},
    {"encoder", {"encoder_pipeline_model_parallel_size=1", "tp=2"}},
    {"dropout", {"hidden_dropout=0.1", "attention_dropout=0.1"}},
    {"cuda", {"host.device=cuda"}},
};

// Read while steps run, whatever the program is (KnobEffects shows that they are), or checks that refuse and change
// nothing.
const std::set<std::string, std::less<>> kRead{
    "model.name",          "train.seed",
    "train.train_iters",   "optimizer.lr",
    "optimizer.min_lr",    "optimizer.lr_warmup_iters",
    "optimizer.clip_grad", "optimizer.lr_decay_style",
    "data.kind",           "data.path",
    "memory.limit_gib",    "parallel.nvlink_domain_size",
    "host.cpu_binding",    "host.vboost",
    "host.device",         "host.manual_gc_interval",
    "debug.nan_trace",     "optimizer.init_method_std",
    "debug.inject_fault",  "debug.record_gradients",
    "host.share_device",   "host.no_progress_limit_s",
};

// Names, each of which has to do something beside `with`, and what is said without any.
struct Names {
  std::vector<std::string> all;
  std::string with;
  Settings none;
};
const std::map<std::string, Names> kNames{
    {"memory.recompute_modules",
     {{"core_attn", "layernorm", "act", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj"},
      "recompute_granularity=selective",
      {"recompute_granularity=none", "recompute_modules=core_attn"}}},
    {"memory.lora_targets",
     {{"qkv", "proj", "fc1", "fc2", "q", "kv", "q_down", "q_up", "kv_up", "kv_down"},
      "lora_rank=4",
      {"lora_rank=0", "lora_targets=qkv,proj"}}},
    {"memory.frozen", {{"embedding.*", "layers.0.*", "*norm*", "*experts*", "final*"}, "lora_rank=0", {"frozen="}}},
};

Status set(Config& config, const std::string& setting) {
  KnobSources sources;
  const size_t equals = setting.find('=');
  return knobs().set_text(config, sources, setting.substr(0, equals), setting.substr(equals + 1),
                          {Layer::kCommandLine, "test", 0, 0});
}

struct Seen {
  std::string what;  // program, plan, launch, rows; or why there is none
  std::set<std::string> idle;
  std::optional<Config> in_force;
};

Seen observe(const Config& config) {
  const auto layout = resolve(config);
  if (!layout) return {"refused: " + layout.error().what, {}, {}};
  const auto programs = build_programs(*layout);
  if (!programs) return {"refused: " + programs.error().what, {}, {}};
  Seen seen{program_hash(*programs), {}, layout->config};
  for (const std::vector<IdleKnob>* idle : {&layout->idle, &programs->idle})
    for (const IdleKnob& knob : *idle) seen.idle.insert(knob.key);
  for (const auto& [name, value] : launch_environment(config)) seen.what += " " + name + "=" + value;
  const profiler::CudaRankRequest device = rank_request(config.host);
  seen.what += fmt::format(" {} {} {} {} {}", device.graphs, device.graph_scope, device.deterministic, device.side_sms,
                           device.tuning_file);
  for (const MemoryPlan& plan : programs->plans) {
    seen.what += fmt::format(" {} {} {}", plan.arena_bytes, plan.host_bytes, plan.graph_bytes);
    for (const std::vector<int64_t>& offsets : plan.offsets) seen.what += fmt::format(" {}", fmt::join(offsets, ","));
  }
  if (!layout->has_sequences()) return seen;
  const auto rows = open_sequences(*layout);
  if (!rows) return {"refused: " + rows.error().what, {}, {}};
  for (int64_t i = 0; i < 32; ++i) seen.what += fmt::format(" {}/{}", rows->facts(i).tokens, rows->facts(i).squares);
  return seen;
}

// Until one of them does something.
std::vector<std::string> values_of(const Knob& knob, const Config& config) {
  if (const auto names = kNames.find(knob.key); names != kNames.end()) return names->second.all;
  std::vector<std::string> values;
  for (const KnobChoice& choice : knob.choices) values.push_back(choice.name);
  if (!values.empty()) return values;
  switch (knob.field.type) {
    case KnobType::kBool: return {"true", "false"};
    case KnobType::kAutoBool: return {"auto", "true", "false"};
    case KnobType::kDouble: return {"0.000001", "0.25", "1", "2"};
    case KnobType::kInt: {
      const int64_t now = std::get<int64_t>(knob.get(&config));
      return {std::to_string(now + 1), std::to_string(2 * now), "1", "2", "4", "16", "100"};
    }
    default: break;
  }
  if (knob.key == "parallel.cp_comm_type") return {"all_gather", "a2a", "p2p"};
  if (knob.key == "parallel.hierarchical_context_parallel_sizes") return {"1,2", "2,2", "4,1"};
  if (knob.key == "overlap.tp_comm_overlap_cfg") return {"fc1_fprop.method=pipeline", "proj_fprop.method=bulk"};
  if (knob.key == "parallel.pipeline_layout") return {"Ett|L", "Et|tL", "Et|t|t|tL"};
  if (knob.key == "parallel.moe_router_replay") return {"record", "reference"};
  if (knob.key == "host.cuda_graph_scope") return {"attn"};
  if (knob.key == "host.gemm_tuning_file") return {"choices.txt"};
  ADD_FAILURE() << knob.key << ": which values does it have?";
  return {};
}

class IdleSweep : public testing::TestWithParam<std::tuple<Small, Around>> {
 protected:
  static std::optional<Config> base() {
    const auto& [family, around] = GetParam();
    Config config = config_of(family);
    config.train.train_iters = 12;
    if (config.model.encoder_num_layers > 0) config.train.micro_batch_size = 1;
    for (const std::string& setting : around.settings) {
      if (setting.starts_with("encoder_seq_length") && config.model.encoder_num_layers == 0) continue;
      EXPECT_TRUE(set(config, setting).has_value()) << setting;
    }
    return observe(config).in_force ? std::optional(config) : std::nullopt;
  }

  // A list of names: each by itself, against none.
  static void check_names(const std::string& key, const Names& names, const Config& base) {
    Config without = base;
    for (const std::string& setting : names.none) ASSERT_TRUE(set(without, setting).has_value()) << setting;
    const Seen none = observe(without);
    for (const std::string& name : names.all) {
      Config config = without;
      if (!set(config, names.with) || !set(config, key + "=" + name)) continue;
      const Seen seen = observe(config);
      EXPECT_TRUE(seen.what != none.what || seen.idle.contains(key) ||
                  seen.idle.contains("memory.recompute_granularity"))
          << key << " = " << name << " is accepted and does nothing";
    }
  }
};

TEST_P(IdleSweep, NothingIsAcceptedDoesNothingAndSaysNothing) {
  const auto config = base();
  if (!config) GTEST_SKIP() << "the family refuses it";
  const Seen was = observe(*config);
  const bool every_size = std::get<1>(GetParam()).settings.empty();
  for (const Knob& knob : knobs().knobs()) {
    if (kRead.contains(knob.key) || knob.section() == "profiling") continue;
    if (knob.section() == "model" && !every_size) continue;  // sizes are the family's
    if (config->packing.sequences != SequenceLengths::kStream && knob.section() != "packing" &&
        knob.section() != "train")
      continue;
    if (const auto names = kNames.find(knob.key); names != kNames.end()) {
      check_names(knob.key, names->second, *config);
      continue;
    }
    std::string silent;  // values
    for (const std::string& value : values_of(knob, *config)) {
      Config other = *config;
      if (!set(other, knob.key + "=" + value)) continue;
      const std::string text = knobs().text(other, knob.key);
      if (text == knobs().text(*config, knob.key) || text == knobs().text(*was.in_force, knob.key)) continue;
      const Seen is = observe(other);
      if (is.what != was.what || is.idle.contains(knob.key)) {
        silent.clear();
        break;
      }
      silent += (silent.empty() ? "" : ", ") + value;
    }
    EXPECT_EQ(silent, "") << knob.key << " is accepted with these and does nothing";
  }
}

// What each is for is in the list once, and the sweep of all with all would take minutes.
std::vector<std::tuple<Small, Around>> pairs() {
  std::vector<std::tuple<Small, Around>> all;
  for (const char* name : {"llama31", "gpt_untied", "mixtral", "deepseek_v3", "t5", "gpt_oss"})
    for (const Around& around : kArounds) all.emplace_back(family_of(name), around);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, IdleSweep, testing::ValuesIn(pairs()), [](const auto& test) {
  return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param).name;
});

TEST(IdleSweep, EveryAroundIsSomeFamilys) {
  for (const Around& around : kArounds) {
    bool taken = false;
    for (const char* name : {"llama31", "mixtral", "t5"}) {
      Config config = config_of(family_of(name));
      if (config.model.encoder_num_layers > 0) config.train.micro_batch_size = 1;
      for (const std::string& setting : around.settings)
        if (!setting.starts_with("encoder_seq_length")) static_cast<void>(set(config, setting));
      taken = taken || resolve(config).has_value();
    }
    EXPECT_TRUE(taken) << around.name;
  }
}

}  // namespace
}  // namespace mbb::trainer
