// Lays scripted input over ImGui's input state: shared by both stages, called between the backend's and ImGui's frame.
#pragma once

#include "viewer/app/stage.h"

namespace mbb::viewer {

void apply_scripted(const ScriptedInput& input);
// ImGui's named keys, numbered as widgets/keys.h numbers them.
void map_keys();

}  // namespace mbb::viewer
