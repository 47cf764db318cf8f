// The shared selection and the loads behind it.
#include "viewer/panels/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/text.h"

namespace mbb::viewer {
namespace {

using baselines::Cell;
using baselines::CellStatus;
using baselines::Run;

const Cell* find_cell(const Run* run, const std::string& cell_name) {
  if (run == nullptr || run->cells.empty()) return nullptr;
  for (const Cell& cell : run->cells) {
    if (cell.name == cell_name) return &cell;
  }
  for (const Cell& cell : run->cells) {
    if (cell.status == CellStatus::kOk) return &cell;
  }
  return &run->cells.front();
}

void want_run(Session& session, Query<ViewedRun>& query, const std::string& id) {
  if (id.empty()) {
    query.clear();
    return;
  }
  const baselines::RunSummary* summary = session.summary(id);
  const bool open = summary != nullptr && summary->ended_unix_ns == 0;
  query.want(session.worker, fmt::format("{} {} {}", id, session.generation, open ? session.live : 0),
             [source = session.source, id](const std::atomic<bool>&) { return read_run(source, id); });
}

void want_trace(Session& session, Query<std::shared_ptr<const profiler::Trace>>& query, const std::string& run,
                const Cell* cell) {
  const baselines::Launch* launch = cell == nullptr ? nullptr : session.launch_of(*cell);
  if (launch == nullptr) {
    query.clear();
    return;
  }
  // Without the generation: a trace is written once, and reading ten million spans again because another cell ended
  // would be a waste.
  const std::string key = fmt::format("{}|{}|{}|{}", run, cell->name, launch->index, launch->trace_files.size());
  query.want(session.worker, key,
             [source = session.source, run, cell_name = cell->name,
              copy = *launch](const std::atomic<bool>& cancelled) -> Result<std::shared_ptr<const profiler::Trace>> {
               MB_ASSIGN(const auto files, trace_files(source, run, cell_name, copy));
               MB_ASSIGN(profiler::Trace read, read_traces(files, cancelled));
               return std::make_shared<const profiler::Trace>(std::move(read));
             });
}

}  // namespace

void Session::want_trace_a() {
  want_trace(*this, trace_a, selection.run, cell_a());
}

void Session::want_trace_b() {
  want_trace(*this, trace_b, selection.other, selection.other.empty() ? nullptr : cell_b());
}

void Session::load() {
  runs.want(worker, fmt::format("runs {} {}", generation, live),
            [spec = source](const std::atomic<bool>&) { return read_run_list(spec); });
  if (selection.run.empty() && runs.value() != nullptr && !runs.value()->runs.empty()) {
    selection.run = runs.value()->runs.front().id;
  }
  want_run(*this, run_a, selection.run);
  want_run(*this, run_b, selection.other);
}

bool Session::loading() const {
  return runs.loading() || run_a.loading() || run_b.loading() || trace_a.loading() || trace_b.loading();
}

const Cell* Session::cell_a() const {
  return find_cell(run_a.value(), selection.cell);
}

const Cell* Session::cell_b() const {
  if (!selection.other_cell.empty()) return find_cell(run_b.value(), selection.other_cell);
  const Cell* a = cell_a();
  return find_cell(run_b.value(), a != nullptr ? a->name : selection.cell);
}

const baselines::Launch* Session::launch_of(const Cell& cell) const {
  for (const baselines::Launch& launch : cell.launches) {
    if (launch.index == selection.launch) return &launch;
  }
  if (cell.launches.empty()) return nullptr;
  return unfinished(cell) ? &cell.launches.back() : &cell.launches.front();
}

void Session::select_run(const std::string& id) {
  if (selection.run == id) return;
  selection.run = id;
  if (selection.other == id) selection.other.clear();
  selection.launch = -1;
  selection.step = -1;
  selection.rank = -1;
}

void Session::select_other(const std::string& id) {
  selection.other = selection.other == id || id == selection.run ? std::string() : id;
  selection.other_cell.clear();
}

void Session::select_cell(const std::string& cell_name) {
  if (selection.cell == cell_name) return;
  selection.cell = cell_name;
  selection.launch = -1;
  selection.step = -1;
  selection.rank = -1;
}

void Session::swap_runs() {
  if (selection.other.empty()) return;
  std::swap(selection.run, selection.other);
  if (!selection.other_cell.empty()) std::swap(selection.cell, selection.other_cell);
}

const baselines::RunSummary* Session::summary(const std::string& id) const {
  if (runs.value() == nullptr) return nullptr;
  for (const baselines::RunSummary& run : runs.value()->runs) {
    if (run.id == id) return &run;
  }
  return nullptr;
}

bool Session::unfinished(const Cell& cell) const {
  for (const Query<ViewedRun>* run : {&run_a, &run_b}) {
    if (run->value() == nullptr) continue;
    for (const Cell& one : run->value()->cells) {
      if (&one == &cell) return run->value()->unfinished.contains(cell.name);
    }
  }
  return false;
}

Status select_field(Session& session, const std::string& field, const std::string& value) {
  Selection& selection = session.selection;
  const auto number = [&](auto& target) -> Status {
    const std::optional<std::int64_t> parsed = parse_int(value);
    if (!parsed || *parsed < -1 || *parsed > 1'000'000'000) {
      return fail(ErrorCode::kBadArgument, fmt::format("--select {}={}: not a number from 0", field, printable(value)));
    }
    target = static_cast<std::remove_reference_t<decltype(target)>>(*parsed);
    return {};
  };
  if (field == "run" || field == "other") {
    if (value.empty()) {
      (field == "run" ? selection.run : selection.other).clear();
      return {};
    }
    MB_ASSIGN(const std::string id, resolve_run(session.source, value));
    (field == "run" ? selection.run : selection.other) = id;
    return {};
  }
  if (field == "launch") return number(selection.launch);
  if (field == "step") return number(selection.step);
  if (field == "rank") return number(selection.rank);
  const std::vector<std::pair<std::string, std::string*>> texts = {
      {"cell", &selection.cell},     {"other_cell", &selection.other_cell}, {"op", &selection.op},
      {"knob_x", &selection.knob_x}, {"knob_y", &selection.knob_y},         {"metric", &selection.metric}};
  std::vector<std::string> names = {"run", "other", "launch", "step", "rank"};
  for (const auto& [text_name, target] : texts) {
    names.push_back(text_name);
    if (text_name != field) continue;
    *target = value;
    return {};
  }
  const std::optional<std::string> near = nearest(field, names);
  return fail(ErrorCode::kBadArgument, fmt::format("--select {}: no such field", printable(field)),
              near ? fmt::format("did you mean {}?", *near) : "fields: " + join(names, ", "));
}

std::vector<std::pair<std::string, std::string>> selection_fields(const Selection& selection) {
  return {{"run", selection.run},
          {"other", selection.other},
          {"cell", selection.cell},
          {"other_cell", selection.other_cell},
          {"op", selection.op},
          {"launch", std::to_string(selection.launch)},
          {"step", std::to_string(selection.step)},
          {"rank", std::to_string(selection.rank)},
          {"knob_x", selection.knob_x},
          {"knob_y", selection.knob_y},
          {"metric", selection.metric}};
}

}  // namespace mbb::viewer
