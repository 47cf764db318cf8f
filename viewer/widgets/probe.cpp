// The two tables behind the probes.
#include "viewer/widgets/probe.h"

#include <imgui.h>

namespace mbb::viewer {
namespace {
bool recording = false;
std::map<std::string, ProbeRect, std::less<>> rects;
std::map<std::string, std::string, std::less<>> values;
}  // namespace

void probe_record(bool on) {
  recording = on;
  probe_begin_frame();
}

bool probe_recording() {
  return recording;
}

void probe_begin_frame() {
  rects.clear();
  values.clear();
}

void probe_item(std::string_view name) {
  if (!recording) return;
  const ImVec2 low = ImGui::GetItemRectMin();
  const ImVec2 high = ImGui::GetItemRectMax();
  rects.insert_or_assign(std::string(name), ProbeRect{low.x, low.y, high.x, high.y});
}

void probe_rect(std::string_view name, ProbeRect rect) {
  if (recording) rects.insert_or_assign(std::string(name), rect);
}

void probe_value(std::string_view name, std::string_view value) {
  if (recording) values.insert_or_assign(std::string(name), std::string(value));
}

void probe_value(std::string_view name, long long value) {
  if (recording) values.insert_or_assign(std::string(name), std::to_string(value));
}

std::optional<ProbeRect> probe_find_rect(std::string_view name) {
  const auto found = rects.find(name);
  return found == rects.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> probe_find_value(std::string_view name) {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

const std::map<std::string, std::string, std::less<>>& probe_values() {
  return values;
}

}  // namespace mbb::viewer
