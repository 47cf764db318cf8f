// What all panels share: one selection, the source of runs, the loads in flight, and wishes to the frame around them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "viewer/load/query.h"
#include "viewer/load/source.h"
#include "viewer/load/traces.h"
#include "viewer/load/worker.h"
#include "viewer/theme/palette.h"

namespace mbb::viewer {

// One selection for every panel. Empty or -1: nothing chosen.
struct Selection {
  std::string run;         // A: the run looked at
  std::string other;       // B: the run compared with
  std::string cell;        // of A
  std::string other_cell;  // of B; empty: the cell of the same name
  std::string op;          // dotted path, or a prefix of one
  int launch = -1;         // -1: the one that runs, else the first
  std::int64_t step = -1;
  int rank = -1;
  std::string knob_x;  // axes of the sweep
  std::string knob_y;
  std::string metric;  // of history and sweep

  bool operator==(const Selection&) const = default;
};

struct Session {
  Session(SourceSpec source_spec, std::function<void()> wake)
      : source(std::move(source_spec)), worker(std::move(wake)) {}

  SourceSpec source;
  Selection selection;
  std::string panel = "runs";  // the one in front
  Theme theme = Theme::kDark;
  bool navigator_open = true;
  bool help_open = false;
  bool find_requested = false;  // Ctrl+F: the panel in front moves the focus to its search field
  bool animate = false;         // set by a panel while what it shows moves without input

  // Counts changes on disk; part of every query's key, so that panels reload when a run goes on.
  std::uint64_t generation = 0;
  // Counts steps and launches of the runs that are going on; part of the keys of those runs.
  std::uint64_t live = 0;

  Query<RunList> runs;
  Query<ViewedRun> run_a;
  Query<ViewedRun> run_b;
  // Of the selected launches; loaded when a panel asks, shared by those that do.
  Query<std::shared_ptr<const profiler::Trace>> trace_a;
  Query<std::shared_ptr<const profiler::Trace>> trace_b;

  // Last: its threads end before anything they might write to.
  Worker worker;

  // Asks for the list and for the runs selected; call once a frame.
  void load();
  // Asks for the trace of A's (B's) selected launch; call every frame in which it is shown. Without a launch it is
  // forgotten.
  void want_trace_a();
  void want_trace_b();
  // True while a shared load has not come back.
  bool loading() const;

  // The selected cell of A or B: null while there is none. Falls back to the first cell that ran.
  const baselines::Cell* cell_a() const;
  const baselines::Cell* cell_b() const;
  // The launch shown of a cell: the selected one, the one that runs, or the first.
  const baselines::Launch* launch_of(const baselines::Cell& cell) const;

  // Looks at another run: what belonged to the old one (step, rank, launch) is forgotten, the cell's name is kept.
  void select_run(const std::string& id);
  void select_other(const std::string& id);
  void select_cell(const std::string& name);
  void swap_runs();
  const baselines::RunSummary* summary(const std::string& id) const;
  // Whether a cell of A or B has not ended: what it shows is what there is so far.
  bool unfinished(const baselines::Cell& cell) const;
};

// Sets one field by its name, for --select and scripts: run, other, cell, other_cell, op, launch, step, rank, knob_x,
// knob_y, metric. Runs are given in any form resolve_run takes.
Status select_field(Session& session, const std::string& field, const std::string& value);
// The fields and their values, in that order.
std::vector<std::pair<std::string, std::string>> selection_fields(const Selection& selection);

}  // namespace mbb::viewer
