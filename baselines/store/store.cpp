// The store's front: opening, naming runs, listing, series, and rebuilding from bundles.
#include "baselines/store/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <system_error>

#include "baselines/store/bundle.h"
#include "baselines/store/schema.h"
#include "baselines/store/store_impl.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/disk.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

bool on_network(const fs::path& file) {
  const auto disk = profiler::disk_of(folder_of(file).string());
  return disk && disk->network;
}

Result<Database> open_read_only(const fs::path& file, int busy_timeout_ms) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    return fail(ErrorCode::kNotFound, fmt::format("store {}: there is none", file.string()),
                "run a suite first, or build it from bundles: mbbench index DIR");
  }
  const auto open_as = [&](OpenMode mode) -> Result<Database> {
    MB_ASSIGN(Database database, Database::open(file, mode, busy_timeout_ms));
    MB_TRY(check_readable(database, store_migrations()));
    return database;
  };
  auto opened = open_as(OpenMode::kReadOnly);
  if (opened || opened.error().code != ErrorCode::kIo) return opened;
  // Readers of a write-ahead log need an index file beside it. Where that cannot be made, nobody can write the log
  // either: without one the file alone is the whole store.
  const fs::path log = file.string() + "-wal";
  if (!fs::exists(log, error) || fs::file_size(log, error) == 0) return open_as(OpenMode::kReadOnlyFixed);
  return fail(
      ErrorCode::kIo,
      fmt::format("store {}: what was written last is in {}, and to read that {}-shm must be written beside it, "
                  "32 KiB, which failed: {}",
                  file.string(), log.string(), file.string(), opened.error().what),
      "free some space, or copy the store and its -wal to where there is some and read them there");
}

Result<Database> open_to_write(const fs::path& file, int busy_timeout_ms) {
  MB_TRY(make_dirs(folder_of(file)));
  MB_ASSIGN(Database database, Database::open(file, OpenMode::kReadWrite, busy_timeout_ms));
  // The schema first: a file that is not ours must not get so much as a journal mode from us.
  MB_TRY(bring_up_to_date(database, store_migrations()));
  const bool network = on_network(file);
  MB_ASSIGN(const std::string mode,
            database.text(network ? "PRAGMA journal_mode = DELETE" : "PRAGMA journal_mode = WAL"));
  if (mode != (network ? "delete" : "wal")) {
    return fail(ErrorCode::kIo, fmt::format("store {}: its journal mode stays {}", file.string(), mode),
                "close other programs that have it open");
  }
  // What a power cut may take from a write-ahead log is rebuilt from bundles; the file itself stays whole.
  MB_TRY(database.execute(network ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"));
  MB_TRY(database.execute("PRAGMA foreign_keys = ON; PRAGMA cache_size = -16000"));
  return database;
}

constexpr const char* kSummaryColumns =
    "SELECT r.id, r.command, r.suite, r.tag, r.synthetic, r.bundle, r.class_hash, r.epoch, r.created_unix_ns, "
    "r.ended_unix_ns, r.exit_status, (SELECT count(*) FROM planned_cells p WHERE p.run = r.n), "
    "(SELECT count(*) FROM cells c WHERE c.run = r.n AND c.status = 'ok'), "
    "(SELECT count(*) FROM cells c WHERE c.run = r.n AND c.status = 'skipped'), "
    "(SELECT count(*) FROM cells c WHERE c.run = r.n AND c.status = 'broken'), "
    "(SELECT count(*) FROM cells c WHERE c.run = r.n AND c.status = 'unstable'), "
    "(SELECT count(*) FROM cells c WHERE c.run = r.n AND c.status = 'ok' AND EXISTS (SELECT 1 FROM verdicts v "
    "WHERE v.cell = c.id AND v.subject = 'loss' AND v.verdict = 'incomparable')) FROM runs r ";

RunSummary summary_of(const Statement& row) {
  RunSummary run;
  run.id = row.text(0);
  run.command = row.text(1);
  run.suite = row.text(2);
  run.tag = row.text(3);
  run.synthetic = row.text(4);
  run.bundle = row.text(5);
  run.class_hash = row.text(6);
  run.epoch = row.text(7);
  run.created_unix_ns = row.integer(8);
  run.ended_unix_ns = row.integer(9);
  run.exit_status = row.small(10);
  run.cells_planned = row.small(11);
  run.cells_unproven = row.small(16);
  run.cells_ok = row.small(12) - run.cells_unproven;
  run.cells_skipped = row.small(13);
  run.cells_broken = row.small(14);
  run.cells_unstable = row.small(15);
  return run;
}

// Ids that a query with one parameter yields.
template <typename Parameter>
Result<std::vector<std::string>> ids_of(const Database& database, const char* sql, const Parameter& parameter) {
  MB_ASSIGN(Statement query, database.prepare(sql));
  query.bind_all(parameter);
  std::vector<std::string> ids;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return ids;
    ids.push_back(query.text(0));
  }
}

tl::unexpected<Error> no_run(const std::string& spec, const char* hint) {
  return fail(ErrorCode::kNotFound, fmt::format("there is no run \"{}\"", spec), hint);
}

Result<std::string> resolve_at(const Database& database, const std::string& spec) {
  const std::string word = spec.substr(1);
  std::int64_t back = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), back);
  const bool number = error == std::errc{} && end == word.data() + word.size() && back >= 1;
  if (word == "latest" || number) {
    constexpr const char* kSql = "SELECT id FROM runs ORDER BY created_unix_ns DESC, n DESC LIMIT 1 OFFSET ?1";
    MB_ASSIGN(const auto ids, ids_of(database, kSql, number ? back - 1 : std::int64_t{0}));
    if (ids.empty()) return no_run(spec, "the store holds fewer runs: see mbbench list runs");
    return ids[0];
  }
  constexpr const char* kSql =
      "SELECT id FROM runs WHERE tag = ?1 AND tag <> '' ORDER BY created_unix_ns DESC, n DESC LIMIT 1";
  MB_ASSIGN(const auto ids, ids_of(database, kSql, word));
  if (ids.empty()) return no_run(spec, "no run has that tag: see mbbench list runs");
  return ids[0];
}

Result<std::vector<fs::path>> bundles_below(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return fail(ErrorCode::kNotFound, fmt::format("{} is no folder", folder.string()),
                "name a bundle or a folder that holds bundles");
  }
  std::vector<fs::path> bundles;
  if (looks_like_bundle(folder)) return std::vector{folder};
  fs::recursive_directory_iterator entries(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (!looks_like_bundle(entries->path())) continue;
    bundles.push_back(entries->path());
    entries.disable_recursion_pending();
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("listing {}: {}", folder.string(), error.message()));
  std::sort(bundles.begin(), bundles.end());
  return bundles;
}

// Stored cells that the bundle no longer has (a resumed run began them afresh) go.
Status drop_cells(const Database& database, const std::string& run, const std::set<std::string>& keep) {
  MB_ASSIGN(const auto stored,
            ids_of(database, "SELECT c.name FROM cells c JOIN runs r ON r.n = c.run WHERE r.id = ?1", run));
  MB_ASSIGN(Statement drop,
            database.prepare("DELETE FROM cells WHERE name = ?2 AND run = (SELECT n FROM runs WHERE id = ?1)"));
  for (const std::string& cell : stored) {
    if (!keep.contains(cell)) MB_TRY(drop.run(run, cell));
  }
  return {};
}

}  // namespace

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Result<Store> Store::open(const fs::path& file, StoreOptions options) {
  if (options.read_only) {
    MB_ASSIGN(Database database, open_read_only(file, options.busy_timeout_ms));
    return Store(std::make_unique<Impl>(Impl{std::move(database), true}));
  }
  MB_ASSIGN(Database database, open_to_write(file, options.busy_timeout_ms));
  return Store(std::make_unique<Impl>(Impl{std::move(database), false}));
}

Status Store::put_run(const Run& run, const fs::path& bundle) {
  std::error_code error;
  const fs::path absolute = bundle.empty() ? fs::path() : fs::absolute(bundle, error);
  return write_run_row(impl_->database, run, absolute.string());
}

Status Store::put_cell(const Cell& cell) {
  if (cell.status == CellStatus::kBroken && !cell.metrics.empty()) {
    return fail(ErrorCode::kBadArgument, fmt::format("cell {} is broken and carries metrics", cell.name),
                "no number is kept for a wrong computation: clear them");
  }
  return write_cell_rows(impl_->database, cell);
}

Status Store::remove_run(const std::string& id) {
  MB_ASSIGN(Statement remove, impl_->database.prepare("DELETE FROM runs WHERE id = ?1"));
  return remove.run(id);
}

Result<IndexReport> Store::index(const fs::path& folder) {
  MB_ASSIGN(const auto bundles, bundles_below(folder));
  IndexReport report;
  std::set<std::string> seen;
  for (const fs::path& bundle : bundles) {
    const auto reader = BundleReader::open(bundle);
    if (!reader) {
      report.troubles.push_back(reader.error());
      continue;
    }
    const std::string& id = reader->run().id;
    if (!seen.insert(id).second) {
      report.troubles.push_back({ErrorCode::kMismatch,
                                 fmt::format("{}: run {} is already in, from another folder", bundle.string(), id),
                                 "keep one of the two folders"});
      continue;
    }
    MB_TRY(put_run(reader->run(), bundle));
    ++report.runs;
    MB_ASSIGN(const auto entries, reader->cells());
    std::set<std::string> keep;
    for (const CellEntry& entry : entries) {
      if (entry.state == CellState::kUnfinished) {
        ++report.unfinished;
        continue;
      }
      keep.insert(entry.name);
      auto cell = reader->read_cell(entry.name);
      if (!cell) {
        report.troubles.push_back(std::move(cell.error()));
        continue;
      }
      MB_TRY(put_cell(*cell));
      ++report.cells;
    }
    MB_TRY(drop_cells(impl_->database, id, keep));
  }
  return report;
}

Result<std::vector<RunSummary>> Store::list_runs(int limit) const {
  MB_ASSIGN(Statement query, impl_->database.prepare(std::string(kSummaryColumns) +
                                                     "ORDER BY r.created_unix_ns DESC, r.n DESC LIMIT ?1"));
  query.bind_all(limit > 0 ? limit : -1);
  std::vector<RunSummary> runs;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return runs;
    runs.push_back(summary_of(query));
  }
}

Result<std::string> Store::resolve(const std::string& spec) const {
  if (spec.empty()) return no_run(spec, "name a run: @latest, @2, @tag, an id or the beginning of one");
  if (spec[0] == '@') return resolve_at(impl_->database, spec);
  MB_ASSIGN(const auto ids,
            ids_of(impl_->database,
                   "SELECT id FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id = ?1 DESC, id LIMIT 6", spec));
  if (ids.empty()) return no_run(spec, "see mbbench list runs; a bundle is named by its folder");
  if (ids.size() == 1 || ids[0] == spec) return ids[0];
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("\"{}\" begins more than one run: {}{}", spec,
                  fmt::join(ids.begin(), std::min(ids.end(), ids.begin() + 5), ", "), ids.size() > 5 ? ", ..." : ""),
      "give more of the id");
}

Result<RunSummary> Store::summary(const std::string& id) const {
  MB_ASSIGN(Statement query, impl_->database.prepare(std::string(kSummaryColumns) + "WHERE r.id = ?1"));
  query.bind_all(id);
  MB_ASSIGN(const bool row, query.step());
  if (!row) return no_run(id, "see mbbench list runs");
  return summary_of(query);
}

Result<profiler::Fingerprint> Store::fingerprint(const std::string& id) const {
  MB_ASSIGN(Statement query, impl_->database.prepare("SELECT f.key, f.value, f.in_class FROM facts f JOIN runs r "
                                                     "ON r.n = f.run WHERE r.id = ?1 ORDER BY f.seq"));
  query.bind_all(id);
  std::vector<profiler::HostFact> facts;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) break;
    facts.push_back({query.text(0), query.text(1), query.flag(2)});
  }
  return profiler::make_fingerprint(std::move(facts));
}

Result<std::string> Store::typed_setting(const std::string& id, const std::string& key) const {
  MB_ASSIGN(Statement query,
            impl_->database.prepare("SELECT c.value FROM captured c JOIN runs r ON r.n = c.run WHERE r.id = ?1 AND "
                                    "c.origin = 'argv' AND c.name = ?2 AND NOT c.hashed ORDER BY c.seq DESC LIMIT 1"));
  query.bind_all(id, key);
  MB_ASSIGN(const bool row, query.step());
  return row ? query.text(0) : std::string();
}

Result<Run> Store::load_run(const std::string& id) const {
  return read_run_rows(impl_->database, id);
}

Result<std::vector<SeriesPoint>> Store::series(const SeriesKey& key) const {
  MB_ASSIGN(Statement query,
            impl_->database.prepare(
                "SELECT r.id, m.created_unix_ns, m.value, m.low, m.high, m.launches FROM series s "
                "JOIN metrics m ON m.series = s.id JOIN cells c ON c.id = m.cell JOIN runs r ON r.n = c.run "
                "WHERE s.identity_hash = ?1 AND s.class_hash = ?2 AND s.epoch = ?3 AND s.metric = ?4 "
                "ORDER BY m.created_unix_ns, m.cell"));
  query.bind_all(key.identity_hash, key.class_hash, key.epoch, key.metric);
  std::vector<SeriesPoint> points;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return points;
    points.push_back({query.text(0), query.integer(1), query.real(2), query.real(3), query.real(4), query.small(5)});
  }
}

Result<std::vector<SeriesSummary>> Store::list_series() const {
  // SQLite takes the other columns from the row that has the maximum.
  MB_ASSIGN(Statement query,
            impl_->database.prepare(
                "SELECT s.identity_hash, s.class_hash, s.epoch, s.metric, c.name, c.model, c.class_label, m.unit, "
                "count(*), max(m.created_unix_ns) FROM series s JOIN metrics m ON m.series = s.id "
                "JOIN cells c ON c.id = m.cell GROUP BY s.id ORDER BY c.model, c.name, s.metric, s.id"));
  std::vector<SeriesSummary> all;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return all;
    SeriesSummary one;
    one.key = {query.text(0), query.text(1), query.text(2), query.text(3)};
    one.cell = query.text(4);
    one.model = query.text(5);
    one.class_label = query.text(6);
    one.unit = query.text(7);
    one.points = query.integer(8);
    one.newest_unix_ns = query.integer(9);
    all.push_back(std::move(one));
  }
}

Result<std::vector<HistoryPoint>> Store::history(const std::string& identity_hash, const std::string& metric) const {
  MB_ASSIGN(Statement query,
            impl_->database.prepare(
                "SELECT r.id, m.created_unix_ns, r.command, r.suite, c.name, s.class_hash, s.epoch, "
                "coalesce((SELECT f.value FROM facts f WHERE f.run = r.n AND f.key = 'build.commit'), ''), "
                "m.value, m.low, m.high, m.launches, "
                "coalesce((SELECT v.verdict FROM verdicts v WHERE v.cell = c.id AND v.subject = s.metric "
                "ORDER BY v.seq DESC LIMIT 1), ''), "
                "coalesce((SELECT v.against FROM verdicts v WHERE v.cell = c.id AND v.subject = s.metric "
                "ORDER BY v.seq DESC LIMIT 1), '') "
                "FROM series s JOIN metrics m ON m.series = s.id JOIN cells c ON c.id = m.cell "
                "JOIN runs r ON r.n = c.run WHERE s.identity_hash = ?1 AND s.metric = ?2 "
                "ORDER BY m.created_unix_ns, m.cell"));
  query.bind_all(identity_hash, metric);
  std::vector<HistoryPoint> points;
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return points;
    points.push_back({query.text(0), query.integer(1), query.text(2), query.text(3), query.text(4), query.text(5),
                      query.text(6), query.text(7), query.real(8), query.real(9), query.real(10), query.small(11),
                      query.text(12), query.text(13)});
  }
}

const fs::path& Store::file() const {
  return impl_->database.file();
}

Result<std::string> Store::journal_mode() const {
  return impl_->database.text("PRAGMA journal_mode");
}

Result<Run> load_run(const std::string& spec, const Store* store) {
  if (!spec.empty() && spec[0] != '@' && looks_like_bundle(spec)) {
    MB_ASSIGN(const BundleReader reader, BundleReader::open(spec));
    return reader.read_all();
  }
  if (store == nullptr) {
    return no_run(spec, "there is no store yet: run a suite first, or name a bundle's folder");
  }
  MB_ASSIGN(const std::string id, store->resolve(spec));
  return store->load_run(id);
}

Status name_products(const Store& store, const std::vector<profiler::HostFact>& declared,
                     const profiler::FactRoles& roles, std::vector<HistoryPoint>& points) {
  for (HistoryPoint& point : points) {
    MB_ASSIGN(const profiler::Fingerprint facts, store.fingerprint(point.run));
    MB_ASSIGN(const std::string typed, store.typed_setting(point.run, "gate.environment"));
    profiler::FactRoles then = roles;
    for (const std::string_view part : split(typed, ',')) {
      const auto& pattern = then.environment.emplace_back(trim(part));
      std::erase_if(then.product, [&](const std::string& key) { return glob_match(pattern, key); });
    }
    if (!profiler::declared_product(facts, declared, then).empty())
      point.build = profiler::product_text(facts, declared, then);
  }
  return {};
}

}  // namespace mbb::baselines
