// The table of needs, and what becomes of knobs whose needs do not hold.
#include "trainer/run/knob_needs.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "trainer/run/knobs.h"
#include "trainer/run/layout_rules.h"

namespace mbb::trainer {
namespace {

// Where residual_fusion finds its patterns: the gradient of a norm before a sum, a product whose output is summed as
// it is.
bool has_bare_sums(const Layout& l) {
  if (l.model.norm == NormKind::kRms) return true;
  const bool between = l.tp > 1 || l.config.train.hidden_dropout > 0 || l.config.memory.lora_rank > 0;
  return !between && (!l.model.attention_out_bias || (has_dense_mlp(l.model) && !l.model.mlp_bias));
}

constexpr std::array kNeeds{
    KnobNeed{needs::kExperts, [](const Layout& l) { return l.model.is_moe(); }, Unmet::kRefused},
    KnobNeed{needs::kEncoder, [](const Layout& l) { return l.model.is_encoder_decoder(); }, Unmet::kRefused},
    KnobNeed{needs::kEp, [](const Layout& l) { return l.ep > 1; }, Unmet::kDefault},
    KnobNeed{needs::kExchange, [](const Layout& l) { return l.exchanges_tokens(); }, Unmet::kDefault},
    KnobNeed{needs::kCapacity, [](const Layout& l) { return l.config.parallel.moe_expert_capacity_factor > 0; },
             Unmet::kDefault},
    KnobNeed{needs::kDropless,
             [](const Layout& l) { return l.config.parallel.moe_expert_capacity_factor == 0 || l.tp > 1; },
             Unmet::kDefault},
    KnobNeed{needs::kPp, [](const Layout& l) { return l.pp > 1; }, Unmet::kDefault},
    KnobNeed{needs::kMessages, [](const Layout& l) { return l.pipeline_depth() > 1; }, Unmet::kDefault},
    KnobNeed{needs::kDataParallel, has_replicas, Unmet::kDefault},
    KnobNeed{needs::kReduced, [](const Layout& l) { return has_replicas(l) || l.sequence_parallel; }, Unmet::kDefault},
    KnobNeed{needs::kWholeGradients, [](const Layout& l) { return !l.shards_gradients(); }, Unmet::kDefault},
    KnobNeed{needs::kLearnedPositions, [](const Layout& l) { return l.model.position == PositionKind::kLearned; },
             Unmet::kDefault},
    KnobNeed{needs::kDenseMlp, [](const Layout& l) { return has_dense_mlp(l.model); }, Unmet::kDefault},
    KnobNeed{needs::kBareSums, has_bare_sums, Unmet::kDefault},
    KnobNeed{needs::kCp, [](const Layout& l) { return l.cp > 1; }, Unmet::kDefault},
    KnobNeed{needs::kWholeVocabulary, [](const Layout& l) { return l.tp == 1; }, Unmet::kDefault},
    KnobNeed{needs::kOneLoss, [](const Layout& l) { return l.model.num_mtp_layers == 0; }, Unmet::kDefault},
    KnobNeed{needs::kDecay, [](const Layout& l) { return l.config.optimizer.lr_decay_style != LrDecay::kConstant; },
             Unmet::kKept},
    KnobNeed{needs::kStepsAfterWarmup,
             [](const Layout& l) { return l.config.train.train_iters > l.config.optimizer.lr_warmup_iters; },
             Unmet::kKept},
    KnobNeed{needs::kAmaxHistory, [](const Layout& l) { return l.config.precision.fp8_amax_history_len > 1; },
             Unmet::kDefault},
    // Kept, since a configuration that names the CPU may be projected onto a card.
    KnobNeed{needs::kGpu, [](const Layout& l) { return l.config.host.device == Device::kCuda; }, Unmet::kKept},
};

const KnobNeed& need_of(const Knob& knob, const std::string& words) {
  const auto* const found =
      std::find_if(kNeeds.begin(), kNeeds.end(), [&](const KnobNeed& n) { return words == n.words; });
  MB_CHECK(found != kNeeds.end(), knob.key + " needs what no condition is: " + words);
  return *found;
}

// The first need that does not hold; null where all do.
const KnobNeed* unmet_of(const Knob& knob, const Layout& layout) {
  for (const std::string& words : knob.needs)
    if (const KnobNeed& need = need_of(knob, words); !need.holds(layout)) return &need;
  return nullptr;
}

bool asks_for_nothing(const std::string& value) {
  return value == "false" || value == "0";
}

}  // namespace

bool has_replicas(const Layout& l) {
  return l.dp * l.cp > 1 || (l.model.is_moe() && l.mesh.edp() > 1);
}

std::span<const KnobNeed> knob_needs() {
  return kNeeds;
}

Status settle_idle_knobs(const Config& asked, Layout& layout) {
  // All are judged before one is changed: a need may rest on another knob.
  std::vector<const Knob*> idle;
  for (const Knob& knob : knobs().knobs()) {
    const KnobNeed* const unmet = unmet_of(knob, layout);
    if (unmet == nullptr) continue;
    const std::string value = knob_text(knob.get(&asked)), usual = knobs().default_text(knob);
    if (value != usual && unmet->unmet == Unmet::kRefused && !asks_for_nothing(value))
      return fail(
          ErrorCode::kBadArgument,
          fmt::format("{} = {} needs {}, and model {} is none", knob.key, value, unmet->words, layout.model.name),
          "leave it out, or choose another model.name");
    if (value != usual) layout.idle.push_back({knob.key, value, unmet->words});
    if (unmet->unmet != Unmet::kKept) idle.push_back(&knob);
  }
  KnobSources sources;
  for (const Knob* knob : idle)
    MB_TRY(knobs().set_text(layout.config, sources, knob->key, knobs().default_text(*knob), {}));
  return {};
}

std::string describe(const IdleKnob& knob) {
  return fmt::format("{} = {} (needs {})", knob.key, knob.value, knob.needs);
}

}  // namespace mbb::trainer
