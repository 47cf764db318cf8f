// What builders choose as they build, told like a pass: the step beside the same step without the choice.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

// A row of explain's summary: the first knob is named, and all of them have their defaults in the step without it.
struct Choice {
  std::string row;  // "LoRA"
  std::vector<std::string> knobs;
};
std::span<const Choice> choices();

// Builds and plans the step once more for each choice that `layout` makes, without that one alone, and adds what
// differs to the effects of `programs`; a choice that changes nothing adds nothing. A choice that others cannot do
// without is left out.
void add_choice_effects(const Layout& layout, StepPrograms& programs);

}  // namespace mbb::trainer
