// The frame around the panels: navigator, selection bar, status line, help, global keys.
#pragma once

#include <memory>
#include <vector>

#include "viewer/panels/panel.h"
#include "viewer/panels/session.h"

namespace mbb::viewer {

class App {
 public:
  App(SourceSpec source, std::function<void()> wake);

  Session& session() { return session_; }
  const Session& session() const { return session_; }

  // Draws one frame; call between ImGui's NewFrame and Render. `now_s` is a steady clock.
  void draw(double now_s);

  // Looks, off the frame, whether the source changed on disk; at most once a second.
  void follow(double now_s);

  // Nothing is being loaded and nothing moves: what is drawn now stays. A notice goes by itself and is not waited for.
  bool settled() const;
  std::string unsettled() const;  // what is still being loaded; empty when nothing is
  // The next frame will differ from this one without any input.
  bool animating() const;

  // False in screenshots, so that they do not depend on the machine's speed.
  bool show_timing = true;

 private:
  void keys();
  void draw_bar();
  void draw_run_chip(const char* probe, const char* letter, Ink ink, const std::string& id);
  void draw_navigator();
  void draw_panel();
  void draw_status(double now_s);
  void draw_help();

  Session session_;
  std::vector<std::unique_ptr<Panel>> panels_;
  // A number that changes with something on disk, and the last one seen.
  struct Stamp {
    Query<std::uint64_t> query;
    std::uint64_t seen = 0;
    bool known = false;
    bool changed();
  };
  Stamp stamp_;
  Stamp live_stamp_;
  std::uint64_t looks_ = 0;
  double next_look_s_ = 0;
  bool notice_up_ = false;
  double frame_ms_ = 0;
};

}  // namespace mbb::viewer
