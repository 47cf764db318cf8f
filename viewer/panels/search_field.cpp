// An input line bound to Ctrl+F.
#include "viewer/panels/search_field.h"

#include <fmt/core.h>
#include <imgui.h>

#include <algorithm>
#include <cstring>

#include "viewer/theme/style.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {

bool draw_search(Session& session, const char* id, const char* advice, std::string& text, float width) {
  std::array<char, 256> buffer{};
  std::memcpy(buffer.data(), text.data(), std::min(text.size(), buffer.size() - 1));
  ImGui::SetNextItemWidth(px(width));
  if (session.find_requested) {
    ImGui::SetKeyboardFocusHere();
    session.find_requested = false;
  }
  const bool changed = ImGui::InputTextWithHint(fmt::format("##{}", id).c_str(), advice, buffer.data(), buffer.size(),
                                                ImGuiInputTextFlags_AutoSelectAll);
  if (probe_recording()) probe_item(id);
  if (!changed) return false;
  text = buffer.data();
  return true;
}

}  // namespace mbb::viewer
