// Layout of the window and what every panel shares on it.
#include "viewer/app/app.h"

#include <fmt/format.h>
#include <imgui.h>

#include <array>

#include "profiler/base/clock.h"
#include "viewer/panels/describe.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

constexpr float kNavigatorWidth = 168;
constexpr float kBarHeight = 38;
constexpr float kStatusHeight = 24;
constexpr double kLookSeconds = 1.0;

struct HelpRow {
  const char* keys;
  const char* does;
};
constexpr std::array kHelp = {
    HelpRow{"1 .. 9, 0", "the panels, in the navigator's order"},
    HelpRow{"Ctrl+F", "find in this panel"},
    HelpRow{"\xE2\x86\x91 \xE2\x86\x93  Enter", "move in the table, open"},
    HelpRow{"Click, Ctrl+click", "choose run A, run B"},
    HelpRow{"X", "swap A and B"},
    HelpRow{"W S  wheel", "timeline: zoom in, out at the pointer"},
    HelpRow{"A D  drag", "timeline: move left, right"},
    HelpRow{"F", "timeline: focus the selection, or all"},
    HelpRow{"Ctrl+C, right click", "copy the table as Markdown or CSV"},
    HelpRow{"T", "dark or light"},
    HelpRow{"Ctrl+B", "hide or show the navigator"},
    HelpRow{"?", "this help"},
};

}  // namespace

App::App(SourceSpec source, std::function<void()> wake) : session_(std::move(source), std::move(wake)) {
  for (const PanelEntry& entry : panels()) panels_.push_back(entry.make());
}

bool App::settled() const {
  return !session_.animate && unsettled().empty();
}

std::string App::unsettled() const {
  // Who still wants an answer that is ready takes it in the next frame.
  if (session_.worker.pending() == 0) return "";
  if (session_.runs.loading()) return "the list of runs";
  if (session_.loading()) return "a run or its trace";
  for (std::size_t i = 0; i < panels_.size(); ++i) {
    if (panels()[i].name == session_.panel && panels_[i]->loading()) return "panel " + session_.panel;
  }
  return "a query";
}

bool App::animating() const {
  return session_.animate || notice_up_;
}

bool App::Stamp::changed() {
  if (query.value() == nullptr || query.loading()) return false;
  const bool differs = known && *query.value() != seen;
  seen = *query.value();
  known = true;
  return differs;
}

void App::follow(double now_s) {
  stamp_.query.want(
      session_.worker, fmt::format("stamp {}", looks_),
      [source = session_.source](const std::atomic<bool>&) -> Result<std::uint64_t> { return source_stamp(source); },
      true);
  std::vector<std::filesystem::path> going_on;
  if (session_.runs.value() != nullptr) going_on = session_.runs.value()->going_on;
  live_stamp_.query.want(
      session_.worker, fmt::format("live {} {}", looks_, going_on.size()),
      [going_on](const std::atomic<bool>&) -> Result<std::uint64_t> { return live_stamp(going_on); }, true);
  if (stamp_.changed()) ++session_.generation;
  if (live_stamp_.changed()) ++session_.live;
  if (now_s >= next_look_s_ && !stamp_.query.loading() && !live_stamp_.query.loading()) {
    next_look_s_ = now_s + kLookSeconds;
    ++looks_;
  }
}

void App::keys() {
  if (pressed(kKeyF, true)) session_.find_requested = true;
  if (pressed(kKeyB, true)) session_.navigator_open = !session_.navigator_open;
  if (pressed_shift(kKeySlash) || pressed(kKeyF1)) session_.help_open = !session_.help_open;
  if (pressed(kKeyEscape)) session_.help_open = false;
  if (pressed(kKeyX)) session_.swap_runs();
  if (pressed(kKeyT)) session_.theme = session_.theme == Theme::kDark ? Theme::kLight : Theme::kDark;
  for (int i = 0; i < 10 && i < static_cast<int>(panels().size()); ++i) {
    if (pressed(i == 9 ? static_cast<int>(kKey0) : kKey1 + i))
      session_.panel = panels()[static_cast<std::size_t>(i)].name;
  }
}

void App::draw(double now_s) {
  const Stopwatch watch;
  probe_begin_frame();
  session_.animate = false;
  session_.load();
  keys();
  const ImGuiIO& io = ImGui::GetIO();
  ImGui::SetNextWindowPos(ImVec2(0, 0));
  ImGui::SetNextWindowSize(io.DisplaySize);
  constexpr ImGuiWindowFlags kRoot = ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove |
                                     ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoBringToFrontOnFocus |
                                     ImGuiWindowFlags_NoScrollWithMouse | ImGuiWindowFlags_NoNav;
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, ImVec2(0, 0));
  ImGui::Begin("root", nullptr, kRoot);
  ImGui::PopStyleVar();
  draw_bar();
  ImGui::SetCursorPos(ImVec2(0, px(kBarHeight)));
  const float body = std::max(px(40), io.DisplaySize.y - px(kBarHeight) - px(kStatusHeight));
  if (session_.navigator_open) {
    ImGui::PushStyleColor(ImGuiCol_ChildBg, color(Ink::kBackground));
    ImGui::PushStyleVar(ImGuiStyleVar_ChildBorderSize, 0);
    ImGui::BeginChild("navigator", ImVec2(px(kNavigatorWidth), body), true);
    draw_navigator();
    ImGui::EndChild();
    ImGui::PopStyleVar();
    ImGui::PopStyleColor();
    ImGui::SameLine(0, 0);
  } else {
    ImGui::SetCursorPosX(px(6));
  }
  ImGui::BeginChild("panel", ImVec2(ImGui::GetContentRegionAvail().x - px(6), body), true);
  draw_panel();
  ImGui::EndChild();
  ImGui::SetCursorPos(ImVec2(0, io.DisplaySize.y - px(kStatusHeight)));
  draw_status(now_s);
  ImGui::End();
  if (session_.help_open) draw_help();
  notice_up_ = draw_notice(now_s);
  frame_ms_ = static_cast<double>(watch.elapsed_ns()) / 1e6;
  for (const auto& [field, value] : selection_fields(session_.selection)) {
    if (probe_recording()) probe_value("selection." + field, value);
  }
  probe_value("panel", session_.panel);
  probe_value("theme", session_.theme == Theme::kDark ? "dark" : "light");
  probe_value("help", session_.help_open ? "open" : "closed");
}

void App::draw_run_chip(const char* probe, const char* letter, Ink ink, const std::string& id) {
  const baselines::RunSummary* run = session_.summary(id);
  const std::string label = id.empty()       ? "Ctrl+click a run to compare"
                            : run == nullptr ? clean(id, 60)
                                             : fmt::format("{}  {}", clean(id, 60), run_title(*run));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float letter_width = px(20);
  const float width = letter_width + ImGui::CalcTextSize(label.c_str()).x + px(20);
  const float height = px(24);
  if (ImGui::InvisibleButton(probe, ImVec2(width, height))) session_.panel = id.empty() ? "runs" : "run";
  probe_item(probe);
  if (run != nullptr) hover_text(fmt::format("{} UTC\n{}", utc_text(run->created_unix_ns), clean(run->bundle, 300)));
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(at, ImVec2(at.x + width, at.y + height), color(Ink::kRaised), px(4));
  draw->AddRectFilled(at, ImVec2(at.x + letter_width, at.y + height), color(ink, id.empty() ? 0.35F : 1.0F), px(4),
                      ImDrawFlags_RoundCornersLeft);
  const float text_y = at.y + (height - ImGui::GetTextLineHeight()) / 2;
  draw->AddText(fonts().bold, fonts().bold->FontSize, ImVec2(at.x + px(6), text_y), text_on(color(ink)), letter);
  draw->AddText(ImVec2(at.x + letter_width + px(9), text_y), color(id.empty() ? Ink::kFaint : Ink::kText),
                label.c_str());
}

void App::draw_bar() {
  ImGui::SetCursorPos(ImVec2(px(12), px(10)));
  ImGui::PushFont(fonts().bold);
  ImGui::TextUnformatted("mbbench");
  ImGui::PopFont();
  ImGui::SetCursorPos(ImVec2(px(kNavigatorWidth), px(7)));
  draw_run_chip("chip.a", "A", Ink::kRunA, session_.selection.run);
  ImGui::SameLine(0, px(8));
  draw_run_chip("chip.b", "B", Ink::kRunB, session_.selection.other);
  if (!session_.selection.cell.empty() || session_.cell_a() != nullptr) {
    ImGui::SameLine(0, px(14));
    ImGui::SetCursorPosY(px(10));
    const baselines::Cell* cell = session_.cell_a();
    muted(fmt::format("cell {}", clean(cell != nullptr ? cell->name : session_.selection.cell, 60)));
  }
}

void App::draw_navigator() {
  int key = 1;
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, ImVec2(0, px(2)));
  for (const PanelEntry& entry : panels()) {
    const bool front = entry.name == session_.panel;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x;
    const float height = px(26);
    ImGui::PushID(key);
    if (ImGui::InvisibleButton("open", ImVec2(width, height))) session_.panel = entry.name;
    if (probe_recording()) probe_item(fmt::format("nav.{}", entry.name));
    const bool hovered = ImGui::IsItemHovered();
    hover_text(entry.purpose);
    ImGui::PopID();
    ImDrawList* draw = ImGui::GetWindowDrawList();
    if (front || hovered)
      draw->AddRectFilled(at, ImVec2(at.x + width, at.y + height), color(front ? Ink::kSelected : Ink::kRaised), px(4));
    if (front) draw->AddRectFilled(at, ImVec2(at.x + px(3), at.y + height), color(Ink::kAccent), px(2));
    const float y = at.y + (height - ImGui::GetTextLineHeight()) / 2;
    draw->AddText(ImVec2(at.x + px(12), y), color(front ? Ink::kText : Ink::kMuted), entry.title.data(),
                  entry.title.data() + entry.title.size());
    if (key <= 10)
      draw->AddText(fonts().small, fonts().small->FontSize, ImVec2(at.x + width - px(14), y + px(1)),
                    color(Ink::kFaint), std::to_string(key % 10).c_str());
    ++key;
  }
  ImGui::PopStyleVar();
}

void App::draw_panel() {
  for (std::size_t i = 0; i < panels_.size(); ++i) {
    if (panels()[i].name != session_.panel) continue;
    probe_value("state", "ready");
    panels_[i]->draw(session_);
    session_.find_requested = false;
    return;
  }
  draw_empty("No such panel: " + clean(session_.panel, 60), "Choose one on the left.");
}

void App::draw_status(double now_s) {
  (void)now_s;
  ImGui::PushFont(fonts().small);
  ImGui::SetCursorPos(ImVec2(px(12), ImGui::GetCursorPosY() + px(5)));
  const std::string where =
      session_.source.store.empty()
          ? (session_.source.bundles.empty() ? "no store" : session_.source.bundles.front().string())
          : session_.source.store.string();
  muted(clean(where, 160));
  const std::size_t pending = session_.worker.pending();
  std::string right = "? help";
  if (show_timing) right = fmt::format("{:.1f} ms   {}", frame_ms_, right);
  if (pending > 0 && show_timing) right = "loading\xE2\x80\xA6   " + right;
  ImGui::SameLine(ImGui::GetIO().DisplaySize.x - ImGui::CalcTextSize(right.c_str()).x - px(12));
  muted(right);
  ImGui::PopFont();
}

void App::draw_help() {
  const ImVec2 screen = ImGui::GetIO().DisplaySize;
  ImGui::SetNextWindowPos(ImVec2(screen.x / 2, screen.y / 2), ImGuiCond_Always, ImVec2(0.5F, 0.5F));
  ImGui::SetNextWindowSize(ImVec2(std::min(px(720), screen.x - px(20)), 0));
  ImGui::PushStyleColor(ImGuiCol_WindowBg, color(Ink::kRaised));
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 1);
  ImGui::Begin("help", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_AlwaysAutoResize);
  heading("Keys");
  for (const HelpRow& row : kHelp) {
    ImGui::TextUnformatted(row.keys);
    ImGui::SameLine(px(170));
    muted(row.does);
  }
  ImGui::Dummy(ImVec2(0, px(4)));
  heading("Panels");
  for (const PanelEntry& entry : panels()) {
    ImGui::TextUnformatted(entry.title.data(), entry.title.data() + entry.title.size());
    ImGui::SameLine(px(170));
    muted(entry.purpose);
  }
  ImGui::Dummy(ImVec2(0, px(4)));
  heading("Colours");
  for (const InkRow& row : inks()) {
    if (row.group == InkGroup::kChrome) continue;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    ImGui::GetWindowDrawList()->AddRectFilled(ImVec2(at.x, at.y + px(3)), ImVec2(at.x + px(12), at.y + px(15)),
                                              color(row.ink), px(2));
    ImGui::Dummy(ImVec2(px(12), px(12)));
    ImGui::SameLine(px(34));
    ImGui::TextUnformatted(row.name.data(), row.name.data() + row.name.size());
    ImGui::SameLine(px(170));
    muted(row.meaning);
  }
  ImGui::End();
  ImGui::PopStyleVar();
  ImGui::PopStyleColor();
}

}  // namespace mbb::viewer
