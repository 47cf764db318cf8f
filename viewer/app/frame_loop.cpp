// The interactive loop.
#include "viewer/app/frame_loop.h"

#include <imgui.h>

#include "profiler/base/clock.h"
#include "viewer/theme/style.h"

namespace mbb::viewer {
namespace {
constexpr double kLookSeconds = 1.0;
constexpr double kCaretSeconds = 0.3;
}  // namespace

bool RedrawClock::take_frame(bool animating) {
  if (frames_left_ <= 0 && !animating) return false;
  if (frames_left_ > 0) --frames_left_;
  ++drawn_;
  return true;
}

double RedrawClock::wait_s(bool animating, bool typing, double look_s) const {
  if (frames_left_ > 0 || animating) return 0;
  return typing ? std::min(kCaretSeconds, look_s) : look_s;
}

void run_window(Stage& stage, App& app, float scale, std::atomic<bool>& changed) {
  RedrawClock clock;
  load_fonts(scale);
  stage.fonts_changed();
  apply_style(app.session().theme, scale);
  while (!stage.closed()) {
    const bool typing = ImGui::GetIO().WantTextInput;
    if (stage.wait(clock.wait_s(app.animating(), typing, kLookSeconds)) || changed.exchange(false) || typing)
      clock.note_change();
    const double now_s = static_cast<double>(monotonic_ns()) * 1e-9;
    const std::uint64_t before = app.session().generation + app.session().live;
    app.follow(now_s);
    if (app.session().generation + app.session().live != before) clock.note_change();
    if (theme() != app.session().theme) apply_style(app.session().theme, scale);
    if (clock.take_frame(app.animating())) stage.frame({}, [&] { app.draw(now_s); });
  }
}

}  // namespace mbb::viewer
