// Keys by name, numbered as GLFW numbers them, and the questions panels ask about them.
#pragma once

#include <optional>
#include <string_view>

namespace mbb::viewer {

enum Key : int {
  kKeySpace = 32,
  kKeyComma = 44,
  kKeySlash = 47,
  kKey0 = 48,
  kKey1 = 49,
  kKey9 = 57,
  kKeyA = 65,
  kKeyB = 66,
  kKeyC = 67,
  kKeyD = 68,
  kKeyE = 69,
  kKeyF = 70,
  kKeyL = 76,
  kKeyN = 78,
  kKeyS = 83,
  kKeyT = 84,
  kKeyV = 86,
  kKeyW = 87,
  kKeyX = 88,
  kKeyY = 89,
  kKeyZ = 90,
  kKeyEscape = 256,
  kKeyEnter = 257,
  kKeyTab = 258,
  kKeyBackspace = 259,
  kKeyInsert = 260,
  kKeyDelete = 261,
  kKeyRight = 262,
  kKeyLeft = 263,
  kKeyDown = 264,
  kKeyUp = 265,
  kKeyPageUp = 266,
  kKeyPageDown = 267,
  kKeyHome = 268,
  kKeyEnd = 269,
  kKeyF1 = 290
};

// "F", "Ctrl+F", "Escape", "?" (Shift+/): the key, and the modifiers it is pressed with.
struct Chord {
  int key = 0;
  bool ctrl = false;
  bool shift = false;
};
std::optional<Chord> parse_chord(std::string_view text);

// Pressed in this frame (repeats count), with exactly this Ctrl state, while no text field has the focus.
bool pressed(int key, bool ctrl = false);
bool pressed_shift(int key);
// Held down now, without Ctrl, while no text field has the focus.
bool held(int key);

}  // namespace mbb::viewer
