// Where runs come from: one store file, bundle folders, or both; and the reads that worker threads make of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "baselines/store/store.h"
#include "profiler/base/error.h"

namespace mbb::viewer {

struct SourceSpec {
  std::filesystem::path store;                 // may be empty or not there yet
  std::vector<std::filesystem::path> bundles;  // folders given on the command line
};

// Newest first; runs of bundles stand beside those of the store, each id once.
struct RunList {
  std::vector<baselines::RunSummary> runs;
  std::vector<Error> troubles;  // bundles that could not be read
};

// Every function opens what it reads and closes it again, so that a store deleted or replaced between two frames is an
// error of one read. All are made for worker threads.
Result<RunList> read_run_list(const SourceSpec& source);
Result<baselines::Run> read_run(const SourceSpec& source, const std::string& id);
Result<std::vector<baselines::SeriesSummary>> read_series_list(const SourceSpec& source);
Result<std::vector<baselines::SeriesPoint>> read_series(const SourceSpec& source, const baselines::SeriesKey& key);

// The id meant by what a user writes: @latest, @2, @tag, a prefix, or a bundle folder.
Result<std::string> resolve_run(const SourceSpec& source, const std::string& spec);

// The folder of a run's bundle, as given or as the store remembers it.
Result<std::filesystem::path> bundle_of(const SourceSpec& source, const std::string& id);

// Changes when the store file, its journal or a bundle changes on disk.
std::uint64_t source_stamp(const SourceSpec& source);

}  // namespace mbb::viewer
