// Writes ImGuiIO fields.
#include "viewer/app/input_script.h"

#include <imgui.h>

#include <algorithm>
#include <iterator>

#include "viewer/widgets/keys.h"

namespace mbb::viewer {

void apply_scripted(const ScriptedInput& input) {
  if (!input.active) return;
  ImGuiIO& io = ImGui::GetIO();
  io.MousePos = ImVec2(input.mouse_x, input.mouse_y);
  io.MouseDown[ImGuiMouseButton_Left] = input.mouse_down;
  io.MouseDown[ImGuiMouseButton_Right] = input.right_down;
  io.MouseWheel = input.wheel;
  io.KeyCtrl = input.ctrl;
  io.KeyShift = input.shift;
  io.KeyAlt = false;
  io.KeySuper = false;
  std::fill(std::begin(io.KeysDown), std::end(io.KeysDown), false);
  for (const int key : input.keys) io.KeysDown[key] = true;
  if (!input.text.empty()) io.AddInputCharactersUTF8(input.text.c_str());
}

void map_keys() {
  ImGuiIO& io = ImGui::GetIO();
  io.KeyMap[ImGuiKey_Tab] = kKeyTab;
  io.KeyMap[ImGuiKey_LeftArrow] = kKeyLeft;
  io.KeyMap[ImGuiKey_RightArrow] = kKeyRight;
  io.KeyMap[ImGuiKey_UpArrow] = kKeyUp;
  io.KeyMap[ImGuiKey_DownArrow] = kKeyDown;
  io.KeyMap[ImGuiKey_PageUp] = kKeyPageUp;
  io.KeyMap[ImGuiKey_PageDown] = kKeyPageDown;
  io.KeyMap[ImGuiKey_Home] = kKeyHome;
  io.KeyMap[ImGuiKey_End] = kKeyEnd;
  io.KeyMap[ImGuiKey_Insert] = kKeyInsert;
  io.KeyMap[ImGuiKey_Delete] = kKeyDelete;
  io.KeyMap[ImGuiKey_Backspace] = kKeyBackspace;
  io.KeyMap[ImGuiKey_Space] = kKeySpace;
  io.KeyMap[ImGuiKey_Enter] = kKeyEnter;
  io.KeyMap[ImGuiKey_Escape] = kKeyEscape;
  io.KeyMap[ImGuiKey_A] = kKeyA;
  io.KeyMap[ImGuiKey_C] = kKeyC;
  io.KeyMap[ImGuiKey_V] = kKeyV;
  io.KeyMap[ImGuiKey_X] = kKeyX;
  io.KeyMap[ImGuiKey_Y] = kKeyY;
  io.KeyMap[ImGuiKey_Z] = kKeyZ;
}

}  // namespace mbb::viewer
