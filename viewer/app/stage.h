// Where frames are shown: a window with OpenGL, or nowhere at all (tests of state need no display).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "viewer/app/image.h"

namespace mbb::viewer {

// Input of one frame that a script makes; fields that are not set leave the real devices in charge.
struct ScriptedInput {
  bool active = false;
  float mouse_x = -1, mouse_y = -1;
  bool mouse_down = false;
  bool right_down = false;
  float wheel = 0;
  bool ctrl = false, shift = false;
  std::vector<int> keys;  // held down during the frame
  std::string text;       // typed
};

class Stage {
 public:
  virtual ~Stage() = default;
  // Runs one frame: input, `draw`, present. `draw` uses ImGui.
  virtual void frame(const ScriptedInput& input, const std::function<void()>& draw) = 0;
  // Waits until there is input, a wake-up, or `seconds` have passed (negative: no limit). True when there was input.
  virtual bool wait(double seconds) = 0;
  virtual bool closed() const = 0;
  // Ends a wait(); from any thread.
  virtual void wake() = 0;
  // Content scale of the screen the window is on.
  virtual float screen_scale() const = 0;
  // The fonts were replaced: upload them before the next frame.
  virtual void fonts_changed() = 0;
  virtual Status resize(int width, int height) = 0;
  // What the last frame showed; kUnavailable on a stage without pixels.
  virtual Result<Image> pixels() = 0;
};

struct StageOptions {
  int width = 1440;
  int height = 900;
  bool visible = true;
  std::string title = "mbbench";
};

// kUnavailable with the reason where there is no display or no OpenGL 3.
Result<std::unique_ptr<Stage>> open_window(const StageOptions& options);
std::unique_ptr<Stage> open_headless(const StageOptions& options);

}  // namespace mbb::viewer
