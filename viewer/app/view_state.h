// What the viewer remembers from one start to the next: panel, theme, navigator, window size.
#pragma once

#include <filesystem>
#include <string>

#include "profiler/base/error.h"
#include "viewer/panels/session.h"

namespace mbb::viewer {

struct ViewState {
  std::string panel = "runs";
  Theme theme = Theme::kDark;
  bool navigator_open = true;
  int width = 1440;
  int height = 900;
  std::string knob_x, knob_y;
};

// $XDG_STATE_HOME/mbbench/view, else ~/.local/state/mbbench/view; empty where neither is known.
std::filesystem::path view_state_file();

// What is missing, unknown or out of range keeps its default: a damaged file never keeps the viewer from opening.
ViewState parse_view_state(const std::string& text);
std::string view_state_text(const ViewState& state);

ViewState load_view_state(const std::filesystem::path& file);
Status save_view_state(const std::filesystem::path& file, const ViewState& state);

}  // namespace mbb::viewer
