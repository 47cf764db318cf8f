// Fonts and ImGui style for a theme and a scale.
#pragma once

#include <string>

#include "viewer/theme/palette.h"

struct ImFont;

namespace mbb::viewer {

struct Fonts {
  ImFont* text = nullptr;
  ImFont* bold = nullptr;
  ImFont* mono = nullptr;   // op paths, identifiers
  ImFont* small = nullptr;  // axis labels, captions
  std::string source;       // the file the text face came from, or "embedded"
};

// Loads the first font family found on this machine (embedded bitmap font where none is), rasterised for `scale`.
// Needs an ImGui context; call again after the scale changed and before the next frame.
const Fonts& load_fonts(float scale);
const Fonts& fonts();

// Applies spacing and colours; `scale` multiplies every length.
void apply_style(Theme theme, float scale);

// Design pixels to screen pixels, at the scale in force.
float px(float design_pixels);
float scale();

}  // namespace mbb::viewer
