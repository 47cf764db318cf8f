// The store's schema as a list of migrations, and bringing a file up to it.
#include "baselines/store/schema.h"

#include <fmt/format.h>

#include <array>

namespace mbb::baselines {
namespace {

constexpr std::int64_t kApplicationId = 0x6d626273;  // "mbbs"

// Texts that repeat in every launch (op paths, kinds, categories) are stored once, in words.
constexpr const char* kVersion1 = R"sql(
CREATE TABLE meta(oldest_reader INTEGER NOT NULL);
CREATE TABLE runs(
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, command TEXT NOT NULL, suite TEXT NOT NULL, spec TEXT NOT NULL,
  tag TEXT NOT NULL, synthetic TEXT NOT NULL, created_unix_ns INTEGER NOT NULL, ended_unix_ns INTEGER NOT NULL,
  exit_status INTEGER NOT NULL, class_hash TEXT NOT NULL, epoch TEXT NOT NULL, bundle TEXT NOT NULL);
CREATE INDEX runs_by_time ON runs(created_unix_ns);
CREATE TABLE captured(
  run INTEGER NOT NULL REFERENCES runs(n) ON DELETE CASCADE, origin TEXT NOT NULL CHECK(origin IN ('argv','environment')),
  seq INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, hashed INTEGER NOT NULL,
  PRIMARY KEY(run, origin, seq)) WITHOUT ROWID;
CREATE TABLE facts(
  run INTEGER NOT NULL REFERENCES runs(n) ON DELETE CASCADE, seq INTEGER NOT NULL, key TEXT NOT NULL,
  value TEXT NOT NULL, in_class INTEGER NOT NULL, PRIMARY KEY(run, seq)) WITHOUT ROWID;
CREATE TABLE planned_cells(
  run INTEGER NOT NULL REFERENCES runs(n) ON DELETE CASCADE, seq INTEGER NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY(run, seq)) WITHOUT ROWID;
CREATE TABLE cells(
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(n) ON DELETE CASCADE, name TEXT NOT NULL,
  seq INTEGER NOT NULL, class TEXT NOT NULL, class_label TEXT NOT NULL, device TEXT NOT NULL, devices INTEGER NOT NULL,
  numerics_only INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, model TEXT NOT NULL,
  proxy_of TEXT NOT NULL, gpus INTEGER NOT NULL, ranks INTEGER NOT NULL, tokens_per_step INTEGER NOT NULL,
  flops_per_token_causal REAL, flops_per_token_full REAL, formula TEXT NOT NULL, formula_version INTEGER NOT NULL,
  identity_hash TEXT NOT NULL, program_hash TEXT NOT NULL, published TEXT NOT NULL, loss_checksum TEXT NOT NULL,
  UNIQUE(run, name));
CREATE TABLE knobs(
  cell INTEGER NOT NULL REFERENCES cells(id) ON DELETE CASCADE, seq INTEGER NOT NULL, key TEXT NOT NULL,
  value TEXT NOT NULL, source TEXT NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL, identity INTEGER NOT NULL,
  PRIMARY KEY(cell, seq)) WITHOUT ROWID;
CREATE TABLE launches(
  id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells(id) ON DELETE CASCADE, seq INTEGER NOT NULL,
  seed INTEGER NOT NULL, started_unix_ns INTEGER NOT NULL, ended_unix_ns INTEGER NOT NULL,
  exit_status INTEGER NOT NULL, signal INTEGER NOT NULL, reason TEXT NOT NULL, loss_checksum TEXT NOT NULL,
  UNIQUE(cell, seq));
CREATE TABLE launch_counts(
  launch INTEGER NOT NULL REFERENCES launches(id) ON DELETE CASCADE, seq INTEGER NOT NULL, name TEXT NOT NULL,
  count INTEGER NOT NULL, PRIMARY KEY(launch, seq)) WITHOUT ROWID;
CREATE TABLE launch_traces(
  launch INTEGER NOT NULL REFERENCES launches(id) ON DELETE CASCADE, seq INTEGER NOT NULL, file TEXT NOT NULL,
  PRIMARY KEY(launch, seq)) WITHOUT ROWID;
CREATE TABLE steps(
  launch INTEGER NOT NULL REFERENCES launches(id) ON DELETE CASCADE, seq INTEGER NOT NULL, step INTEGER NOT NULL,
  wall_ns INTEGER NOT NULL, cpu_ns INTEGER NOT NULL, modelled_ns INTEGER NOT NULL, loss REAL, grad_norm REAL,
  learning_rate REAL, tokens INTEGER NOT NULL, sequence_squares INTEGER NOT NULL, flags INTEGER NOT NULL,
  PRIMARY KEY(launch, seq)) WITHOUT ROWID;
CREATE TABLE words(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE ops(
  launch INTEGER NOT NULL REFERENCES launches(id) ON DELETE CASCADE, seq INTEGER NOT NULL, path INTEGER NOT NULL,
  kind INTEGER NOT NULL, role INTEGER NOT NULL, phase INTEGER NOT NULL, stream INTEGER NOT NULL,
  rank_class INTEGER NOT NULL, calls INTEGER NOT NULL, total_ns INTEGER NOT NULL, flops REAL, bytes INTEGER NOT NULL,
  PRIMARY KEY(launch, seq)) WITHOUT ROWID;
CREATE TABLE series(
  id INTEGER PRIMARY KEY, identity_hash TEXT NOT NULL, class_hash TEXT NOT NULL, epoch TEXT NOT NULL,
  metric TEXT NOT NULL, UNIQUE(identity_hash, class_hash, epoch, metric));
CREATE TABLE metrics(
  cell INTEGER NOT NULL REFERENCES cells(id) ON DELETE CASCADE, seq INTEGER NOT NULL, name TEXT NOT NULL, value REAL,
  low REAL, high REAL, unit TEXT NOT NULL, launches INTEGER NOT NULL, interval TEXT NOT NULL,
  series INTEGER REFERENCES series(id), created_unix_ns INTEGER, PRIMARY KEY(cell, seq)) WITHOUT ROWID;
CREATE INDEX metrics_by_series ON metrics(series, created_unix_ns, value, low, high, launches) WHERE series IS NOT NULL;
CREATE TABLE verdicts(
  cell INTEGER NOT NULL REFERENCES cells(id) ON DELETE CASCADE, seq INTEGER NOT NULL, subject TEXT NOT NULL,
  verdict TEXT NOT NULL, against TEXT NOT NULL, change REAL, low REAL, high REAL, text TEXT NOT NULL,
  PRIMARY KEY(cell, seq)) WITHOUT ROWID;
CREATE TABLE memory_maps(
  id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells(id) ON DELETE CASCADE,
  launch INTEGER REFERENCES launches(id) ON DELETE CASCADE, rank_class TEXT NOT NULL, unit TEXT NOT NULL,
  peak_bytes INTEGER NOT NULL, capacity_bytes INTEGER NOT NULL);
CREATE INDEX memory_maps_by_cell ON memory_maps(cell, launch);
CREATE INDEX memory_maps_by_launch ON memory_maps(launch);
CREATE TABLE memory_categories(
  map INTEGER NOT NULL REFERENCES memory_maps(id) ON DELETE CASCADE, seq INTEGER NOT NULL, category TEXT NOT NULL,
  planned_bytes INTEGER NOT NULL, measured_bytes INTEGER NOT NULL, PRIMARY KEY(map, seq)) WITHOUT ROWID;
CREATE TABLE memory_tensors(
  map INTEGER NOT NULL REFERENCES memory_maps(id) ON DELETE CASCADE, at_peak INTEGER NOT NULL, seq INTEGER NOT NULL,
  path INTEGER NOT NULL, category INTEGER NOT NULL, arena_offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
  first_writer INTEGER NOT NULL, last_reader INTEGER NOT NULL, from_at INTEGER NOT NULL, to_at INTEGER NOT NULL,
  PRIMARY KEY(map, at_peak, seq)) WITHOUT ROWID;
CREATE TABLE memory_curve(
  map INTEGER NOT NULL REFERENCES memory_maps(id) ON DELETE CASCADE, seq INTEGER NOT NULL, at INTEGER NOT NULL,
  category INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY(map, seq)) WITHOUT ROWID;

-- The public contract: columns keep their names and meaning; new ones may follow.
CREATE VIEW v_runs AS SELECT id AS run, command, suite, tag, synthetic, created_unix_ns, ended_unix_ns, exit_status,
  class_hash, epoch, bundle FROM runs;
CREATE VIEW v_cells AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, c.status, c.reason, c.model, c.gpus,
  c.ranks, c.identity_hash, c.tokens_per_step, c.loss_checksum FROM cells c JOIN runs r ON r.n = c.run;
CREATE VIEW v_metrics AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, m.name AS metric, m.value, m.low,
  m.high, m.unit, m.launches FROM metrics m JOIN cells c ON c.id = m.cell JOIN runs r ON r.n = c.run;
CREATE VIEW v_steps AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, l.seq AS launch, s.step, s.wall_ns,
  s.cpu_ns, s.modelled_ns, s.loss, s.grad_norm, s.learning_rate, s.tokens, s.flags
  FROM steps s JOIN launches l ON l.id = s.launch JOIN cells c ON c.id = l.cell JOIN runs r ON r.n = c.run;
CREATE VIEW v_ops AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, l.seq AS launch, p.text AS path,
  k.text AS kind, o.text AS role, h.text AS phase, t.text AS stream, a.text AS rank_class, x.calls, x.total_ns, x.flops,
  x.bytes
  FROM ops x JOIN launches l ON l.id = x.launch JOIN cells c ON c.id = l.cell JOIN runs r ON r.n = c.run
  JOIN words p ON p.id = x.path JOIN words k ON k.id = x.kind JOIN words o ON o.id = x.role
  JOIN words h ON h.id = x.phase JOIN words t ON t.id = x.stream JOIN words a ON a.id = x.rank_class;
)sql";

// Losses beside the main one.
constexpr const char* kVersion2 = R"sql(
ALTER TABLE steps ADD COLUMN balance_loss REAL;
ALTER TABLE steps ADD COLUMN z_loss REAL;
ALTER TABLE steps ADD COLUMN mtp_loss REAL;
DROP VIEW v_steps;
CREATE VIEW v_steps AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, l.seq AS launch, s.step, s.wall_ns,
  s.cpu_ns, s.modelled_ns, s.loss, s.grad_norm, s.learning_rate, s.tokens, s.flags, s.balance_loss, s.z_loss, s.mtp_loss
  FROM steps s JOIN launches l ON l.id = s.launch JOIN cells c ON c.id = l.cell JOIN runs r ON r.n = c.run;
)sql";

// What a cell trained on.
constexpr const char* kVersion3 = R"sql(
ALTER TABLE cells ADD COLUMN data_hash TEXT NOT NULL DEFAULT '';
DROP VIEW v_cells;
CREATE VIEW v_cells AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, c.status, c.reason, c.model, c.gpus,
  c.ranks, c.identity_hash, c.tokens_per_step, c.loss_checksum, c.data_hash FROM cells c JOIN runs r ON r.n = c.run;
)sql";

// Fixed work beside a step.
constexpr const char* kVersion4 = R"sql(
ALTER TABLE steps ADD COLUMN reference_ns INTEGER NOT NULL DEFAULT 0;
DROP VIEW v_steps;
CREATE VIEW v_steps AS SELECT r.id AS run, c.name AS cell, c.class_label AS class, l.seq AS launch, s.step, s.wall_ns,
  s.cpu_ns, s.modelled_ns, s.loss, s.grad_norm, s.learning_rate, s.tokens, s.flags, s.balance_loss, s.z_loss, s.mtp_loss,
  s.reference_ns
  FROM steps s JOIN launches l ON l.id = s.launch JOIN cells c ON c.id = l.cell JOIN runs r ON r.n = c.run;
)sql";

constexpr std::array kMigrations = {Migration{kVersion1, 1}, Migration{kVersion2, 1}, Migration{kVersion3, 1},
                                    Migration{kVersion4, 1}};

struct FileState {
  std::int64_t version = 0;
  std::int64_t application = 0;
  bool empty = true;
};

Result<FileState> state_of(const Database& database) {
  FileState state;
  MB_ASSIGN(state.version, database.integer("PRAGMA user_version"));
  MB_ASSIGN(state.application, database.integer("PRAGMA application_id"));
  MB_ASSIGN(const std::int64_t objects, database.integer("SELECT count(*) FROM sqlite_schema"));
  state.empty = objects == 0 && state.application == 0 && state.version == 0;
  return state;
}

Status check_ours(const Database& database, const FileState& state) {
  if (state.application == kApplicationId && state.version > 0) return {};
  return fail(ErrorCode::kBadFile,
              fmt::format("store {}: it is a database of another program", database.file().string()),
              "name another file as the store");
}

tl::unexpected<Error> newer(const Database& database, std::int64_t version, std::size_t known) {
  return fail(ErrorCode::kMismatch,
              fmt::format("store {}: schema version {}, written by a newer mbbench; this one knows up to {}",
                          database.file().string(), version, known),
              "use that mbbench, or rebuild an own store from the bundles: mbbench index DIR with another store path");
}

Status copy_before_migration(const Database& database, std::int64_t version) {
  const std::string copy = fmt::format("{}.v{}.bak", database.file().string(), version);
  std::error_code error;
  std::filesystem::remove(copy, error);
  // VACUUM INTO copies a consistent state, what still lies in the write-ahead log included.
  MB_ASSIGN(Statement vacuum, database.prepare("VACUUM INTO ?1"));
  return vacuum.run(copy);
}

Status apply(const Database& database, std::span<const Migration> migrations) {
  MB_ASSIGN(Transaction transaction, Transaction::begin(database));
  // Again under the lock: another process may have been faster.
  MB_ASSIGN(const std::int64_t from, database.integer("PRAGMA user_version"));
  if (std::cmp_greater_equal(from, migrations.size())) return {};
  for (std::size_t i = static_cast<std::size_t>(from); i < migrations.size(); ++i) {
    MB_TRY(database.execute(migrations[i].sql));
    MB_TRY(database.execute(fmt::format("DELETE FROM meta; INSERT INTO meta VALUES({})", migrations[i].oldest_reader)));
  }
  MB_TRY(database.execute(fmt::format("PRAGMA application_id = {}", kApplicationId)));
  MB_TRY(database.execute(fmt::format("PRAGMA user_version = {}", migrations.size())));
  return transaction.commit();
}

}  // namespace

std::span<const Migration> store_migrations() {
  return kMigrations;
}

Status bring_up_to_date(const Database& database, std::span<const Migration> migrations) {
  MB_ASSIGN(const FileState state, state_of(database));
  if (state.empty) return apply(database, migrations);
  MB_TRY(check_ours(database, state));
  if (std::cmp_greater(state.version, migrations.size())) return newer(database, state.version, migrations.size());
  if (std::cmp_equal(state.version, migrations.size())) return {};
  MB_TRY(copy_before_migration(database, state.version));
  return apply(database, migrations);
}

Status check_readable(const Database& database, std::span<const Migration> migrations) {
  MB_ASSIGN(const FileState state, state_of(database));
  MB_TRY(check_ours(database, state));
  if (std::cmp_less(state.version, migrations.size())) {
    return fail(ErrorCode::kMismatch,
                fmt::format("store {}: schema version {} is older than {} and may not be changed",
                            database.file().string(), state.version, migrations.size()),
                "open it once where it may be written, which migrates it");
  }
  if (std::cmp_equal(state.version, migrations.size())) return {};
  MB_ASSIGN(const std::int64_t oldest, database.integer("SELECT oldest_reader FROM meta"));
  if (std::cmp_greater(oldest, migrations.size())) return newer(database, state.version, migrations.size());
  return {};
}

}  // namespace mbb::baselines
