// mbbench-view: the window over runs. `mbbench view` starts it.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "viewer/app/app.h"
#include "viewer/app/frame_loop.h"
#include "viewer/app/options.h"
#include "viewer/app/script.h"
#include "viewer/app/stage.h"
#include "viewer/app/view_state.h"

#ifdef __SANITIZE_ADDRESS__
// OpenGL drivers leave memory behind when they are unloaded. Our own leaks show in the tests of the panels.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}
#endif

namespace mbb::viewer {
namespace {

constexpr int kExitBroken = 4;
constexpr int kExitUsage = 64;

int report(const Error& error) {
  std::fprintf(stderr, "%s\n", format(error).c_str());
  return error.code == ErrorCode::kBadArgument ? kExitUsage : kExitBroken;
}

Status choose(Session& session, const Options& options) {
  if (!options.panel.empty()) session.panel = options.panel;
  if (!options.run.empty()) MB_TRY(select_field(session, "run", options.run));
  if (!options.other.empty()) MB_TRY(select_field(session, "other", options.other));
  for (const auto& [field, value] : options.selects) MB_TRY(select_field(session, field, value));
  return {};
}

Status play(Stage& stage, App& app, const Options& options, float scale) {
  std::vector<ScriptLine> script;
  if (!options.script.empty()) {
    std::ifstream in(options.script, std::ios::binary);
    if (!in) return fail(ErrorCode::kNotFound, "cannot read the script " + options.script.string());
    std::ostringstream text;
    text << in.rdbuf();
    MB_ASSIGN(script, parse_script(text.str()));
  }
  if (!options.screenshot.empty()) script.push_back({0, "screenshot", {options.screenshot.string()}});
  ScriptRunner runner(stage, app, scale);
  MB_TRY(runner.settle());
  const Status status = runner.run(script);
  std::fputs(runner.output().c_str(), stdout);
  return status;
}

int main_of(int argc, char** argv) {
  Result<Options> options = parse_options(argc, argv);
  if (!options.has_value()) return report(options.error());
  if (!options->help.empty()) {
    std::fputs(options->help.c_str(), stdout);
    return 0;
  }
  const bool alone = !options->screenshot.empty() || !options->script.empty();
  const std::filesystem::path state_file = alone ? std::filesystem::path() : view_state_file();
  ViewState state = state_file.empty() ? ViewState{} : load_view_state(state_file);
  StageOptions stage_options{alone ? options->width : state.width, alone ? options->height : state.height, !alone,
                             "mbbench"};
  Result<std::unique_ptr<Stage>> stage = open_window(stage_options);
  if (!stage.has_value()) return report(stage.error());

  std::atomic<bool> changed{false};
  Stage* const waker = stage->get();
  App app(options->source, [&changed, waker] {
    changed = true;
    waker->wake();
  });
  Session& session = app.session();
  session.panel = state.panel;
  session.navigator_open = state.navigator_open;
  session.theme = options->theme.value_or(state.theme);
  session.selection.knob_x = state.knob_x;
  session.selection.knob_y = state.knob_y;
  if (const Status chosen = choose(session, *options); !chosen.has_value()) return report(chosen.error());
  const float scale = options->scale > 0 ? static_cast<float>(options->scale) : alone ? 1.0F : (*stage)->screen_scale();
  if (alone) {
    const Status played = play(**stage, app, *options, scale);
    return played.has_value() ? 0 : report(played.error());
  }
  run_window(**stage, app, scale, changed);
  state.panel = session.panel;
  state.theme = session.theme;
  state.navigator_open = session.navigator_open;
  state.knob_x = session.selection.knob_x;
  state.knob_y = session.selection.knob_y;
  if (!state_file.empty()) {
    if (const Status saved = save_view_state(state_file, state); !saved.has_value()) return report(saved.error());
  }
  return 0;
}

}  // namespace
}  // namespace mbb::viewer

int main(int argc, char** argv) {
  return mbb::viewer::main_of(argc, argv);
}
