// A file of key = value lines.
#include "viewer/app/view_state.h"

#include <fmt/core.h>

#include <fstream>
#include <sstream>

#include "profiler/base/env.h"
#include "profiler/base/text.h"
#include "viewer/panels/panel.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;
constexpr int kMinSide = 320;
constexpr int kMaxSide = 8192;
constexpr std::streamsize kMaxBytes = 64 * 1024;

void take(ViewState& state, std::string_view key, std::string_view value) {
  const auto side = [&](int& target) {
    const std::optional<std::int64_t> number = parse_int(value);
    if (number && *number >= kMinSide && *number <= kMaxSide) target = static_cast<int>(*number);
  };
  if (key == "panel" && find_panel(value) != nullptr) state.panel = value;
  if (key == "theme") state.theme = value == "light" ? Theme::kLight : Theme::kDark;
  if (key == "navigator") state.navigator_open = value != "closed";
  if (key == "width") side(state.width);
  if (key == "height") side(state.height);
  if (key == "knob_x") state.knob_x = value;
  if (key == "knob_y") state.knob_y = value;
}

}  // namespace

fs::path view_state_file() {
  if (const std::optional<std::string> state = env_text("XDG_STATE_HOME")) return fs::path(*state) / "mbbench" / "view";
  if (const std::optional<std::string> home = env_text("HOME"))
    return fs::path(*home) / ".local" / "state" / "mbbench" / "view";
  return {};
}

ViewState parse_view_state(const std::string& text) {
  ViewState state;
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    take(state, trim(line.substr(0, equals)), trim(line.substr(equals + 1)));
  }
  return state;
}

std::string view_state_text(const ViewState& state) {
  return fmt::format("panel = {}\ntheme = {}\nnavigator = {}\nwidth = {}\nheight = {}\nknob_x = {}\nknob_y = {}\n",
                     state.panel, state.theme == Theme::kLight ? "light" : "dark",
                     state.navigator_open ? "open" : "closed", state.width, state.height, state.knob_x, state.knob_y);
}

ViewState load_view_state(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(static_cast<std::size_t>(kMaxBytes), '\0');
  in.read(text.data(), kMaxBytes);
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return parse_view_state(text);
}

Status save_view_state(const fs::path& file, const ViewState& state) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  const fs::path part = file.string() + ".part";
  std::ofstream out(part, std::ios::trunc);
  out << view_state_text(state);
  out.close();
  if (!out) return fail(ErrorCode::kIo, fmt::format("cannot write {}", part.string()));
  fs::rename(part, file, error);
  if (error) return fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", file.string(), error.message()));
  return {};
}

}  // namespace mbb::viewer
