// Parsing and playing scripts.
#include "viewer/app/script.h"

#include <fmt/core.h>
#include <imgui.h>

#include <algorithm>
#include <array>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "viewer/app/options.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

struct Command {
  std::string_view name;
  std::size_t least;
  std::size_t most;
};
constexpr std::array kCommands = {Command{"wait", 0, 0},  Command{"panel", 1, 1},    Command{"select", 1, 1},
                                  Command{"key", 1, 1},   Command{"hold", 2, 2},     Command{"type", 1, 1},
                                  Command{"click", 1, 4}, Command{"hover", 1, 3},    Command{"drag", 3, 3},
                                  Command{"wheel", 2, 2}, Command{"expect", 2, 3},   Command{"expect-item", 1, 1},
                                  Command{"theme", 1, 1}, Command{"resize", 1, 1},   Command{"screenshot", 1, 1},
                                  Command{"print", 1, 1}, Command{"clipboard", 2, 2}};

Result<std::vector<std::string>> words_of(const std::string& line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
      ++at;
    } else if (line[at] == '#') {
      break;
    } else if (line[at] == '"') {
      const std::size_t end = line.find('"', at + 1);
      if (end == std::string::npos) return fail(ErrorCode::kBadArgument, "a quote is not closed");
      words.push_back(line.substr(at + 1, end - at - 1));
      at = end + 1;
    } else {
      const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
      words.push_back(line.substr(at, end - at));
      at = end;
    }
  }
  return words;
}

Result<double> number_of(const std::string& word) {
  const std::optional<double> value = parse_double(word);
  if (!value) return fail(ErrorCode::kBadArgument, fmt::format("{} is not a number", printable(word)));
  return *value;
}

}  // namespace

Result<std::vector<ScriptLine>> parse_script(const std::string& text) {
  std::vector<ScriptLine> script;
  int number = 0;
  for (const std::string_view raw : split(text, '\n')) {
    ++number;
    Result<std::vector<std::string>> words = words_of(std::string(raw));
    if (!words.has_value())
      return tl::unexpected<Error>(std::move(words.error()).during(fmt::format("script line {}", number)));
    if (words->empty()) continue;
    const auto command =
        std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return c.name == words->front(); });
    if (command == kCommands.end()) {
      std::vector<std::string> names;
      for (const Command& c : kCommands) names.emplace_back(c.name);
      return fail(ErrorCode::kBadArgument,
                  fmt::format("script line {}: no command {}", number, printable(words->front())),
                  "commands: " + join(names, ", "));
    }
    const std::size_t given = words->size() - 1;
    if (given < command->least || given > command->most) {
      return fail(ErrorCode::kBadArgument, fmt::format("script line {}: {} takes {} to {} words, {} given", number,
                                                       command->name, command->least, command->most, given));
    }
    script.push_back({number, words->front(), {words->begin() + 1, words->end()}});
  }
  return script;
}

ScriptRunner::ScriptRunner(Stage& stage, App& app, float scale) : stage_(stage), app_(app), scale_(scale) {
  probe_record(true);
  input_.active = true;
  load_fonts(scale_);
  stage_.fonts_changed();
  apply_style(app_.session().theme, scale_);
}

void ScriptRunner::frame() {
  if (theme() != app_.session().theme) apply_style(app_.session().theme, scale_);
  stage_.wait(0);
  stage_.frame(input_, [this] { app_.draw(static_cast<double>(monotonic_ns()) * 1e-9); });
}

Status ScriptRunner::settle(double limit_s) {
  const Stopwatch watch;
  // Sizes that ImGui measures in one frame take effect in the next, hence some frames after the last change.
  int calm = 0;
  while (calm < 4) {
    frame();
    calm = app_.settled() ? calm + 1 : 0;
    if (calm == 0) stage_.wait(0.002);
    if (static_cast<double>(watch.elapsed_ns()) * 1e-9 > limit_s) {
      return fail(ErrorCode::kTimeout, fmt::format("still loading after {} s: {}", limit_s,
                                                   app_.animating() ? "an animation" : app_.unsettled()));
    }
  }
  return {};
}

Status ScriptRunner::run(const std::vector<ScriptLine>& script) {
  for (const ScriptLine& line : script) {
    Status status = run_line(line);
    if (!status.has_value()) {
      return tl::unexpected<Error>(
          std::move(status.error()).during(fmt::format("script line {} ({})", line.line, line.command)));
    }
  }
  return {};
}

Status ScriptRunner::run_line(const ScriptLine& line) {
  const std::vector<std::string>& words = line.words;
  if (line.command == "wait") return settle();
  if (line.command == "expect") return expect(line);
  if (line.command == "click") return click(line);
  if (line.command == "drag") return drag(line);
  if (line.command == "screenshot") return screenshot(words[0]);
  if (line.command == "key") return press(words[0], 1);
  if (line.command == "panel") {
    if (find_panel(words[0]) == nullptr)
      return fail(ErrorCode::kNotFound, fmt::format("no panel {}", printable(words[0])));
    app_.session().panel = words[0];
  } else if (line.command == "select") {
    const std::size_t equals = words[0].find('=');
    if (equals == std::string::npos) return fail(ErrorCode::kBadArgument, "needs FIELD=VALUE");
    MB_TRY(select_field(app_.session(), words[0].substr(0, equals), words[0].substr(equals + 1)));
  } else if (line.command == "hold") {
    MB_ASSIGN(const double frames, number_of(words[1]));
    return press(words[0], static_cast<int>(std::clamp(frames, 1.0, 10000.0)));
  } else if (line.command == "type") {
    input_.text = words[0];
    frame();
    input_.text.clear();
  } else if (line.command == "hover") {
    MB_TRY(point_at(words[0]));
    if (words.size() == 3) {
      MB_ASSIGN(const double dx, number_of(words[1]));
      MB_ASSIGN(const double dy, number_of(words[2]));
      input_.mouse_x += static_cast<float>(dx);
      input_.mouse_y += static_cast<float>(dy);
    }
  } else if (line.command == "wheel") {
    MB_TRY(point_at(words[0]));
    frame();
    MB_ASSIGN(const double notches, number_of(words[1]));
    for (int i = 0; i < std::clamp(static_cast<int>(std::abs(notches)), 0, 1000); ++i) {
      input_.wheel = notches > 0 ? 1.0F : -1.0F;
      frame();
    }
    input_.wheel = 0;
  } else if (line.command == "expect-item") {
    if (!probe_find_rect(words[0])) return fail(ErrorCode::kMismatch, fmt::format("{} is not on the screen", words[0]));
    return {};
  } else if (line.command == "clipboard") {
    const char* held = ImGui::GetClipboardText();
    if (held == nullptr || std::string_view(held).find(words[1]) == std::string_view::npos) {
      return fail(ErrorCode::kMismatch,
                  fmt::format("the clipboard lacks {}: it holds {}", words[1], printable(held == nullptr ? "" : held)));
    }
    return {};
  } else if (line.command == "theme") {
    app_.session().theme = words[0] == "light" ? Theme::kLight : Theme::kDark;
  } else if (line.command == "resize") {
    const WindowSize size = parse_size(words[0]);
    if (size.width < 64 || size.height < 64 || size.width > 8192 || size.height > 8192) {
      return fail(ErrorCode::kBadArgument, "needs WxH, 64 to 8192");
    }
    MB_TRY(stage_.resize(size.width, size.height));
  } else if (line.command == "print") {
    output_ += fmt::format("{} = {}\n", words[0], probe_find_value(words[0]).value_or("(none)"));
    return {};
  }
  frame();
  frame();
  return {};
}

Status ScriptRunner::expect(const ScriptLine& line) {
  const std::string& probe = line.words[0];
  const std::optional<std::string> value = probe_find_value(probe);
  if (!value) {
    std::vector<std::string> names;
    for (const auto& [probe_name, ignored] : probe_values()) names.push_back(probe_name);
    return fail(ErrorCode::kMismatch, fmt::format("nothing on the screen says {}", probe),
                "it says: " + join(names, ", "));
  }
  bool holds = false;
  if (line.words.size() == 2) {
    holds = *value == line.words[1];
  } else if (line.words[1] == "~") {
    holds = value->find(line.words[2]) != std::string::npos;
  } else if (line.words[1] == ">" || line.words[1] == "<") {
    MB_ASSIGN(const double have, number_of(*value));
    MB_ASSIGN(const double bound, number_of(line.words[2]));
    holds = line.words[1] == ">" ? have > bound : have < bound;
  } else {
    return fail(ErrorCode::kBadArgument, fmt::format("no relation {}", line.words[1]), "use nothing, ~, > or <");
  }
  if (!holds)
    return fail(ErrorCode::kMismatch, fmt::format("{} is \"{}\", expected {}", probe, printable(*value),
                                                  join({line.words.begin() + 1, line.words.end()}, " ")));
  return {};
}

Status ScriptRunner::point_at(const std::string& probe) {
  const std::optional<ProbeRect> rect = probe_find_rect(probe);
  if (!rect) return fail(ErrorCode::kNotFound, fmt::format("{} is not on the screen", probe));
  input_.mouse_x = rect->mid_x();
  input_.mouse_y = rect->mid_y();
  return {};
}

Status ScriptRunner::press(const std::string& chord_text, int frames) {
  const std::optional<Chord> chord = parse_chord(chord_text);
  if (!chord) return fail(ErrorCode::kBadArgument, fmt::format("no key {}", printable(chord_text)));
  input_.ctrl = chord->ctrl;
  input_.shift = chord->shift;
  input_.keys = {chord->key};
  for (int i = 0; i < frames; ++i) frame();
  input_.keys.clear();
  input_.ctrl = false;
  input_.shift = false;
  frame();
  frame();
  return {};
}

Status ScriptRunner::click(const ScriptLine& line) {
  MB_TRY(point_at(line.words[0]));
  const auto with = [&](const char* word) {
    return std::find(line.words.begin() + 1, line.words.end(), word) != line.words.end();
  };
  input_.ctrl = with("ctrl");
  frame();
  for (int i = 0; i < (with("double") ? 2 : 1); ++i) {
    (with("right") ? input_.right_down : input_.mouse_down) = true;
    frame();
    input_.right_down = false;
    input_.mouse_down = false;
    frame();
  }
  input_.ctrl = false;
  frame();
  return {};
}

Status ScriptRunner::drag(const ScriptLine& line) {
  MB_TRY(point_at(line.words[0]));
  MB_ASSIGN(const double dx, number_of(line.words[1]));
  MB_ASSIGN(const double dy, number_of(line.words[2]));
  frame();
  input_.mouse_down = true;
  frame();
  constexpr int kSteps = 8;
  for (int i = 0; i < kSteps; ++i) {
    input_.mouse_x += static_cast<float>(dx / kSteps);
    input_.mouse_y += static_cast<float>(dy / kSteps);
    frame();
  }
  input_.mouse_down = false;
  frame();
  frame();
  return {};
}

Status ScriptRunner::screenshot(const std::string& file) {
  app_.show_timing = false;
  MB_TRY(settle());
  MB_ASSIGN(const Image image, stage_.pixels());
  app_.show_timing = true;
  if (count_colors(image, 2) < 2)
    return fail(ErrorCode::kUnavailable, "the picture is blank: OpenGL drew nothing", "install libgl1-mesa-dri");
  return write_png(file, with_few_colors(image));
}

}  // namespace mbb::viewer
