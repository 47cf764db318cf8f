// Centred messages, notices and small text forms.
#include "viewer/widgets/states.h"

#include <imgui.h>

#include <algorithm>

#include "viewer/theme/style.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

constexpr double kNoticeSeconds = 2.5;
std::string notice_text;
double notice_until = 0;
bool notice_new = false;

void centred(ImFont* font, Ink ink, std::string_view text, float width) {
  ImGui::PushFont(font);
  const ImVec2 size = ImGui::CalcTextSize(text.data(), text.data() + text.size(), false, width);
  ImGui::SetCursorPosX(ImGui::GetCursorPosX() + std::max(0.0F, (ImGui::GetContentRegionAvail().x - size.x) / 2));
  ImGui::PushStyleColor(ImGuiCol_Text, color(ink));
  ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + width);
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopTextWrapPos();
  ImGui::PopStyleColor();
  ImGui::PopFont();
}

void message(const char* sign, Ink sign_ink, std::string_view title, std::string_view advice) {
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float width = std::min(px(520), std::max(px(80), room.x - px(24)));
  ImGui::BeginGroup();
  ImGui::Dummy(ImVec2(1, std::max(0.0F, std::min(room.y * 0.3F, room.y - px(80)))));
  if (sign != nullptr) centred(fonts().bold, sign_ink, sign, width);
  centred(fonts().bold, Ink::kText, clean(title, 600), width);
  if (!advice.empty()) centred(fonts().text, Ink::kMuted, clean(advice, 1200), width);
  ImGui::EndGroup();
}

}  // namespace

void draw_empty(std::string_view title, std::string_view advice) {
  message(nullptr, Ink::kMuted, title, advice);
  probe_value("state", "empty");
}

void draw_loading(std::string_view what) {
  message("\xE2\x80\xA6", Ink::kAccent, what, "");
  probe_value("state", "loading");
}

void draw_error(const Error& error) {
  message("\xE2\x9A\xA0", Ink::kSlower, error.what, error.hint);
  probe_value("state", "error");
  probe_value("state.error", error.what);
}

void notify(std::string text) {
  notice_text = std::move(text);
  notice_new = true;
}

bool draw_notice(double now_s) {
  if (notice_new) {
    notice_until = now_s + kNoticeSeconds;
    notice_new = false;
  }
  if (notice_text.empty()) return false;
  probe_value("notice", notice_text);
  if (now_s >= notice_until) {
    notice_text.clear();
    return false;
  }
  const std::string shown = clean(notice_text, 200);
  const ImVec2 size = ImGui::CalcTextSize(shown.c_str());
  const ImVec2 screen = ImGui::GetIO().DisplaySize;
  const ImVec2 pad(px(12), px(7));
  const ImVec2 low((screen.x - size.x) / 2 - pad.x, screen.y - px(40) - size.y - pad.y);
  const ImVec2 high(low.x + size.x + 2 * pad.x, low.y + size.y + 2 * pad.y);
  ImDrawList* draw = ImGui::GetForegroundDrawList();
  draw->AddRectFilled(low, high, color(Ink::kRaised), px(5));
  draw->AddRect(low, high, color(Ink::kAccent, 0.7F), px(5));
  draw->AddText(ImVec2(low.x + pad.x, low.y + pad.y), color(Ink::kText), shown.c_str());
  return true;
}

bool notice_visible() {
  return notice_new || !notice_text.empty();
}

void muted(std::string_view text) {
  ImGui::PushStyleColor(ImGuiCol_Text, color(Ink::kMuted));
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopStyleColor();
}

void heading(std::string_view text) {
  ImGui::PushFont(fonts().bold);
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopFont();
}

void badge(std::string_view text, unsigned packed_color) {
  ImGui::PushFont(fonts().small);
  const ImVec2 size = ImGui::CalcTextSize(text.data(), text.data() + text.size());
  const ImVec2 pad(px(6), px(1));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const ImVec2 low(at.x, at.y + px(1));
  const ImVec2 high(low.x + size.x + 2 * pad.x, low.y + size.y + 2 * pad.y);
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(low, high, (packed_color & 0x00FFFFFFU) | 0x2E000000U, px(4));
  draw->AddText(ImVec2(low.x + pad.x, low.y + pad.y), packed_color, text.data(), text.data() + text.size());
  ImGui::Dummy(ImVec2(size.x + 2 * pad.x, size.y + 2 * pad.y));
  ImGui::PopFont();
}

void hover_text(std::string_view text) {
  if (text.empty() || !ImGui::IsItemHovered()) return;
  ImGui::BeginTooltip();
  ImGui::PushTextWrapPos(px(420));
  ImGui::TextUnformatted(text.data(), text.data() + text.size());
  ImGui::PopTextWrapPos();
  ImGui::EndTooltip();
}

}  // namespace mbb::viewer
