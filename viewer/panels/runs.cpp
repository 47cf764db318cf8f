// Panel "runs": every run of the store, searched and filtered, with the choice of A and B and a look into A.
#include <fmt/format.h>
#include <imgui.h>

#include <map>
#include <set>

#include "profiler/base/text.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using baselines::RunSummary;

// Run id -> "key=value" of all its cells, one text to search in. Loaded when a filter asks for a knob.
using KnobIndex = std::map<std::string, std::string>;

Result<KnobIndex> read_knobs(const SourceSpec& source, const std::atomic<bool>& cancelled) {
  MB_ASSIGN(const RunList list, read_run_list(source));
  KnobIndex index;
  for (const RunSummary& summary : list.runs) {
    if (cancelled.load()) break;
    const Result<baselines::Run> run = read_run(source, summary.id);
    if (!run.has_value()) continue;
    std::set<std::string> settings;
    for (const baselines::Cell& cell : run->cells) {
      for (const baselines::KnobValue& knob : cell.knobs) settings.insert(knob.key + "=" + knob.value);
    }
    std::string& text = index[summary.id];
    for (const std::string& setting : settings) text += setting + "\n";
  }
  return index;
}

// "tp" stands for tensor_model_parallel_size: initials of the name's words in their order, the first one among them.
bool abbreviates(std::string_view brief, std::string_view knob) {
  const std::size_t dot = knob.rfind('.');
  if (dot != std::string_view::npos) knob.remove_prefix(dot + 1);
  if (brief.size() < 2 || knob.empty() || brief.front() != knob.front()) return false;
  std::size_t next = 0;
  for (const std::string_view part : split(knob, '_')) {
    if (next < brief.size() && !part.empty() && part.front() == brief[next]) ++next;
  }
  return next == brief.size();
}

// "seq_length=4" matches the knob "train.seq_length" with value 4, not 40: the value must end where its line ends.
bool knob_matches(const std::string& settings, std::string_view word) {
  for (std::size_t at = settings.find(word); at != std::string::npos; at = settings.find(word, at + 1)) {
    const bool starts = at == 0 || settings[at - 1] == '\n' || settings[at - 1] == '.';
    const std::size_t end = at + word.size();
    if (starts && (end >= settings.size() || settings[end] == '\n' || word.back() == '=')) return true;
  }
  const std::size_t sign = word.find('=');
  for (const std::string_view line : split(settings, '\n')) {
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || !abbreviates(word.substr(0, sign), line.substr(0, equals))) continue;
    if (word.back() == '=' || line.substr(equals + 1) == word.substr(sign + 1)) return true;
  }
  return false;
}

struct Filter {
  std::string words;
  std::vector<std::string> knobs;
};

Filter parse_filter(const std::string& text) {
  Filter filter;
  for (const std::string_view part : split(text, ' ')) {
    if (part.empty()) continue;
    if (part.find('=') != std::string_view::npos && part.front() != '=')
      filter.knobs.emplace_back(part);
    else
      filter.words += std::string(part) + " ";
  }
  return filter;
}

std::vector<TableCell> run_row(const RunSummary& run, bool cut_off) {
  const int cells = run.cells_ok + run.cells_unproven + run.cells_skipped + run.cells_broken + run.cells_unstable;
  std::vector<TableCell> row;
  row.push_back(number_cell(utc_text(run.created_unix_ns), static_cast<double>(run.created_unix_ns), Ink::kMuted));
  row.push_back(text_cell(run.id));
  row.push_back(text_cell(run_title(run)));
  row.push_back(text_cell(run.tag.empty() ? "" : "@" + run.tag, Ink::kAccent));
  row.push_back(text_cell(run_state(run, cut_off), run_state_ink(run, cut_off)));
  row.push_back(number_cell(fmt::format("{} / {}", cells, std::max(run.cells_planned, cells)), cells));
  row.push_back(number_cell(std::to_string(run.cells_ok), run.cells_ok, run.cells_ok > 0 ? Ink::kFaster : Ink::kFaint));
  const int bad = run.cells_broken + run.cells_unstable;
  row.push_back(number_cell(std::to_string(bad), bad, bad > 0 ? Ink::kSlower : Ink::kFaint));
  const double length = run.ended_unix_ns > run.created_unix_ns
                            ? static_cast<double>(run.ended_unix_ns - run.created_unix_ns)
                            : std::nan("");
  row.push_back(number_cell(format_ns(length), length, Ink::kMuted));
  row.push_back(text_cell(run.synthetic.empty() ? "" : "made up", Ink::kWarning));
  row.back().hover = clean(run.synthetic, 300);
  return row;
}

TableData runs_table(const RunList& list, const Filter& filter, const KnobIndex* knobs) {
  TableData data;
  data.columns = {
      {"started", "UTC", Align::kLeft, 112, "When the run began.", false},
      {"run", "", Align::kLeft, 164, "The run's id. Click: look at it (A). Ctrl+click: compare with it (B).", true},
      {"suite", "", Align::kLeft, 0, "The suite, or the command where there is none.", false},
      {"tag", "", Align::kLeft, 60, "What @tag finds.", false},
      {"state", "", Align::kLeft, 66, "running, done, cut off or stopped (both resumable), or its exit status.", false},
      {"cells", "", Align::kRight, 48, "Finished cells of planned ones.", false},
      {"ok", "", Align::kRight, 30, "Cells that ran and gave right results.", false},
      {"bad", "", Align::kRight, 30, "Cells that are broken or unstable.", false},
      {"took", "", Align::kRight, 60, "From its beginning to its end.", false},
      {"note", "", Align::kLeft, 56, "Made-up runs say so.", false, Fold::kWhenEmpty}};
  for (const RunSummary& run : list.runs) {
    bool keep = true;
    for (const std::string& word : filter.knobs) {
      const auto found = knobs == nullptr ? KnobIndex::const_iterator() : knobs->find(run.id);
      keep = keep && knobs != nullptr && found != knobs->end() && knob_matches(found->second, word);
    }
    if (!keep) continue;
    data.rows.push_back(run_row(run, list.cut_off.contains(run.id)));
    data.keys.push_back(run.id);
  }
  return data;
}

class RunsPanel : public Panel {
 public:
  void draw(Session& session) override {
    draw_search(session, "runs.search", "search, or knob=value", search_, 300);
    const Filter filter = parse_filter(search_);
    if (!filter.knobs.empty()) {
      knobs_.want(
          session.worker, fmt::format("knobs {}", session.generation),
          [source = session.source](const std::atomic<bool>& cancelled) { return read_knobs(source, cancelled); });
    }
    const RunList* list = session.runs.value();
    if (session.runs.error() != nullptr) return draw_error(*session.runs.error());
    if (list == nullptr) return draw_loading("reading the list of runs");
    if (list->runs.empty()) {
      return draw_empty("No runs yet", "Run `mbbench suite quickstart`, or open a bundle: mbbench view FOLDER.");
    }
    rebuild(session, *list, filter);
    draw_count(*list, filter);
    const float detail = ImGui::GetContentRegionAvail().x > px(900) ? px(310) : 0;
    const ImVec2 room = ImGui::GetContentRegionAvail();
    ImGui::BeginChild("list", ImVec2(room.x - (detail > 0 ? detail + px(10) : 0), 0));
    draw_list(session);
    ImGui::EndChild();
    if (detail <= 0) return;
    ImGui::SameLine(0, px(10));
    ImGui::BeginChild("detail", ImVec2(detail, 0), false);
    draw_detail(session);
    ImGui::EndChild();
  }

  bool loading() const override { return knobs_.loading(); }

 private:
  void rebuild(const Session& session, const RunList& list, const Filter& filter) {
    std::string knob_words;
    for (const std::string& word : filter.knobs) knob_words += word + " ";
    const std::string key =
        fmt::format("{}|{}|{}", session.runs.value_key(), knob_words, static_cast<const void*>(knobs_.value()));
    if (key != built_) {
      data_ = runs_table(list, filter, knobs_.value());
      built_ = key;
      state_.dirty = true;
    }
    state_.filter = filter.words;
  }

  void draw_count(const RunList& list, const Filter& filter) {
    ImGui::SameLine(0, px(12));
    const auto shown = table_order(data_, filter.words, -1, false).size();
    muted(shown == list.runs.size() ? fmt::format("{} runs", shown)
                                    : fmt::format("{} of {} runs", shown, list.runs.size()));
    if (knobs_.loading()) {
      ImGui::SameLine(0, px(12));
      muted("reading knobs\xE2\x80\xA6");
    }
    if (!list.troubles.empty()) {
      ImGui::SameLine(0, px(12));
      badge(fmt::format("\xE2\x9A\xA0 {} not readable", list.troubles.size()), color(Ink::kWarning));
      hover_text(clean(list.troubles.front().what, 400));
    }
  }

  void draw_list(Session& session) {
    if (data_.rows.empty())
      return draw_empty("No run matches", "Change the search; knob=value looks at the knobs of every cell.");
    TableLook look;
    look.selected = session.selection.run;
    look.other = session.selection.other;
    look.mark_pair = true;
    look.keyboard = true;
    const TableEvents events = draw_table("runs", data_, state_, look);
    if (events.clicked) session.select_run(data_.keys[*events.clicked]);
    if (events.second) session.select_other(data_.keys[*events.second]);
    if (events.opened) session.panel = "run";
  }

  void draw_detail(Session& session) {
    const baselines::Run* run = session.run_a.value();
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    if (run == nullptr)
      return session.selection.run.empty() ? draw_empty("No run chosen", "Click one.")
                                           : draw_loading("reading the run");
    heading(clean(run->id, 80));
    const auto line = [](const char* label, const std::string& text) {
      muted(label);
      ImGui::SameLine(px(86));
      ImGui::TextWrapped("%s", text.c_str());
    };
    line("command", clean(run->command, 80));
    line("started", utc_text(run->created_unix_ns) + " UTC");
    for (const auto& [label, text] : host_lines(*run)) line(label, text);
    ImGui::Dummy(ImVec2(0, px(4)));
    for (std::size_t i = 0; i < run->cells.size() && i < 200; ++i) {
      const baselines::Cell& cell = run->cells[i];
      const bool running = session.unfinished(cell) && session.run_a.value()->going_on;
      ImGui::PushStyleColor(ImGuiCol_Text, color(running ? Ink::kAccent : status_ink(cell.status)));
      ImGui::TextUnformatted(running ? "\xE2\x96\xB8 running" : status_text(cell.status).c_str());
      ImGui::PopStyleColor();
      ImGui::SameLine(px(86));
      const std::string label = clean(cell.name, 100) + "##" + std::to_string(i);
      if (ImGui::Selectable(label.c_str(), session.cell_a() == &cell)) {
        session.select_cell(cell.name);
        session.panel = "run";
      }
      if (!cell.reason.empty()) hover_text(clean(cell.reason, 600));
    }
  }

  static std::vector<std::pair<const char*, std::string>> host_lines(const baselines::Run& run) {
    std::vector<std::pair<const char*, std::string>> lines;
    if (!run.synthetic.empty()) lines.emplace_back("made up", clean(run.synthetic, 200));
    if (!run.tag.empty()) lines.emplace_back("tag", "@" + clean(run.tag, 60));
    if (!run.epoch.empty()) lines.emplace_back("epoch", clean(run.epoch, 60));
    if (!run.cells.empty()) lines.emplace_back("class", clean(class_label(run.cells.front()), 100));
    return lines;
  }

  std::string search_;
  Query<KnobIndex> knobs_;
  TableData data_;
  TableState state_;
  std::string built_;
};

}  // namespace

std::unique_ptr<Panel> make_runs_panel() {
  return std::make_unique<RunsPanel>();
}

}  // namespace mbb::viewer
