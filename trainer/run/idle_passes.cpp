// By what passes and plans left as it was.
#include "trainer/run/idle_passes.h"

#include <map>
#include <string>

#include "trainer/run/knobs.h"

namespace mbb::trainer {
namespace {

// Passes that were asked for and changed no program are the knobs' that do nothing here; what changed one is kept.
void settle_effects(const Layout& layout, StepPrograms& built) {
  std::map<std::string, bool> changed;  // by knob
  for (const std::vector<PassEffect>& effects : built.effects)
    for (const PassEffect& effect : effects) changed[effect.knob] = changed[effect.knob] || effect.changed();
  for (const auto& [key, any] : changed)
    if (!any) built.idle.push_back({key, knobs().text(layout.config, key), "an op that it applies to"});
  for (std::vector<PassEffect>& effects : built.effects)
    std::erase_if(effects, [](const PassEffect& effect) { return !effect.changed(); });
}

// memory.avoid_record_streams = false where every buffer would stay where it is.
void note_idle_release(StepPrograms& built) {
  PlanOptions usual = built.plans.front().options;
  if (usual.release_comm) return;
  usual.release_comm = true;
  for (size_t i = 0; i < built.programs.size(); ++i)
    if (plan_memory(built.programs[i], usual).offsets != built.plans[i].offsets) return;
  built.idle.push_back(
      {"memory.avoid_record_streams", "false", "a communication buffer that could be free before its call ends"});
}

}  // namespace

void note_idle_passes(const Layout& layout, StepPrograms& built) {
  settle_effects(layout, built);
  note_idle_release(built);
}

}  // namespace mbb::trainer
