// A stored run in the formats other tools open: Kineto traces, a memory snapshot, CSV tables, one JSON document, one
// HTML page.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "analysis/report/history.h"
#include "baselines/store/bundle.h"
#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "profiler/memory/snapshot.h"

namespace mbb::suites {

// What to export. `run` and `reader` are the same run; `cell` empty: every finished cell.
struct ExportSource {
  const baselines::Run& run;
  const baselines::BundleReader& reader;
  std::string cell;
  // For HTML: the run whose timelines stand above, and the series of this run's cells.
  const ExportSource* against = nullptr;
  std::vector<analysis::History> histories = {};
  std::string product = {};  // for HTML: as the gate calls it
  const analysis::Table* gate =
      nullptr;  // for HTML: what a gate said of the night, instead of what the run keeps of it
};

// Each writes below or at `to` and returns the files it wrote; nothing to write is an error that says what was not
// recorded. Folders are made.

// <to>/<cell>/launch<n>/rank<r>.json.gz: a folder that HolisticTraceAnalysis takes whole. Each file notes its class,
// and behind kSyntheticNote why its run is made up: `mbbench import` keeps both.
Result<std::vector<std::string>> export_kineto(const ExportSource& source, const std::filesystem::path& to);
// <to>/<cell>/launch<n>/<rank class>.pickle, of cells that ran with profiling.record_memory_history.
Result<std::vector<std::string>> export_memory(const ExportSource& source, const std::filesystem::path& to);
// <to>/metrics.csv, steps.csv, ops.csv, memory.csv and, where traces are, kernels.csv.
Result<std::vector<std::string>> export_csv(const ExportSource& source, const std::filesystem::path& to);
// The file `to`: run, cells, launches and their tables.
Result<std::vector<std::string>> export_json(const ExportSource& source, const std::filesystem::path& to);
// The file `to`: one HTML page that needs nothing beside it.
Status export_html(const ExportSource& source, const std::filesystem::path& to);

inline constexpr const char* kSyntheticNote = "; synthetic: ";

// Category of tensors that lie in pinned host memory: listed, never part of a device's sums.
inline constexpr const char* kPinnedHost = "pinned host memory";

// A map with every tensor's traced lifetime as an allocator snapshot: one segment, the arena, and one for what lies
// outside it; an alloc and a free a lifetime. kNotFound when the history was not recorded.
Result<profiler::MemorySnapshot> memory_snapshot(const baselines::MemoryMap& map);

}  // namespace mbb::suites
