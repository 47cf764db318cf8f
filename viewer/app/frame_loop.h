// When frames are drawn: after input, after a load, while something moves, and never otherwise.
#pragma once

#include "viewer/app/app.h"
#include "viewer/app/stage.h"

namespace mbb::viewer {

// Pure bookkeeping, so that "no redraw when nothing changes" is a test.
class RedrawClock {
 public:
  // Input or new data: this frame and the next ones may differ (ImGui lays out what it measured a frame later).
  void note_change() { frames_left_ = kFramesAfterChange; }
  // True when a frame is due; counts it.
  bool take_frame(bool animating);
  // How long to wait for input, in seconds: 0 while frames are due, the caret's blink while typing, else `look_s`.
  double wait_s(bool animating, bool typing, double look_s) const;
  long drawn() const { return drawn_; }

 private:
  static constexpr int kFramesAfterChange = 3;
  int frames_left_ = kFramesAfterChange;
  long drawn_ = 0;
};

// Runs until the window is closed. `changed` is set by the app's wake-up.
void run_window(Stage& stage, App& app, float scale, std::atomic<bool>& changed);

}  // namespace mbb::viewer
