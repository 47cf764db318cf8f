// Drawing of tables.
#include "viewer/widgets/table.h"

#include <fmt/core.h>
#include <imgui.h>
#include <imgui_internal.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "viewer/theme/style.h"
#include "viewer/widgets/columns.h"
#include "viewer/widgets/fit.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"

namespace mbb::viewer {
namespace {

constexpr float kMarkWidth = 18;
constexpr int kProbedRows = 64;

constexpr std::size_t kMeasuredRows = 400;
constexpr float kLeastFlexible = 64;
constexpr const char* kDown = " \xE2\x96\xBE";
constexpr const char* kUp = " \xE2\x96\xB4";

ImFont* font_of(const TableColumn& column) {
  return column.mono ? fonts().mono : fonts().text;
}

// True when the text was cut.
bool aligned_text(const TableCell& cell, const TableColumn& column, bool quiet) {
  const float room = ImGui::GetContentRegionAvail().x;
  ImFont* const font = font_of(column);
  // Half a pixel more: widths are rounded, and what fits must not be cut by that.
  const std::string fitted =
      fit_text(*font, font->FontSize, cell.text, room + 0.5F, column.mono ? Cut::kMiddle : Cut::kEnd);
  const float width = font->CalcTextSizeA(font->FontSize, FLT_MAX, 0, fitted.data(), fitted.data() + fitted.size()).x;
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const float height = ImGui::GetTextLineHeight();
  if (cell.bar >= 0) {
    const ImVec2 low = ImGui::GetCursorScreenPos();
    draw->AddRectFilled(low, ImVec2(low.x + room * std::min(cell.bar, 1.0F), low.y + height),
                        color(Ink::kAccent, 0.18F), px(2));
  }
  if (column.align == Align::kRight && width < room) ImGui::SetCursorPosX(ImGui::GetCursorPosX() + room - width);
  // Small letters stand on the line of the others.
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float lower = std::max(0.0F, std::round(fonts().text->Ascent - font->Ascent));
  draw->AddText(font, font->FontSize, ImVec2(at.x, at.y + lower), color(quiet ? Ink::kFaint : cell.ink), fitted.data(),
                fitted.data() + fitted.size());
  ImGui::Dummy(ImVec2(width, height));
  return fitted != cell.text;
}

// Our own header cell: title, muted unit, sort arrow; ImGui's cannot align right.
void draw_header(const char* id, const TableData& data, TableState& state, bool marks) {
  ImGui::TableNextRow(ImGuiTableRowFlags_Headers);
  for (std::size_t place = 0; place < state.columns.size(); ++place) {
    const std::size_t c = state.columns[place];
    const TableColumn& column = data.columns[c];
    if (!ImGui::TableSetColumnIndex(static_cast<int>(place) + (marks ? 1 : 0))) continue;
    const bool sorted = state.sort_column == static_cast<int>(c);
    std::string title = column.title;
    if (sorted) title += state.descending ? kDown : kUp;
    const std::string unit = column.unit.empty() ? "" : " " + column.unit;
    ImGui::PushID(static_cast<int>(c));
    const ImVec2 start = ImGui::GetCursorScreenPos();
    const float room = ImGui::GetContentRegionAvail().x;
    if (ImGui::InvisibleButton("sort", ImVec2(std::max(room, 1.0F), ImGui::GetTextLineHeight()))) {
      state.descending = sorted ? !state.descending : column.align == Align::kRight;
      state.sort_column = static_cast<int>(c);
      state.dirty = true;
    }
    if (probe_recording()) probe_item(fmt::format("{}.sort.{}", id, c));
    hover_text(column.meaning);
    const Ink ink = ImGui::IsItemHovered() || sorted ? Ink::kText : Ink::kMuted;
    const float width = ImGui::CalcTextSize(title.c_str()).x + ImGui::CalcTextSize(unit.c_str()).x;
    const float left = column.align == Align::kRight ? std::max(start.x, start.x + room - width) : start.x;
    ImDrawList* draw = ImGui::GetWindowDrawList();
    draw->AddText(ImVec2(left, start.y), color(ink), title.c_str());
    draw->AddText(ImVec2(left + ImGui::CalcTextSize(title.c_str()).x, start.y), color(Ink::kFaint), unit.c_str());
    ImGui::PopID();
  }
}

void copy_rows(const TableData& data, const std::vector<std::uint32_t>& rows, bool markdown) {
  const std::string text = markdown ? table_markdown(data, rows) : table_csv(data, rows);
  ImGui::SetClipboardText(text.c_str());
  notify(fmt::format("{} rows copied as {}", rows.size(), markdown ? "Markdown" : "CSV"));
}

// Which of the two was chosen, if any.
std::optional<bool> draw_copy_menu(const char* id, bool hovered) {
  std::optional<bool> markdown;
  ImGui::PushID(id);
  if (hovered && ImGui::IsMouseReleased(ImGuiMouseButton_Right)) ImGui::OpenPopup("copy");
  if (hovered && pressed(kKeyC, true)) markdown = true;
  if (ImGui::BeginPopup("copy")) {
    if (ImGui::MenuItem("Copy as Markdown", "Ctrl+C")) markdown = true;
    if (probe_recording()) probe_item(fmt::format("{}.copy.markdown", id));
    if (ImGui::MenuItem("Copy as CSV")) markdown = false;
    if (probe_recording()) probe_item(fmt::format("{}.copy.csv", id));
    ImGui::EndPopup();
  }
  ImGui::PopID();
  return markdown;
}

void draw_mark(const TableLook& look, const std::string& key) {
  const bool is_a = key == look.selected;
  const bool is_b = key == look.other;
  if (!is_a && !is_b) return;
  ImGui::PushFont(fonts().bold);
  ImGui::PushStyleColor(ImGuiCol_Text, color(is_a ? Ink::kRunA : Ink::kRunB));
  ImGui::TextUnformatted(is_a ? "A" : "B");
  ImGui::PopStyleColor();
  ImGui::PopFont();
}

struct RowDrawing {
  const char* id;
  const TableData& data;
  const TableState& state;
  const TableLook& look;
  TableEvents& events;
};

void draw_row(const RowDrawing& in, std::size_t row, std::size_t place) {
  const std::string& key = in.data.keys[row];
  ImGui::TableNextRow();
  ImGui::TableSetColumnIndex(0);
  ImGui::PushID(static_cast<int>(row));
  const bool first = !key.empty() && key == in.look.selected;
  const bool second = !key.empty() && in.look.mark_pair && key == in.look.other;
  const bool selected = first || second;
  if (in.look.mark_pair && selected) {
    ImGui::TableSetBgColor(ImGuiTableBgTarget_RowBg1, color(first ? Ink::kRunA : Ink::kRunB, 0.14F));
    ImGui::PushStyleColor(ImGuiCol_Header, color(Ink::kSurface, 0));
  }
  if (ImGui::Selectable("##row", selected,
                        ImGuiSelectableFlags_SpanAllColumns | ImGuiSelectableFlags_AllowDoubleClick)) {
    if (ImGui::GetIO().KeyCtrl)
      in.events.second = row;
    else
      in.events.clicked = row;
    if (ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) in.events.opened = row;
  }
  if (in.look.mark_pair && selected) ImGui::PopStyleColor();
  if (ImGui::IsItemHovered()) in.events.hovered = row;
  if (probe_recording() && place < kProbedRows) probe_item(fmt::format("{}.row.{}", in.id, place));
  const bool marks = in.look.mark_pair;
  if (marks) {
    ImGui::SameLine(0, 0);
    draw_mark(in.look, key);
  }
  const std::vector<TableCell>& cells = in.data.rows[row];
  for (std::size_t shown = 0; shown < in.state.columns.size(); ++shown) {
    if (shown == 0 && !marks)
      ImGui::SameLine(0, 0);
    else if (!ImGui::TableSetColumnIndex(static_cast<int>(shown) + (marks ? 1 : 0)))
      continue;
    const std::size_t c = in.state.columns[shown];
    const TableCell& cell = cells[c];
    const bool repeats =
        in.data.columns[c].groups && place > 0 && in.data.rows[in.state.shown[place - 1]][c].text == cell.text;
    const bool cut = aligned_text(cell, in.data.columns[c], repeats);
    if (in.events.hovered != row) continue;
    if (cut)
      hover_text(cell.hover.empty() || cell.hover == cell.text ? cell.text : cell.text + "\n" + cell.hover);
    else if (!cell.hover.empty())
      hover_text(cell.hover);
  }
  ImGui::PopID();
}

void move_with_keys(const TableData& data, TableState& state, const TableLook& look, TableEvents& events) {
  if (!look.keyboard || state.shown.empty()) return;
  const int step = (pressed(kKeyDown) ? 1 : 0) - (pressed(kKeyUp) ? 1 : 0);
  const auto at = std::find_if(state.shown.begin(), state.shown.end(),
                               [&](std::uint32_t row) { return data.keys[row] == look.selected; });
  if (pressed(kKeyEnter) && at != state.shown.end()) events.opened = *at;
  if (step == 0) return;
  if (at == state.shown.end()) {
    events.clicked = state.shown.front();
  } else {
    const auto place = std::clamp<std::ptrdiff_t>(at - state.shown.begin() + step, 0,
                                                  static_cast<std::ptrdiff_t>(state.shown.size()) - 1);
    events.clicked = state.shown[static_cast<std::size_t>(place)];
  }
  state.scroll_to_selection = true;
}

// What each column would like to have. Of a long table some rows speak for all.
void measure(const TableData& data, TableState& state) {
  state.columns = shown_columns(data);
  state.whole.clear();
  state.given.clear();
  state.measured_scale = scale();
  const std::size_t stride = data.rows.size() / kMeasuredRows + 1;
  for (const std::size_t c : state.columns) {
    const TableColumn& column = data.columns[c];
    const auto wide = [](const ImFont& font, const std::string& text) {
      return font.CalcTextSizeA(font.FontSize, FLT_MAX, 0, text.data(), text.data() + text.size()).x;
    };
    std::string title = column.title + (column.unit.empty() ? "" : " " + column.unit);
    if (state.sort_column == static_cast<int>(c)) title += kDown;
    float widest = wide(*fonts().text, title);
    for (std::size_t row = 0; row < data.rows.size(); row += stride) {
      widest = std::max(widest, wide(*font_of(column), data.rows[row][c].text));
    }
    state.whole.push_back(widest);
  }
}

void refresh(const TableData& data, TableState& state) {
  const bool other = state.dirty || state.shown_of != &data;
  if (other || state.measured_scale != scale()) measure(data, state);
  if (!other && state.shown_filter == state.filter) return;
  state.shown = table_order(data, state.filter, state.sort_column, state.descending);
  state.shown_of = &data;
  state.shown_filter = state.filter;
  state.dirty = false;
}

// Columns keep the width that a person gave them until their content or the table's own width asks for another.
void setup_columns(const TableData& data, TableState& state, bool marks) {
  if (marks) ImGui::TableSetupColumn("mark", ImGuiTableColumnFlags_WidthFixed, px(kMarkWidth));
  std::vector<ColumnNeed> needs;
  for (std::size_t i = 0; i < state.columns.size(); ++i) {
    const TableColumn& column = data.columns[state.columns[i]];
    const bool flexible = column.width <= 0;
    // A bar behind the numbers needs its length to be read.
    const float whole = flexible ? state.whole[i] : std::max(state.whole[i], std::min(px(column.width), px(48)));
    needs.push_back({whole, std::min(whole, px(flexible ? kLeastFlexible : column.width)), flexible});
    ImGui::TableSetupColumn(column.title.c_str(),
                            flexible ? ImGuiTableColumnFlags_WidthStretch : ImGuiTableColumnFlags_WidthFixed,
                            std::max(whole, 1.0F));
  }
  ImGui::TableSetupScrollFreeze(0, 1);
  ImGuiTable& table = *ImGui::GetCurrentTable();
  const auto all = static_cast<float>(table.ColumnsCount);
  const float room = table.WorkRect.GetWidth() - table.OuterPaddingX * 2 - table.CellPaddingX * 2 * all -
                     (table.CellSpacingX1 + table.CellSpacingX2) * (all - 1) - (marks ? px(kMarkWidth) : 0);
  const std::vector<float> widths = column_widths(needs, room);
  state.given.resize(widths.size(), 0);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    ImGuiTableColumn& column = table.Columns[static_cast<int>(i) + (marks ? 1 : 0)];
    if (widths[i] == state.given[i] && !table.IsInitializing) continue;
    state.given[i] = widths[i];
    if (needs[i].flexible)
      column.StretchWeight = std::max(widths[i], 1.0F);
    else
      column.WidthRequest = std::max(widths[i], 1.0F);
  }
}

}  // namespace

void copy_menu(const char* id, bool hovered, const std::function<TableData()>& make) {
  const std::optional<bool> markdown = draw_copy_menu(id, hovered);
  if (!markdown) return;
  const TableData data = make();
  copy_rows(data, table_order(data, "", -1, false), *markdown);
}

float table_width(const TableData& data, TableState& state) {
  refresh(data, state);
  const ImGuiStyle& style = ImGui::GetStyle();
  float width = style.ScrollbarSize + 2 * style.CellPadding.x;
  for (const float whole : state.whole) width += std::ceil(whole) + 2 * style.CellPadding.x;
  return width;
}

float table_height(std::size_t rows) {
  const float row = ImGui::GetTextLineHeight() + 2 * ImGui::GetStyle().CellPadding.y;
  return (row * static_cast<float>(rows + 1) + px(4)) / scale();
}

TableEvents draw_table(const char* id, const TableData& data, TableState& state, const TableLook& look) {
  TableEvents events;
  refresh(data, state);
  probe_value(fmt::format("{}.shown", id), static_cast<long long>(state.shown.size()));
  const bool marks = look.mark_pair;
  const auto columns = static_cast<int>(state.columns.size()) + (marks ? 1 : 0);
  constexpr ImGuiTableFlags kFlags = ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable | ImGuiTableFlags_ScrollY |
                                     ImGuiTableFlags_NoBordersInBody | ImGuiTableFlags_PadOuterX |
                                     ImGuiTableFlags_NoSavedSettings;
  if (state.columns.empty() ||
      !ImGui::BeginTable(id, columns, kFlags, ImVec2(0, look.height > 0 ? px(look.height) : 0)))
    return events;
  setup_columns(data, state, marks);
  draw_header(id, data, state, marks);
  move_with_keys(data, state, look, events);
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(state.shown.size()));
  while (clipper.Step()) {
    for (int place = clipper.DisplayStart; place < clipper.DisplayEnd; ++place) {
      const auto at = static_cast<std::size_t>(place);
      draw_row({id, data, state, look, events}, state.shown[at], at);
    }
  }
  if (state.scroll_to_selection) {
    const std::string& key = events.clicked ? data.keys[*events.clicked] : look.selected;
    for (std::size_t i = 0; i < state.shown.size(); ++i) {
      if (data.keys[state.shown[i]] != key) continue;
      const float row = ImGui::GetTextLineHeight() + 2 * ImGui::GetStyle().CellPadding.y;
      const float top = row * static_cast<float>(i);
      const float view = ImGui::GetWindowHeight() - 2 * row;
      if (top < ImGui::GetScrollY() || top > ImGui::GetScrollY() + view - row) ImGui::SetScrollY(top - view / 2);
      break;
    }
    state.scroll_to_selection = false;
  }
  const bool hovered = ImGui::IsWindowHovered(ImGuiHoveredFlags_AllowWhenBlockedByPopup);
  if (const std::optional<bool> markdown = draw_copy_menu(id, hovered)) copy_rows(data, state.shown, *markdown);
  ImGui::EndTable();
  return events;
}

}  // namespace mbb::viewer
