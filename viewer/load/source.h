// Where runs come from: one store file, bundle folders, or both; and the reads that worker threads make of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "analysis/report/history.h"
#include "baselines/store/records.h"
#include "baselines/store/store.h"
#include "profiler/base/error.h"
#include "profiler/host/fact_roles.h"

namespace mbb::viewer {

struct SourceSpec {
  std::filesystem::path store;                 // may be empty or not there yet
  std::vector<std::filesystem::path> bundles;  // folders given on the command line
  std::filesystem::path baselines;             // accepted baselines; may be empty or not there
  profiler::FactRoles roles;                   // what a run's product is called by
};

// Newest first; runs of bundles stand beside those of the store, each id once.
struct RunList {
  std::vector<baselines::RunSummary> runs;
  std::vector<Error> troubles;                  // bundles that could not be read
  std::set<std::string> cut_off;                // runs without an end that no process writes any more
  std::vector<std::filesystem::path> going_on;  // bundles of the others without an end
};

// A run with its finished cells and, while it goes on, the one that is running as far as it has got.
struct ViewedRun : baselines::Run {
  std::set<std::string> unfinished;  // names in `cells` of cells that have not ended
  bool going_on = false;             // a process is writing it now
};

// Every function opens what it reads and closes it again, so that a store deleted or replaced between two frames is an
// error of one read. All are made for worker threads.
Result<RunList> read_run_list(const SourceSpec& source);
Result<ViewedRun> read_run(const SourceSpec& source, const std::string& id);
Result<std::vector<baselines::SeriesSummary>> read_series_list(const SourceSpec& source);
// Of one identity and metric over all machines and epochs, with baselines, verdicts and changes, as `mbbench history`
// tells it. `of`: any series of that identity and metric.
Result<analysis::History> read_history(const SourceSpec& source, const baselines::SeriesSummary& of);

// The id meant by what a user writes: @latest, @2, @tag, a prefix, or a bundle folder.
Result<std::string> resolve_run(const SourceSpec& source, const std::string& spec);

// The folder of a run's bundle, as given or as the store remembers it.
Result<std::filesystem::path> bundle_of(const SourceSpec& source, const std::string& id);

// Changes when the store file, its journal, a bundle or the baselines change on disk.
std::uint64_t source_stamp(const SourceSpec& source);
// Changes when a launch of one of these bundles begins, ends or ends a step, and when their writer is gone.
std::uint64_t live_stamp(const std::vector<std::filesystem::path>& bundles);

}  // namespace mbb::viewer
