// The store: an index over runs in one SQLite file, rebuilt at any time from bundles.
//
// Runs, cells, launches, steps, metrics, op rows, memory and verdicts, without the bundle's traces and program texts.
// The views v_runs, v_steps and v_ops are a public contract. A store is used by one thread at a time; several processes
// may have it open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/host/fact_roles.h"

namespace mbb::baselines {

struct StoreOptions {
  bool read_only = false;
  int busy_timeout_ms = 10'000;  // how long to wait for another process's write
};

// A run as a list shows it.
struct RunSummary {
  std::string id;
  std::string command;
  std::string suite;
  std::string tag;
  std::string synthetic;
  std::string bundle;  // its folder when it was indexed
  std::string class_hash;
  std::string epoch;
  std::int64_t created_unix_ns = 0;
  std::int64_t ended_unix_ns = 0;
  int exit_status = 0;
  int cells_planned = 0;
  int cells_ok = 0;        // and proven
  int cells_unproven = 0;  // ok, and nothing was there to compare their losses with (unproven.h)
  int cells_skipped = 0;
  int cells_broken = 0;
  int cells_unstable = 0;
};

// What a series is the history of. Classes, fingerprint classes and epochs never mix.
struct SeriesKey {
  std::string identity_hash;
  std::string class_hash;
  std::string epoch;
  std::string metric;
};

struct SeriesPoint {
  std::string run;
  std::int64_t created_unix_ns = 0;
  double value = kNotMeasured;
  double low = kNotMeasured;
  double high = kNotMeasured;
  int launches = 0;
};

// A point of a history: a series over all its machines and epochs, with what a gate said.
struct HistoryPoint {
  std::string run;
  std::int64_t created_unix_ns = 0;
  std::string command;
  std::string suite;
  std::string cell;
  std::string class_hash;
  std::string epoch;
  std::string build;  // commit; of a product of the user's own after name_products()
  double value = kNotMeasured;
  double low = kNotMeasured;
  double high = kNotMeasured;
  int launches = 0;
  std::string verdict;  // of this metric, the last one given; empty: none
  std::string against;  // baseline
};

struct SeriesSummary {
  SeriesKey key;
  std::string cell;  // name and labels of its newest point
  std::string model;
  std::string class_label;
  std::string unit;
  std::int64_t points = 0;
  std::int64_t newest_unix_ns = 0;
};

// How one bundle fared in index().
struct IndexReport {
  int runs = 0;
  int cells = 0;
  int unfinished = 0;
  std::vector<Error> troubles;  // bundles and cells that could not be read; the others are in
};

class Store {
 public:
  // Opens, creates or migrates the file. A migration copies the file first. A newer schema, a damaged file and a file
  // that is no store are errors and stay untouched.
  static Result<Store> open(const std::filesystem::path& file, StoreOptions options = {});

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  // Inserts or replaces the run's own row; its cells stay.
  Status put_run(const Run& run, const std::filesystem::path& bundle);
  // Inserts or replaces one cell of a run that is there, in one transaction.
  Status put_cell(const Cell& cell);
  Status remove_run(const std::string& id);

  // Reads every bundle below `folder` (or `folder` itself); doing it again changes nothing.
  Result<IndexReport> index(const std::filesystem::path& folder);

  // Newest first. `limit` 0: all.
  Result<std::vector<RunSummary>> list_runs(int limit = 0) const;

  // The id meant by @latest (same as @1), @2 (the one before it), @tag (newest with that tag), an id, or a prefix that
  // only one id has.
  Result<std::string> resolve(const std::string& spec) const;
  Result<RunSummary> summary(const std::string& id) const;

  // A run's facts alone; of a run that is not there none.
  Result<profiler::Fingerprint> fingerprint(const std::string& id) const;

  // What a run's command line set `key` to, as the record keeps it; empty: nothing.
  Result<std::string> typed_setting(const std::string& id, const std::string& key) const;

  // The run with its cells, launches, steps, ops and memory.
  Result<Run> load_run(const std::string& id) const;

  // Oldest first. Only ok cells whose numbers count: broken, unstable and numerics-only ones are not in a series.
  Result<std::vector<SeriesPoint>> series(const SeriesKey& key) const;
  Result<std::vector<SeriesSummary>> list_series() const;
  // Oldest first, all fingerprint classes and epochs of one cell identity.
  Result<std::vector<HistoryPoint>> history(const std::string& identity_hash, const std::string& metric) const;

  const std::filesystem::path& file() const;
  // "wal", or "delete" on a network file system.
  Result<std::string> journal_mode() const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A run by any name a user may give: a bundle folder, or what Store::resolve takes. `store` may be null when there is
// none yet; then only folders are found.
Result<Run> load_run(const std::string& spec, const Store* store);

// Sets the points' `build` to what a person calls their runs' product (profiler::product_text): an image, where a run
// declared one. What its command line declared as the environment is none, whatever `roles` say.
Status name_products(const Store& store, const std::vector<profiler::HostFact>& declared,
                     const profiler::FactRoles& roles, std::vector<HistoryPoint>& points);

}  // namespace mbb::baselines
