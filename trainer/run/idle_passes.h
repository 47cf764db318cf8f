// Passes that were asked for and found nothing to change.
#pragma once

#include "trainer/run/step_programs.h"

namespace mbb::trainer {

// Lists the knobs of passes that changed no program of `built`, and of a plan that is as it is without the knob, in
// built.idle; of built.effects those stay that changed their class's program. Programs and plans are there.
void note_idle_passes(const Layout& layout, StepPrograms& built);

}  // namespace mbb::trainer
