// Reads of stores and bundles.
#include "viewer/load/source.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "baselines/pins/pins.h"
#include "baselines/store/bundle.h"
#include "baselines/store/unproven.h"
#include "profiler/base/clock.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;
using baselines::BundleReader;
using baselines::Run;
using baselines::RunSummary;
using baselines::Store;

Result<Store> open_store(const SourceSpec& source) {
  if (source.store.empty()) return fail(ErrorCode::kNotFound, "no store was given", "pass --store FILE");
  std::error_code error;
  if (!fs::exists(source.store, error)) {
    return fail(ErrorCode::kNotFound, fmt::format("store {} is not there", source.store.string()),
                "run `mbbench suite quickstart` to make one, or pass --store FILE");
  }
  return Store::open(source.store, {.read_only = true, .busy_timeout_ms = 2000});
}

bool store_there(const SourceSpec& source) {
  std::error_code error;
  return !source.store.empty() && fs::exists(source.store, error);
}

void count_cell(RunSummary& summary, const baselines::Cell& cell) {
  using baselines::CellStatus;
  if (cell.status == CellStatus::kOk) ++(baselines::is_unproven(cell) ? summary.cells_unproven : summary.cells_ok);
  if (cell.status == CellStatus::kSkipped) ++summary.cells_skipped;
  if (cell.status == CellStatus::kBroken) ++summary.cells_broken;
  if (cell.status == CellStatus::kUnstable) ++summary.cells_unstable;
}

Result<RunSummary> summarise(const fs::path& folder) {
  MB_ASSIGN(const BundleReader reader, BundleReader::open(folder));
  const Run& run = reader.run();
  RunSummary summary;
  summary.id = run.id;
  summary.command = run.command;
  summary.suite = run.suite;
  summary.tag = run.tag;
  summary.synthetic = run.synthetic;
  summary.bundle = folder.string();
  summary.epoch = run.epoch;
  summary.created_unix_ns = run.created_unix_ns;
  summary.ended_unix_ns = run.ended_unix_ns;
  summary.exit_status = run.exit_status;
  summary.cells_planned = static_cast<int>(run.planned_cells.size());
  MB_ASSIGN(const std::vector<baselines::CellEntry> cells, reader.cells());
  for (const baselines::CellEntry& entry : cells) {
    if (entry.state == baselines::CellState::kDamaged) ++summary.cells_broken;
    if (entry.state != baselines::CellState::kFinished) continue;
    MB_ASSIGN(const baselines::Cell cell, reader.read_cell(entry.name));
    count_cell(summary, cell);
  }
  return summary;
}

// What has begun and not ended, if the run has not ended: first as far as it has got, then said to be unfinished.
void add_unfinished(ViewedRun& run, const BundleReader& reader) {
  if (run.ended_unix_ns != 0) return;
  run.going_on = reader.being_written();
  for (const std::string& name : reader.run().planned_cells) {
    const auto same = [&](const baselines::Cell& cell) { return cell.name == name; };
    if (std::any_of(run.cells.begin(), run.cells.end(), same)) continue;
    Result<baselines::Cell> begun = reader.read_begun(name);
    if (!begun.has_value()) continue;  // planned only
    if (!run.going_on) {
      begun->status = baselines::CellStatus::kBroken;
      begun->reason = "cut off: the run ended before this cell did; `--resume` runs it again";
    }
    run.cells.push_back(std::move(*begun));
    run.unfinished.insert(name);
  }
}

// A damaged cell of a bundle must not hide the good ones: it stands in the run as a broken cell that says why.
Result<ViewedRun> read_bundle(const fs::path& folder) {
  MB_ASSIGN(const BundleReader reader, BundleReader::open(folder));
  ViewedRun run;
  static_cast<Run&>(run) = reader.run();
  MB_ASSIGN(const std::vector<baselines::CellEntry> cells, reader.cells());
  for (const baselines::CellEntry& entry : cells) {
    if (entry.state == baselines::CellState::kUnfinished) continue;
    Result<baselines::Cell> cell = entry.state == baselines::CellState::kDamaged
                                       ? Result<baselines::Cell>(tl::unexpected<Error>(entry.trouble))
                                       : reader.read_cell(entry.name);
    if (cell.has_value()) {
      run.cells.push_back(std::move(*cell));
      continue;
    }
    baselines::Cell damaged;
    damaged.run = run.id;
    damaged.name = entry.name;
    damaged.index = static_cast<int>(run.cells.size());
    damaged.status = baselines::CellStatus::kBroken;
    damaged.reason = "damaged bundle: " + cell.error().what;
    run.cells.push_back(std::move(damaged));
  }
  add_unfinished(run, reader);
  return run;
}

// Whether runs without an end go on; their bundles say.
void sort_open_ends(RunList& list) {
  for (const RunSummary& run : list.runs) {
    if (run.ended_unix_ns != 0) continue;
    const Result<BundleReader> reader = BundleReader::open(run.bundle);
    if (reader.has_value() && reader->being_written())
      list.going_on.emplace_back(run.bundle);
    else
      list.cut_off.insert(run.id);
  }
}

std::uint64_t stamp_of(const fs::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return 1;
  std::uint64_t stamp = 1469598103934665603ULL;
  const auto add = [&](std::uint64_t value) { stamp = (stamp ^ value) * 1099511628211ULL; };
  add(static_cast<std::uint64_t>(info.st_mtim.tv_sec));
  add(static_cast<std::uint64_t>(info.st_mtim.tv_nsec));
  add(static_cast<std::uint64_t>(info.st_size));
  add(static_cast<std::uint64_t>(info.st_ino));
  return stamp;
}

}  // namespace

Result<RunList> read_run_list(const SourceSpec& source) {
  RunList list;
  if (store_there(source)) {
    MB_ASSIGN(const Store store, open_store(source));
    MB_ASSIGN(list.runs, store.list_runs());
  } else if (source.bundles.empty()) {
    MB_TRY(open_store(source));
  }
  for (const fs::path& folder : source.bundles) {
    Result<RunSummary> summary = summarise(folder);
    if (!summary.has_value()) {
      list.troubles.push_back(std::move(summary.error()));
      continue;
    }
    std::erase_if(list.runs, [&](const RunSummary& other) { return other.id == summary->id; });
    list.runs.push_back(std::move(*summary));
  }
  if (list.runs.empty() && !list.troubles.empty()) return tl::unexpected<Error>(list.troubles.front());
  std::stable_sort(list.runs.begin(), list.runs.end(),
                   [](const RunSummary& a, const RunSummary& b) { return a.created_unix_ns > b.created_unix_ns; });
  sort_open_ends(list);
  return list;
}

Result<ViewedRun> read_run(const SourceSpec& source, const std::string& id) {
  for (const fs::path& folder : source.bundles) {
    const Result<BundleReader> reader = BundleReader::open(folder);
    if (reader.has_value() && reader->run().id == id) return read_bundle(folder);
  }
  MB_ASSIGN(const Store store, open_store(source));
  ViewedRun run;
  MB_ASSIGN(static_cast<Run&>(run), store.load_run(id));
  // Program texts live in the bundle only; without it the run is still whole but for them.
  const Result<RunSummary> summary = store.summary(id);
  if (summary.has_value() && !summary->bundle.empty()) {
    const Result<BundleReader> reader = BundleReader::open(summary->bundle);
    for (baselines::Cell& cell : run.cells) {
      if (!reader.has_value() || !cell.program_json.empty()) continue;
      Result<baselines::Cell> whole = reader->read_cell(cell.name);
      if (whole.has_value()) cell.program_json = std::move(whole->program_json);
    }
    if (reader.has_value()) add_unfinished(run, *reader);
  }
  return run;
}

Result<std::vector<baselines::SeriesSummary>> read_series_list(const SourceSpec& source) {
  MB_ASSIGN(const Store store, open_store(source));
  return store.list_series();
}

Result<analysis::History> read_history(const SourceSpec& source, const baselines::SeriesSummary& of) {
  MB_ASSIGN(const Store store, open_store(source));
  MB_ASSIGN(std::vector<baselines::HistoryPoint> points, store.history(of.key.identity_hash, of.key.metric));
  MB_TRY(baselines::name_products(store, {}, source.roles, points));
  std::vector<baselines::Pin> pins;
  if (!source.baselines.empty()) {
    MB_ASSIGN(pins, baselines::read_pins(source.baselines));
  }
  return analysis::make_history(of, std::move(points), pins, wall_ns());
}

Result<std::string> resolve_run(const SourceSpec& source, const std::string& spec) {
  for (const fs::path& folder : source.bundles) {
    const Result<BundleReader> reader = BundleReader::open(folder);
    if (!reader.has_value()) continue;
    if (spec == reader->run().id || spec == folder.string()) return reader->run().id;
    if (spec == "@latest" && !store_there(source)) return reader->run().id;
  }
  MB_ASSIGN(const Store store, open_store(source));
  return store.resolve(spec);
}

Result<fs::path> bundle_of(const SourceSpec& source, const std::string& id) {
  for (const fs::path& folder : source.bundles) {
    const Result<BundleReader> reader = BundleReader::open(folder);
    if (reader.has_value() && reader->run().id == id) return folder;
  }
  MB_ASSIGN(const Store store, open_store(source));
  MB_ASSIGN(const RunSummary summary, store.summary(id));
  if (summary.bundle.empty()) {
    return fail(ErrorCode::kNotFound, fmt::format("run {} has no bundle", id), "open its bundle folder instead");
  }
  return fs::path(summary.bundle);
}

std::uint64_t source_stamp(const SourceSpec& source) {
  std::uint64_t stamp = 0;
  const auto add = [&](const fs::path& path) { stamp = stamp * 31 + stamp_of(path); };
  if (!source.store.empty()) {
    add(source.store);
    add(source.store.string() + "-wal");
  }
  if (!source.baselines.empty()) add(source.baselines);
  for (const fs::path& folder : source.bundles) {
    add(folder / "run.json");
    add(folder / "cells");
    std::error_code error;
    for (fs::directory_iterator cell(folder / "cells", error), end; !error && cell != end; cell.increment(error)) {
      add(cell->path() / "checksums");
    }
  }
  return stamp;
}

std::uint64_t live_stamp(const std::vector<fs::path>& bundles) {
  std::uint64_t stamp = 0;
  for (const fs::path& bundle : bundles) {
    const Result<BundleReader> reader = BundleReader::open(bundle);
    stamp = stamp * 31 + (reader.has_value() && reader->being_written() ? 1 : 0);
    std::error_code error;
    for (fs::directory_iterator cell(bundle / "cells", error), end; !error && cell != end; cell.increment(error)) {
      if (fs::exists(cell->path() / "checksums", error)) continue;
      stamp = stamp * 31 + stamp_of(cell->path() / "config.json");
      std::error_code none;
      for (fs::directory_iterator launch(cell->path() / "launches", none); !none && launch != end;
           launch.increment(none)) {
        stamp = stamp * 31 + stamp_of(launch->path() / "steps.live.csv");
        stamp = stamp * 31 + stamp_of(launch->path() / "launch.json");
      }
    }
  }
  return stamp;
}

}  // namespace mbb::viewer
