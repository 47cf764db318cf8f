// A small button in a line of text: one of a few choices, or a switch.
#pragma once

#include <string>

namespace mbb::viewer {

// True when pressed. `on`: the choice that holds now, told by an edge as well as by its colour. "label##id" as in
// ImGui.
bool pill(const std::string& label, bool on = false);

}  // namespace mbb::viewer
