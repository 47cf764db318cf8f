// Panel "program": what a step computes, as a tree by op path, linked to times, memory and the timeline.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "analysis/exposure/op_rows.h"
#include "profiler/base/text.h"
#include "viewer/load/program.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/theme/work_ink.h"
#include "viewer/widgets/fit.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/pill.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

constexpr std::size_t kFirstNumber = 3;  // of the columns: what stands on the right

// One line on the screen: a node, how deep it stands.
struct Line {
  std::uint32_t node = 0;
  int depth = 0;
};

class ProgramPanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    const baselines::Cell* cell = session.cell_a();
    if (cell == nullptr) {
      if (session.run_a.loading() || session.runs.loading()) return draw_loading("reading the run");
      return draw_empty("No cell chosen", "Choose a run in the list of runs (key 1).");
    }
    if (cell->program_json.empty())
      return draw_empty("No step program is stored",
                        "Programs lie in the bundle; the bundle of this run is gone or its cell did not get that far.");
    const std::string key = session.run_a.value_key() + "|" + cell->name;
    program_.want(
        session.worker, key,
        [run = session.run_a.share(), cell_name = cell->name](const std::atomic<bool>&) -> Result<ProgramView> {
          for (const baselines::Cell& one : run->cells) {
            if (one.name == cell_name) return read_program(one.program_json);
          }
          return fail(ErrorCode::kNotFound, "the cell is gone");
        });
    if (program_.error() != nullptr) return draw_error(*program_.error());
    if (program_.value() == nullptr) return draw_loading("reading the step program");
    const ProgramView& view = *program_.value();
    if (view.classes.empty()) return draw_empty("The program has no rank classes", "");
    class_ = std::min(class_, view.classes.size() - 1);
    draw_head(session, *cell, view);
    rebuild(session, *cell, view.classes[class_]);
    draw_tree(session, view.classes[class_]);
  }

  bool loading() const override { return program_.loading(); }

 private:
  void draw_head(Session& session, const baselines::Cell& cell, const ProgramView& view) {
    if (draw_search(session, "program.search", "find an op", search_, 200)) dirty_ = true;
    for (std::size_t i = 0; i < view.classes.size() && i < 16; ++i) {
      ImGui::SameLine(0, px(6));
      const bool on = i == class_;
      if (pill(fmt::format("{}##{}", view.classes[i].title, i), on)) {
        class_ = i;
        dirty_ = true;
      }
      if (probe_recording()) probe_item(fmt::format("program.class.{}", i));
    }
    std::string facts = clean(cell.name, 60);
    for (const auto& [label, text] : view.facts) facts += fmt::format("   {} {}", label, text);
    muted(facts);
    facts.clear();
    for (const auto& [label, text] : view.classes[class_].facts) facts += fmt::format("{} {}   ", label, text);
    muted(facts);
  }

  void rebuild(Session& session, const baselines::Cell& cell, const ProgramClass& shown) {
    const std::string key = fmt::format("{}|{}", program_.value_key(), class_);
    if (key != built_) {
      built_ = key;
      open_.assign(shown.nodes.size(), 0);
      open_levels(shown, 0, 2);
      add_times(session, cell, shown);
      dirty_ = true;
    }
    if (session.selection.op != revealed_) reveal(session, shown);
    if (!dirty_) return;
    dirty_ = false;
    lines_.clear();
    matches_.assign(shown.nodes.size(), 1);
    if (!search_.empty()) {
      for (std::size_t i = shown.nodes.size(); i-- > 0;) {
        const ProgramNode& node = shown.nodes[i];
        matches_[i] = matches_words(node.path + " " + node.what, search_) ? 1 : 0;
        for (const std::uint32_t child : node.children) matches_[i] |= matches_[child];
      }
    }
    for (const std::uint32_t child : shown.nodes[0].children) collect(shown, child, 0);
  }

  // Of an op its own time in the launch, a step; of a part the sum below it. Children follow their parents.
  void add_times(Session& session, const baselines::Cell& cell, const ProgramClass& shown) {
    times_.assign(shown.nodes.size(), 0);
    const baselines::Launch* launch = session.launch_of(cell);
    if (launch == nullptr) return;
    // Rank classes of one stage have equal ops: their rows say the same op's time, once.
    std::unordered_map<std::string, double> by_path;
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, analysis::op_steps(*launch)));
    for (const baselines::OpRow& row : launch->ops) {
      double& ns = by_path[row.path];
      ns = std::max(ns, static_cast<double>(row.total_ns) / steps);
    }
    for (std::size_t i = shown.nodes.size(); i-- > 1;) {
      const auto found = by_path.find(shown.nodes[i].path);
      if (shown.nodes[i].is_op && found != by_path.end()) times_[i] += found->second;
      times_[static_cast<std::size_t>(std::max(shown.nodes[i].parent, 0))] += times_[i];
    }
  }

  void open_levels(const ProgramClass& shown, std::uint32_t node, int levels) {
    if (levels == 0) return;
    open_[node] = 1;
    // A long list of layers opens by hand.
    if (shown.nodes[node].children.size() > 12 && node != 0) return;
    for (const std::uint32_t child : shown.nodes[node].children) open_levels(shown, child, levels - 1);
  }

  // Opens what hides the selected op, whichever panel selected it.
  void reveal(Session& session, const ProgramClass& shown) {
    revealed_ = session.selection.op;
    for (std::uint32_t i = 1; i < shown.nodes.size(); ++i) {
      if (shown.nodes[i].path != revealed_) continue;
      for (std::int32_t up = shown.nodes[i].parent; up >= 0; up = shown.nodes[static_cast<std::size_t>(up)].parent)
        open_[static_cast<std::size_t>(up)] = 1;
      if (!shown.nodes[i].is_op) open_[i] = 1;
      scroll_ = true;
      dirty_ = true;
      return;
    }
  }

  void collect(const ProgramClass& shown, std::uint32_t node, int depth) {
    if (matches_[node] == 0) return;
    lines_.push_back({node, depth});
    if (open_[node] == 0 && search_.empty()) return;
    for (const std::uint32_t child : shown.nodes[node].children) collect(shown, child, depth + 1);
  }

  void draw_tree(Session& session, const ProgramClass& shown) {
    probe_value("program.lines", static_cast<long long>(lines_.size()));
    probe_value("program.ops", shown.nodes[0].ops);
    constexpr ImGuiTableFlags kFlags = ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable | ImGuiTableFlags_ScrollY |
                                       ImGuiTableFlags_NoBordersInBody | ImGuiTableFlags_PadOuterX |
                                       ImGuiTableFlags_NoSavedSettings;
    if (!ImGui::BeginTable("tree", 8, kFlags)) return;
    const auto column = [](const char* title, float width) {
      ImGui::TableSetupColumn(title, width > 0 ? ImGuiTableColumnFlags_WidthFixed : ImGuiTableColumnFlags_WidthStretch,
                              width > 0 ? px(width) : 1.0F);
    };
    column("op", 0);
    column("what", 0);
    column("stream", 70);
    column("runs", 60);
    column("FLOPs", 84);
    column("bytes", 84);
    column("on the wire", 84);
    column("measured", 84);
    ImGui::TableSetupScrollFreeze(0, 1);
    draw_header();
    ImGuiListClipper clipper;
    clipper.Begin(static_cast<int>(lines_.size()));
    while (clipper.Step()) {
      for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i)
        draw_line(session, shown, lines_[static_cast<std::size_t>(i)], i);
    }
    if (scroll_) scroll_to_selection(session, shown);
    copy_menu("tree", ImGui::IsWindowHovered(ImGuiHoveredFlags_AllowWhenBlockedByPopup),
              [&] { return lines_table(shown); });
    ImGui::EndTable();
  }

  // Titles stand over their numbers, on the right.
  static void draw_header() {
    static constexpr std::array<const char*, 8> kTitles = {"op",    "what",  "stream",      "runs",
                                                           "FLOPs", "bytes", "on the wire", "measured"};
    ImGui::TableNextRow(ImGuiTableRowFlags_Headers);
    for (std::size_t c = 0; c < kTitles.size(); ++c) {
      if (!ImGui::TableSetColumnIndex(static_cast<int>(c))) continue;
      if (c >= kFirstNumber) align_right(kTitles[c]);
      muted(kTitles[c]);
    }
  }

  static void align_right(const char* text) {
    const float room = ImGui::GetContentRegionAvail().x;
    const float width = ImGui::CalcTextSize(text).x;
    if (width < room) ImGui::SetCursorPosX(ImGui::GetCursorPosX() + room - width);
  }

  // Cut to its column, whole on hover.
  static void draw_muted(const std::string& text) {
    const std::string whole = clean(text, 300);
    const std::string fitted =
        fit_text(*fonts().text, fonts().text->FontSize, whole, ImGui::GetContentRegionAvail().x + 0.5F);
    muted(fitted);
    if (fitted != whole) hover_text(whole);
  }

  // The lines shown, as a table to copy: whole paths, since indents do not travel.
  TableData lines_table(const ProgramClass& shown) const {
    TableData data;
    data.columns = {{"op", "", Align::kLeft, 0, "", true},
                    {"what", "", Align::kLeft, 0, "", false},
                    {"stream", "", Align::kLeft, 0, "", false},
                    {"runs", "", Align::kRight, 0, "", false},
                    {"FLOPs", "", Align::kRight, 0, "", false},
                    {"bytes", "", Align::kRight, 0, "", false},
                    {"on the wire", "", Align::kRight, 0, "", false},
                    {"measured", "", Align::kRight, 0, "", false}};
    for (const Line& line : lines_) {
      const ProgramNode& node = shown.nodes[line.node];
      std::vector<TableCell> row = {text_cell(node.path),
                                    text_cell(node.is_op ? node.what : fmt::format("{} ops", node.ops)),
                                    text_cell(node.stream)};
      for (const std::string& number : numbers_of(node, times_[line.node])) row.push_back(text_cell(number));
      data.rows.push_back(std::move(row));
      data.keys.push_back(node.path);
    }
    return data;
  }

  static std::array<std::string, 5> numbers_of(const ProgramNode& node, double measured_ns) {
    return {count_text(static_cast<double>(node.runs)), node.flops > 0 ? format_count(node.flops, "F") : "-",
            node.bytes > 0 ? format_bytes(node.bytes) : "-", node.wire_bytes > 0 ? format_bytes(node.wire_bytes) : "-",
            measured_ns > 0 ? format_ns(measured_ns) : "-"};
  }

  void scroll_to_selection(Session& session, const ProgramClass& shown) {
    scroll_ = false;
    const float row = ImGui::GetTextLineHeight() + 2 * ImGui::GetStyle().CellPadding.y;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (shown.nodes[lines_[i].node].path != session.selection.op) continue;
      const float top = row * static_cast<float>(i);
      if (top < ImGui::GetScrollY() || top > ImGui::GetScrollY() + ImGui::GetWindowHeight() - 3 * row)
        ImGui::SetScrollY(top - ImGui::GetWindowHeight() / 2);
      return;
    }
  }

  void draw_line(Session& session, const ProgramClass& shown, const Line& line, int place) {
    const ProgramNode& node = shown.nodes[line.node];
    ImGui::TableNextRow();
    ImGui::TableSetColumnIndex(0);
    ImGui::PushID(static_cast<int>(line.node));
    if (ImGui::Selectable("##line", node.path == session.selection.op,
                          ImGuiSelectableFlags_SpanAllColumns | ImGuiSelectableFlags_AllowDoubleClick)) {
      // A part is selected too: the timeline shows every op below it.
      revealed_ = session.selection.op = node.path;
      if (node.is_op) {
        if (ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) session.panel = "timeline";
      } else {
        open_[line.node] ^= 1;
        dirty_ = true;
      }
    }
    if (probe_recording() && place < 64) probe_item(fmt::format("program.line.{}", place));
    ImGui::SameLine(0, 0);
    ImGui::Dummy(ImVec2(px(14) * static_cast<float>(line.depth), 1));
    ImGui::SameLine(0, 0);
    const char* fold = node.children.empty() ? "   " : open_[line.node] != 0 ? "\xE2\x96\xBE " : "\xE2\x96\xB8 ";
    ImGui::PushStyleColor(ImGuiCol_Text, node.is_op ? color(op_ink(node.kind, node.path)) : color(Ink::kText));
    ImGui::TextUnformatted((fold + clean(node.part, 80)).c_str());
    ImGui::PopStyleColor();
    ImGui::TableSetColumnIndex(1);
    draw_muted(node.is_op ? node.what : fmt::format("{} op{}", node.ops, node.ops == 1 ? "" : "s"));
    ImGui::TableSetColumnIndex(2);
    draw_muted(node.stream);
    ImGui::PopID();
    const std::array<std::string, 5> numbers = numbers_of(node, times_[line.node]);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ImGui::TableSetColumnIndex(static_cast<int>(i + kFirstNumber));
      align_right(numbers[i].c_str());
      ImGui::TextUnformatted(numbers[i].c_str());
    }
  }

  Query<ProgramView> program_;
  std::size_t class_ = 0;
  std::string search_;
  std::string built_;
  std::string revealed_;
  std::vector<std::uint8_t> open_;
  std::vector<std::uint8_t> matches_;
  std::vector<Line> lines_;
  std::vector<double> times_;  // by node, ns a step
  bool dirty_ = true;
  bool scroll_ = false;
};

}  // namespace

std::unique_ptr<Panel> make_program_panel() {
  return std::make_unique<ProgramPanel>();
}

}  // namespace mbb::viewer
