// The search field at the head of a panel.
#pragma once

#include <array>
#include <string>

#include "viewer/panels/session.h"

namespace mbb::viewer {

// Ctrl+F moves the focus into it, Escape empties it. True when the text changed.
bool draw_search(Session& session, const char* id, const char* advice, std::string& text, float width);

}  // namespace mbb::viewer
