// Key names and focus rules.
#include "viewer/widgets/keys.h"

#include <imgui.h>

#include <array>
#include <cctype>
#include <string>
#include <utility>

namespace mbb::viewer {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 19> kNames = {{
    {"Space", kKeySpace},         {"Escape", kKeyEscape}, {"Enter", kKeyEnter},   {"Tab", kKeyTab},
    {"Backspace", kKeyBackspace}, {"Insert", kKeyInsert}, {"Delete", kKeyDelete}, {"Right", kKeyRight},
    {"Left", kKeyLeft},           {"Down", kKeyDown},     {"Up", kKeyUp},         {"PageUp", kKeyPageUp},
    {"PageDown", kKeyPageDown},   {"Home", kKeyHome},     {"End", kKeyEnd},       {"F1", kKeyF1},
    {"Comma", kKeyComma},         {",", kKeyComma},       {"/", kKeySlash},
}};

bool typing() {
  return ImGui::GetIO().WantTextInput;
}

}  // namespace

std::optional<Chord> parse_chord(std::string_view text) {
  Chord chord;
  while (true) {
    if (text.starts_with("Ctrl+")) {
      chord.ctrl = true;
      text.remove_prefix(5);
    } else if (text.starts_with("Shift+")) {
      chord.shift = true;
      text.remove_prefix(6);
    } else {
      break;
    }
  }
  if (text == "?") return Chord{kKeySlash, chord.ctrl, true};
  if (text.size() == 1 && std::isalnum(static_cast<unsigned char>(text[0])) != 0) {
    chord.key = std::toupper(static_cast<unsigned char>(text[0]));
    return chord;
  }
  for (const auto& [key_name, key] : kNames) {
    if (key_name == text) {
      chord.key = key;
      return chord;
    }
  }
  return std::nullopt;
}

bool pressed(int key, bool ctrl) {
  const ImGuiIO& io = ImGui::GetIO();
  return !typing() && io.KeyCtrl == ctrl && !io.KeyShift && !io.KeyAlt && ImGui::IsKeyPressed(key);
}

bool pressed_shift(int key) {
  const ImGuiIO& io = ImGui::GetIO();
  return !typing() && !io.KeyCtrl && io.KeyShift && ImGui::IsKeyPressed(key);
}

bool held(int key) {
  const ImGuiIO& io = ImGui::GetIO();
  return !typing() && !io.KeyCtrl && !io.KeyAlt && ImGui::IsKeyDown(key);
}

}  // namespace mbb::viewer
