// Names for what is on the screen, so that scripts and tests can point at it and read it back.
//
// Drawing code calls these beside what it draws. They cost one branch unless a script has switched recording on.
// UI thread only, like everything ImGui.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mbb::viewer {

struct ProbeRect {
  float left = 0, top = 0, right = 0, bottom = 0;
  float mid_x() const { return (left + right) / 2; }
  float mid_y() const { return (top + bottom) / 2; }
};

void probe_record(bool on);
bool probe_recording();
void probe_begin_frame();

// The rectangle of the last ImGui item, or any rectangle.
void probe_item(std::string_view name);
void probe_rect(std::string_view name, ProbeRect rect);
// A piece of state: "runs.shown" = "12".
void probe_value(std::string_view name, std::string_view value);
void probe_value(std::string_view name, long long value);

// As of the last frame.
std::optional<ProbeRect> probe_find_rect(std::string_view name);
std::optional<std::string> probe_find_value(std::string_view name);
const std::map<std::string, std::string, std::less<>>& probe_values();

}  // namespace mbb::viewer
