// A line of text with a ground that reaches a little beyond it, so that no letter touches the edge.
#include "viewer/widgets/pill.h"

#include <imgui.h>

#include "viewer/theme/style.h"

namespace mbb::viewer {

bool pill(const std::string& label, bool on) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->ChannelsSplit(2);
  draw->ChannelsSetCurrent(1);
  for (const ImGuiCol slot : {ImGuiCol_Button, ImGuiCol_ButtonHovered, ImGuiCol_ButtonActive})
    ImGui::PushStyleColor(slot, color(Ink::kSurface, 0));
  const bool pressed = ImGui::SmallButton(label.c_str());
  ImGui::PopStyleColor(3);
  const ImVec2 low(ImGui::GetItemRectMin().x, ImGui::GetItemRectMin().y - px(1));
  const ImVec2 high(ImGui::GetItemRectMax().x, ImGui::GetItemRectMax().y + px(3));
  draw->ChannelsSetCurrent(0);
  const Ink ground = ImGui::IsItemActive() || on ? Ink::kSelected
                     : ImGui::IsItemHovered()    ? Ink::kBorder
                                                 : Ink::kRaised;
  draw->AddRectFilled(low, high, color(ground), px(4));
  if (on) draw->AddRect(low, high, color(Ink::kAccent, 0.7F), px(4));
  draw->ChannelsMerge();
  return pressed;
}

}  // namespace mbb::viewer
