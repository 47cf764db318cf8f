// Panel "timeline": ranks and streams of a traced launch; two runs aligned by step or op, one above the other.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "profiler/base/text.h"
#include "viewer/load/traces.h"
#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/panels/search_field.h"
#include "viewer/theme/style.h"
#include "viewer/timeline/canvas.h"
#include "viewer/timeline/diff.h"
#include "viewer/timeline/model.h"
#include "viewer/widgets/keys.h"
#include "viewer/widgets/pill.h"
#include "viewer/widgets/plot.h"
#include "viewer/widgets/probe.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/table.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using profiler::Span;
using profiler::Trace;

constexpr float kDetailHeight = 96;

struct Found {
  std::vector<std::uint32_t> spans;  // in time order
};

constexpr std::size_t kMaxFound = 200'000;

Result<Found> find_spans(const Trace& trace, const std::string& words, const std::atomic<bool>& cancelled) {
  Found found;
  std::vector<std::uint8_t> by_string(trace.strings.size());
  for (std::size_t i = 0; i < trace.strings.size(); ++i) {
    if (!trace.strings[i].empty() && matches_words(trace.strings[i], words)) by_string[i] = 1;
  }
  for (std::uint32_t i = 0; i < trace.spans.size() && found.spans.size() < kMaxFound; ++i) {
    if (i % 65536 == 0 && cancelled.load()) return fail(ErrorCode::kCancelled, "searching");
    const Span& span = trace.spans[i];
    if (span.name >= by_string.size() || span.op >= by_string.size() || span.track >= trace.tracks.size()) continue;
    if (by_string[span.name] != 0 || by_string[span.op] != 0) found.spans.push_back(i);
  }
  std::stable_sort(found.spans.begin(), found.spans.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return trace.spans[a].start_ns < trace.spans[b].start_ns; });
  return found;
}

// The earliest device span of a step that the selection means (`wanted` by string); kNoItem where there is none.
Result<std::uint32_t> first_span(const Trace& trace, const std::vector<std::uint8_t>& wanted, std::int32_t step,
                                 const std::atomic<bool>& cancelled) {
  std::uint32_t best = kNoItem;
  for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
    if (i % 65536 == 0 && cancelled.load()) return fail(ErrorCode::kCancelled, "looking for the op");
    const Span& span = trace.spans[i];
    if (span.kind == profiler::SpanKind::kHost || span.name >= wanted.size() || span.op >= wanted.size()) continue;
    if (span.track >= trace.tracks.size() || (step != profiler::kNoStep && span.step != step)) continue;
    if (wanted[span.op] == 0 && wanted[span.name] == 0) continue;
    if (best == kNoItem || span.start_ns < trace.spans[best].start_ns) best = i;
  }
  return best;
}

TableData differences_table(const TraceDiff& diff) {
  TableData data;
  data.columns = {{"op", "", Align::kLeft, 0, "", true},
                  {"A", "a step", Align::kRight, 0, "", false},
                  {"B", "a step", Align::kRight, 0, "", false},
                  {"B - A", "", Align::kRight, 0, "", false}};
  for (const OpDelta& delta : diff.ops) {
    const char* sign = delta.delta_ns() < 0 ? "-" : "+";
    data.rows.push_back({text_cell(delta.op), number_cell(format_ns(delta.a_ns), delta.a_ns),
                         number_cell(format_ns(delta.b_ns), delta.b_ns),
                         number_cell(sign + format_ns(std::fabs(delta.delta_ns())), delta.delta_ns())});
    data.keys.push_back(delta.op);
  }
  return data;
}

// One run's side of the panel.
struct Side {
  Query<TimelineModel> model;
  Query<TimelineModel>::Load load;
  Query<std::vector<std::uint32_t>> linked;
  Canvas canvas;
  std::string origin_of;  // what `origin_ns` was looked up for
  std::int64_t origin_ns = 0;
  std::vector<std::uint8_t> found;  // by string: the words searched for
  std::string found_of;
  std::uint32_t selected = kNoItem;
  std::string selected_of;               // key of the trace the number belongs to
  std::string trace_key;                 // of the model shown
  std::vector<std::uint8_t> op_matches;  // by string: the selected op, or a pattern of ops
  std::string op_matches_of;

  void want(Session& session, const Query<std::shared_ptr<const Trace>>& trace, ColorBy color_by,
            const baselines::Cell* cell) {
    if (trace.value() == nullptr) {
      if (!trace.loading()) model.clear();
      return;
    }
    trace_key = trace.value_key();
    const std::string key = fmt::format("{}|{}", trace_key, static_cast<int>(color_by));
    if (key != model.key()) {
      OpKinds kinds;
      const baselines::Launch* launch = cell == nullptr ? nullptr : session.launch_of(*cell);
      for (std::size_t i = 0; launch != nullptr && i < launch->ops.size(); ++i)
        kinds[launch->ops[i].path] = launch->ops[i].kind;
      load = [read = *trace.value(), color_by, kinds = std::move(kinds)](const std::atomic<bool>& cancelled) {
        return build_timeline(read, color_by, cancelled, kinds);
      };
    }
    model.want(session.worker, key, load);
    if (selected_of != trace_key) selected = kNoItem;
    selected_of = trace_key;
  }

  // Launch and device spans of the selection, found beside the frames.
  void want_linked(Session& session) {
    const TimelineModel& shown = *model.value();
    if (selected == kNoItem || selected >= shown.trace->spans.size() || shown.trace->spans[selected].correlation == 0) {
      linked.clear();
      return;
    }
    linked.want(session.worker, fmt::format("{}|{}", trace_key, selected),
                [trace = shown.trace, span = selected](const std::atomic<bool>& cancelled) {
                  return find_linked(*trace, span, cancelled);
                });
  }

  // Comparisons name ops with * for the layer, the program names parts by a prefix: all of them are meant.
  void match_op(const std::string& op) {
    const std::string key = model.value_key() + "|" + op;
    if (key == op_matches_of) return;
    op_matches_of = key;
    op_matches.clear();
    if (op.empty()) return;
    const std::vector<std::string>& strings = model.value()->trace->strings;
    op_matches.resize(strings.size());
    bool any = false;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      const bool below = strings[i].size() > op.size() && strings[i][op.size()] == '.' && strings[i].starts_with(op);
      op_matches[i] = strings[i] == op || below || glob_match(op, strings[i]) ? 1 : 0;
      any = any || op_matches[i] != 0;
    }
    if (!any) op_matches.clear();
  }
};

void match_words(Side& side, const std::string& words) {
  const std::string key = side.model.value_key() + "|" + words;
  if (key == side.found_of) return;
  side.found_of = key;
  side.found.clear();
  if (words.empty()) return;
  for (const std::string& text : side.model.value()->trace->strings)
    side.found.push_back(!text.empty() && matches_words(text, words) ? 1 : 0);
}

class TimelinePanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    const baselines::Cell* cell = session.cell_a();
    if (cell == nullptr) {
      if (session.selection.run.empty() && !session.runs.loading())
        return draw_empty("No run chosen", "Choose one in the list of runs (key 1).");
      return session.run_a.value() != nullptr ? draw_empty("No finished cells yet", "They appear here as they finish.")
                                              : draw_loading("reading the run");
    }
    const baselines::Launch* launch = session.launch_of(*cell);
    if (launch == nullptr)
      return draw_empty(fmt::format("Cell {} has no launches", clean(cell->name, 80)), clean(cell->reason, 400));
    session.want_trace_a();
    session.want_trace_b();
    a_.want(session, session.trace_a, color_by_, cell);
    b_.want(session, session.trace_b, color_by_, session.selection.other.empty() ? nullptr : session.cell_b());
    if (session.trace_a.error() != nullptr) return draw_trace_error(*session.trace_a.error());
    if (a_.model.error() != nullptr) return draw_error(*a_.model.error());
    if (a_.model.value() == nullptr) return draw_loading("reading the trace");
    draw_body(session);
  }

  bool loading() const override {
    return a_.model.loading() || b_.model.loading() || diff_.loading() || found_.loading() || first_.loading();
  }

 private:
  static void draw_trace_error(const Error& error) {
    if (error.code == ErrorCode::kNotFound) return draw_empty(error.what, error.hint);
    draw_error(error);
  }

  void draw_body(Session& session) {
    const TimelineModel& model = *a_.model.value();
    want_extras(session, model);
    draw_head(session, model);
    if (model.lanes.empty()) return draw_empty("The trace has no spans", "Nothing ran in the traced steps.");
    const float detail = px(kDetailHeight);
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const float height = std::max(px(120), room.y - detail - px(6));
    const bool two = b_.model.value() != nullptr && !b_.model.value()->lanes.empty();
    const float width = room.x;
    fit_what_came(session, model, two, width);
    draw_side(session, a_, "timeline.a", ImVec2(width, two ? (height - px(4)) / 2 : height), two, true);
    if (two) {
      draw_side(session, b_, "timeline.b", ImVec2(width, (height - px(4)) / 2), two, false);
      // Equal lanes stay one above the other: what scrolls one scrolls the other.
      (b_.canvas.scrolled() ? a_ : b_).canvas.set_scroll((b_.canvas.scrolled() ? b_ : a_).canvas.scroll());
    }
    follow_selection(session, model);
    keys(session, width);
    if (a_.canvas.moved() || b_.canvas.moved()) session.animate = true;
    draw_detail(session, two);
    probe_value("timeline.selected", a_.selected == kNoItem ? -1 : static_cast<long long>(a_.selected));
    probe_value("timeline.spans", static_cast<long long>(model.trace->spans.size()));
    probe_value("timeline.start_us", static_cast<long long>(view_.start_ns / 1e3));
    probe_value("timeline.span_us",
                static_cast<long long>(view_.ns_per_px * static_cast<double>(Canvas::time_width(width)) / 1e3));
  }

  // A trace that comes is fitted. B, which comes when it is read, widens the view unless a person has moved it
  // meanwhile.
  void fit_what_came(Session& session, const TimelineModel& model, bool two, float width) {
    const std::string key_b = two ? b_.model.value_key() : "";
    const bool untouched = view_.start_ns == fitted_.start_ns && view_.ns_per_px == fitted_.ns_per_px;
    if (fitted_a_ != a_.model.value_key() || (fitted_b_ != key_b && untouched)) {
      fit(session, model, width);
      fitted_ = view_;
    }
    fitted_a_ = a_.model.value_key();
    fitted_b_ = key_b;
  }

  // An op that another panel selected is found, shown, and what F focuses.
  void follow_selection(Session& session, const TimelineModel& model) {
    const std::string& op = session.selection.op;
    if (op == seen_op_) {
      first_.clear();
      return;
    }
    if (op.empty() || a_.op_matches.empty()) {
      seen_op_ = op;
      a_.selected = kNoItem;
      return;
    }
    const std::int32_t step = step_of(session, model);
    first_.want(session.worker, fmt::format("{}|{}|{}", a_.model.value_key(), op, step),
                [trace = model.trace, wanted = a_.op_matches, step](const std::atomic<bool>& cancelled) {
                  return first_span(*trace, wanted, step, cancelled);
                });
    if (first_.loading() || first_.value() == nullptr) return;
    seen_op_ = op;
    a_.selected = *first_.value();
    if (a_.selected == kNoItem) return;
    a_.canvas.reveal(a_.selected);
    const Span& span = model.trace->spans[a_.selected];
    const double at = static_cast<double>(span.start_ns - origin(session, a_));
    const double shown = view_.ns_per_px * static_cast<double>(Canvas::time_width(ImGui::GetWindowWidth()));
    if (at < view_.start_ns || at > view_.start_ns + shown) view_.start_ns = at - shown / 2;
    session.animate = true;  // the frame after this one shows it
  }

  // The step shown: the selected one where it was traced, else the first.
  static std::int32_t step_of(const Session& session, const TimelineModel& model) {
    const std::vector<std::int32_t> steps = model.steps();
    if (steps.empty()) return profiler::kNoStep;
    for (const std::int32_t step : steps) {
      if (step == session.selection.step) return step;
    }
    return steps.front();
  }

  // Where the view's 0 lies: the step's start, or the selected op's first start in it.
  std::int64_t origin(const Session& session, Side& side) const {
    const std::int32_t step = step_of(session, *side.model.value());
    const std::string key =
        fmt::format("{}|{}|{}", side.model.value_key(), step, align_by_op_ ? session.selection.op : "");
    if (key != side.origin_of) {
      side.origin_ns = find_origin(session, *side.model.value());
      side.origin_of = key;
    }
    return side.origin_ns;
  }

  std::int64_t find_origin(const Session& session, const TimelineModel& model) const {
    const std::int32_t step = step_of(session, model);
    analysis::TimeInterval window{model.start_ns, model.end_ns};
    model.step_window(step, window);
    if (!align_by_op_ || session.selection.op.empty()) return window.start_ns;
    const auto& strings = model.trace->strings;
    const auto op = std::find(strings.begin(), strings.end(), session.selection.op);
    if (op == strings.end()) return window.start_ns;
    const auto id = static_cast<profiler::StringId>(op - strings.begin());
    const Lane* best = nullptr;
    std::int64_t first = window.start_ns;
    for (const Lane& lane : model.lanes) {
      if (lane.exposed || (best != nullptr && lane.rank != best->rank)) continue;
      for (const std::uint32_t index : lane.spans) {
        const Span& span = model.trace->spans[index];
        if (span.op != id || span.step != step || span.kind == profiler::SpanKind::kHost) continue;
        if (best == nullptr || span.start_ns < first) first = span.start_ns;
        best = &lane;
        break;
      }
    }
    return first;
  }

  void want_extras(Session& session, const TimelineModel& model) {
    if (search_.empty()) {
      found_.clear();
    } else {
      found_.want(session.worker, fmt::format("{}|{}", search_, a_.model.value_key()),
                  [trace = model.trace, words = search_](const std::atomic<bool>& cancelled) {
                    return find_spans(*trace, words, cancelled);
                  });
    }
    if (b_.model.value() == nullptr) {
      diff_.clear();
      return;
    }
    const TimelineModel& other = *b_.model.value();
    const std::int32_t step_a = step_of(session, model);
    const std::int32_t step_b = step_of(session, other);
    diff_.want(session.worker, fmt::format("{}@{}|{}@{}", a_.trace_key, step_a, b_.trace_key, step_b),
               [a = model.trace, b = other.trace, step_a, step_b](const std::atomic<bool>&) -> Result<TraceDiff> {
                 return diff_traces(*a, step_a, *b, step_b);
               });
  }

  void draw_head(Session& session, const TimelineModel& model) {
    if (draw_search(session, "timeline.search", "find an op or kernel", search_, 220)) next_ = 0;
    if (found_.value() != nullptr) {
      ImGui::SameLine(0, px(8));
      muted(fmt::format("{} found", count_text(static_cast<double>(found_.value()->spans.size()))));
      probe_value("timeline.found", static_cast<long long>(found_.value()->spans.size()));
    }
    static constexpr std::array<const char*, 3> kNames = {"work", "phase", "micro-batch"};
    ImGui::SameLine(0, px(14));
    muted("colour");
    for (int i = 0; i < 3; ++i) {
      ImGui::SameLine(0, px(4));
      const bool on = static_cast<int>(color_by_) == i;
      if (pill(kNames[static_cast<std::size_t>(i)], on)) color_by_ = static_cast<ColorBy>(i);
      if (probe_recording()) probe_item(fmt::format("timeline.color.{}", kNames[static_cast<std::size_t>(i)]));
    }
    draw_step_choice(session, model);
    if (b_.model.value() != nullptr) {
      ImGui::SameLine(0, px(14));
      if (pill(align_by_op_ ? "aligned by op" : "aligned by step")) align_by_op_ = !align_by_op_;
      probe_item("timeline.align");
      probe_value("timeline.align", align_by_op_ ? "op" : "step");
      hover_text("Both runs share the time axis. Its zero is the start of the step, or of the selected op in it.");
    } else if (session.trace_b.error() != nullptr) {
      ImGui::SameLine(0, px(14));
      badge("B has no trace", color(Ink::kWarning));
      hover_text(clean(session.trace_b.error()->what, 300));
    }
    if (model.trace->dropped_spans > 0 || model.left_out > 0) {
      ImGui::SameLine(0, px(14));
      badge(fmt::format("\xE2\x9A\xA0 {} dropped, {} left out", model.trace->dropped_spans, model.left_out),
            color(Ink::kWarning));
      hover_text(
          "Dropped: records the capture lost. Left out: spans with impossible numbers, or nested too deep to draw.");
    }
    std::string count = fmt::format("{} spans, {} ranks", count_text(static_cast<double>(model.trace->spans.size())),
                                    model.ranks.size());
    ImGui::SameLine(
        std::max(ImGui::GetCursorPosX(), ImGui::GetWindowWidth() - ImGui::CalcTextSize(count.c_str()).x - px(14)));
    muted(count);
  }

  void draw_step_choice(Session& session, const TimelineModel& model) {
    const std::vector<std::int32_t> steps = model.steps();
    if (steps.empty()) return;
    const std::int32_t step = step_of(session, model);
    const auto at = std::find(steps.begin(), steps.end(), step);
    ImGui::SameLine(0, px(14));
    if (ImGui::ArrowButton("earlier", ImGuiDir_Left) && at != steps.begin()) choose_step(session, *(at - 1));
    probe_item("timeline.earlier");
    ImGui::SameLine(0, px(4));
    ImGui::TextUnformatted(fmt::format("step {}", step).c_str());
    ImGui::SameLine(0, px(4));
    if (ImGui::ArrowButton("later", ImGuiDir_Right) && at + 1 != steps.end()) choose_step(session, *(at + 1));
    probe_item("timeline.later");
    probe_value("timeline.step", step);
  }

  void choose_step(Session& session, std::int32_t step) {
    session.selection.step = step;
    fitted_a_.clear();
  }

  void fit(Session& session, const TimelineModel& model, float width) {
    analysis::TimeInterval window{model.start_ns, model.end_ns};
    model.step_window(step_of(session, model), window);
    const std::int64_t zero = origin(session, a_);
    double end = static_cast<double>(window.end_ns - zero);
    if (b_.model.value() != nullptr) {
      analysis::TimeInterval other{0, 0};
      if (b_.model.value()->step_window(step_of(session, *b_.model.value()), other))
        end = std::max(end, static_cast<double>(other.end_ns - other.start_ns));
    }
    view_.fit(static_cast<double>(window.start_ns - zero), end, static_cast<double>(Canvas::time_width(width)));
  }

  void draw_side(Session& session, Side& side, const char* id, ImVec2 size, bool two, bool is_a) {
    const TimelineModel& model = *side.model.value();
    CanvasLook look;
    look.origin_ns = origin(session, side);
    look.selected_span = side.selected;
    side.match_op(session.selection.op);
    side.want_linked(session);
    if (side.linked.value() != nullptr && !side.linked.loading()) look.linked = *side.linked.value();
    look.selected_ops = side.op_matches;
    if (two) {
      look.letter = is_a ? "A" : "B";
      look.letter_ink = color(is_a ? Ink::kRunA : Ink::kRunB);
      if (diff_.value() != nullptr && diff_.value()->marks_a.size() == a_.model.value()->trace->strings.size() &&
          diff_.value()->marks_b.size() == b_.model.value()->trace->strings.size()) {
        look.marks = is_a ? std::span(diff_.value()->marks_a) : std::span(diff_.value()->marks_b);
      }
    }
    match_words(side, search_);
    look.found = side.found;
    const CanvasEvents events = side.canvas.draw(id, model, size, view_, look);
    if (events.clicked) choose(session, side, model, *events.clicked);
    if (events.cleared) {
      side.selected = kNoItem;
      session.selection.op.clear();
      seen_op_.clear();
    }
    if (events.hovered) draw_hover(model, *events.hovered, look.origin_ns);
  }

  void choose(Session& session, Side& side, const TimelineModel& model, std::uint32_t index) {
    const Span& span = model.trace->spans[index];
    side.selected = index;
    session.selection.op = model.trace->text(span.op != 0 ? span.op : span.name);
    session.selection.rank = model.trace->rank_of(span);
    seen_op_ = session.selection.op;
  }

  void keys(Session& session, float width) {
    if (pressed(kKeyF)) {
      const TimelineModel& model = *a_.model.value();
      if (a_.selected != kNoItem && a_.selected < model.trace->spans.size()) {
        const Span& span = model.trace->spans[a_.selected];
        const std::int64_t zero = origin(session, a_);
        const double length = static_cast<double>(span.end_ns - span.start_ns);
        view_.fit(static_cast<double>(span.start_ns - zero) - length, static_cast<double>(span.end_ns - zero) + length,
                  static_cast<double>(Canvas::time_width(width)));
        a_.canvas.reveal(a_.selected);
      } else {
        fit(session, model, width);
      }
    }
    const bool forward = pressed(kKeyN) || (ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed(kKeyEnter));
    if (forward && found_.value() != nullptr && !found_.value()->spans.empty()) go_to_found(session, width);
  }

  void go_to_found(Session& session, float width) {
    const TimelineModel& model = *a_.model.value();
    const std::uint32_t index = found_.value()->spans[next_++ % found_.value()->spans.size()];
    if (index >= model.trace->spans.size()) return;
    choose(session, a_, model, index);
    const Span& span = model.trace->spans[index];
    const double middle = static_cast<double>(span.start_ns - origin(session, a_));
    view_.start_ns = middle - view_.ns_per_px * static_cast<double>(Canvas::time_width(width)) / 2;
    a_.canvas.reveal(index);
    probe_value("timeline.at", static_cast<long long>(next_));
  }

  static std::string where(const Trace& trace, const Span& span) {
    std::string text = fmt::format("rank {}, {}", trace.rank_of(span), profiler::name(trace.tracks[span.track].stream));
    if (span.step != profiler::kNoStep) text += fmt::format(", step {}", span.step);
    if (span.micro_batch != profiler::kNoMicroBatch) text += fmt::format(", micro-batch {}", span.micro_batch);
    if (span.phase != profiler::Phase::kNone) text += fmt::format(", {}", profiler::name(span.phase));
    return text;
  }

  // "2 members, last arrived 31.0 µs after the first".
  static std::string collective_text(const TimelineModel& model, const Span& span) {
    if (span.collective == 0) return "";
    const std::vector<std::uint32_t> members = model.members(span.collective);
    std::int64_t first = span.start_ns;
    std::int64_t last = span.start_ns;
    std::int32_t late = model.trace->rank_of(span);
    for (const std::uint32_t member : members) {
      const Span& other = model.trace->spans[member];
      first = std::min(first, other.start_ns);
      if (other.start_ns > last) {
        last = other.start_ns;
        late = model.trace->rank_of(other);
      }
    }
    return fmt::format("{} members; the last (rank {}) arrived {} after the first", members.size(), late,
                       format_ns(static_cast<double>(last - first)));
  }

  static void draw_hover(const TimelineModel& model, std::uint32_t index, std::int64_t origin_ns) {
    const Span& span = model.trace->spans[index];
    ImGui::BeginTooltip();
    heading(clean(model.trace->text(span.name), 160));
    ImGui::TextUnformatted(fmt::format("{}   at {}", format_ns(static_cast<double>(span.end_ns - span.start_ns)),
                                       format_ns(static_cast<double>(span.start_ns - origin_ns)))
                               .c_str());
    muted(where(*model.trace, span));
    if (span.op != 0 && span.op != span.name) muted(clean(model.trace->text(span.op), 160));
    if (span.collective != 0) muted(collective_text(model, span));
    ImGui::EndTooltip();
  }

  void draw_detail(Session& session, bool two) {
    ImGui::BeginChild("detail", ImVec2(0, 0), false);
    const float half = two ? ImGui::GetContentRegionAvail().x * 0.5F : ImGui::GetContentRegionAvail().x;
    ImGui::BeginChild("span", ImVec2(half, 0), false);
    const TimelineModel& model = *a_.model.value();
    if (a_.selected != kNoItem && a_.selected < model.trace->spans.size()) {
      const Span& span = model.trace->spans[a_.selected];
      heading(clean(model.trace->text(span.name), 200));
      ImGui::SameLine(0, px(12));
      ImGui::TextUnformatted(format_ns(static_cast<double>(span.end_ns - span.start_ns)).c_str());
      muted(where(*model.trace, span));
      if (span.collective != 0) muted(collective_text(model, span));
    } else {
      draw_legend_row(model);
      muted("W S zoom, A D move, drag, wheel; click a span to select it, F to focus, N for the next one found.");
    }
    ImGui::EndChild();
    if (two) {
      ImGui::SameLine(0, 0);
      ImGui::BeginChild("differences", ImVec2(0, 0), false);
      draw_differences(session);
      ImGui::EndChild();
    }
    ImGui::EndChild();
  }

  void draw_legend_row(const TimelineModel& model) const {
    std::vector<LegendItem> items;
    const int last = color_by_ == ColorBy::kWork    ? kWorkShades - 1
                     : color_by_ == ColorBy::kPhase ? profiler::kPhases
                                                    : std::min(model.micro_batches + 1, 12);
    for (int shade = 0; shade < last; ++shade)
      items.push_back(
          {shade_name(color_by_, shade), shade_color(color_by_, shade, model.micro_batches), Mark::kDot, true});
    draw_legend(items);
  }

  void draw_differences(Session& session) {
    if (diff_.value() == nullptr) return muted(diff_.loading() ? "comparing ops\xE2\x80\xA6" : "no comparison");
    ImGui::PushFont(fonts().small);
    int shown = 0;
    for (const OpDelta& delta : diff_.value()->ops) {
      if (shown == 5 || delta.delta_ns() == 0) break;
      const bool slower = delta.delta_ns() > 0;
      ImGui::PushStyleColor(ImGuiCol_Text, color(slower ? Ink::kSlower : Ink::kFaster));
      ImGui::TextUnformatted(fmt::format("{} {}{}", slower ? "\xE2\x96\xB2" : "\xE2\x96\xBC", slower ? "+" : "-",
                                         format_ns(std::fabs(delta.delta_ns())))
                                 .c_str());
      ImGui::PopStyleColor();
      ImGui::SameLine(px(84));
      const std::string label = fmt::format("{}##{}", clean(delta.op, 120), shown);
      if (ImGui::Selectable(label.c_str(), session.selection.op == delta.op)) session.selection.op = delta.op;
      if (probe_recording()) probe_item(fmt::format("timeline.difference.{}", shown));
      hover_text(fmt::format("A {} in {} calls, B {} in {} calls", format_ns(delta.a_ns), delta.a_calls,
                             format_ns(delta.b_ns), delta.b_calls));
      ++shown;
    }
    copy_menu("differences", ImGui::IsWindowHovered(), [&] { return differences_table(*diff_.value()); });
    probe_value("timeline.differences", shown);
    if (shown == 0) muted("no op differs");
    ImGui::PopFont();
  }

  Side a_;
  Side b_;
  Query<TraceDiff> diff_;
  Query<Found> found_;
  Query<std::uint32_t> first_;
  std::string seen_op_;
  TimeView view_;
  ColorBy color_by_ = ColorBy::kWork;
  bool align_by_op_ = false;
  std::string search_;
  std::size_t next_ = 0;
  TimeView fitted_;  // as fit_what_came left it
  std::string fitted_a_ = "never";
  std::string fitted_b_;
};

}  // namespace

std::unique_ptr<Panel> make_timeline_panel() {
  return std::make_unique<TimelinePanel>();
}

}  // namespace mbb::viewer
