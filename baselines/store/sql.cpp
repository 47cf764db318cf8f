// SQLite as this room uses it.
#include "baselines/store/sql.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cmath>
#include <limits>

#include "profiler/base/check.h"

namespace mbb::baselines {
namespace {

struct Trouble {
  int sqlite_code;
  ErrorCode code;
  const char* what;
  const char* hint;
};

constexpr Trouble kTroubles[] = {
    {SQLITE_BUSY, ErrorCode::kUnavailable, "it is locked by another process",
     "wait until that process ends, or stop it; nothing was written"},
    {SQLITE_LOCKED, ErrorCode::kUnavailable, "it is locked", "nothing was written; try again"},
    {SQLITE_CORRUPT, ErrorCode::kBadFile, "it is damaged",
     "move it away and rebuild it from the bundles: mbbench index DIR"},
    {SQLITE_NOTADB, ErrorCode::kBadFile, "it is no SQLite database",
     "name another store, or move the file away and rebuild it: mbbench index DIR"},
    {SQLITE_READONLY, ErrorCode::kIo, "it cannot be written", "check who may write the file and its folder"},
    {SQLITE_CANTOPEN, ErrorCode::kIo, "it cannot be opened", "check that its folder exists and may be written"},
    {SQLITE_PERM, ErrorCode::kIo, "access is denied", "check who may read and write it"},
    {SQLITE_AUTH, ErrorCode::kIo, "access is denied", "check who may read and write it"},
    {SQLITE_FULL, ErrorCode::kIo, "the disk is full", "free some space; nothing of the last write was kept"},
    {SQLITE_IOERR, ErrorCode::kIo, "the disk or file system failed",
     "check free space, quota and file size limit; nothing of the last write was kept"},
    {SQLITE_NOMEM, ErrorCode::kOutOfMemory, "there is not enough memory", ""},
    {SQLITE_TOOBIG, ErrorCode::kBadArgument, "a text is too large", ""},
    {SQLITE_CONSTRAINT, ErrorCode::kMismatch, "the records contradict each other", ""},
    {SQLITE_SCHEMA, ErrorCode::kMismatch, "another process changed its schema", "try again"},
};

tl::unexpected<Error> sql_error(const std::filesystem::path& file, int code, const char* detail) {
  for (const Trouble& trouble : kTroubles) {
    if (trouble.sqlite_code == (code & 0xff)) {
      return fail(trouble.code, fmt::format("store {}: {} ({})", file.string(), trouble.what, detail), trouble.hint);
    }
  }
  return fail(ErrorCode::kBadFile, fmt::format("store {}: {}", file.string(), detail),
              "if it is no store of this program, name another; else rebuild it: mbbench index DIR");
}

// The path as SQLite's URI form, where '?', '#' and '%' have a meaning of their own.
std::string uri_of(const std::filesystem::path& file, bool fixed) {
  std::string uri = "file:";
  for (const char c : std::filesystem::absolute(file).string()) {
    if (c == '?' || c == '#' || c == '%') {
      uri += fmt::format("%{:02X}", static_cast<unsigned>(c));
    } else {
      uri += c;
    }
  }
  return uri + (fixed ? "?immutable=1" : "");
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

void Statement::bind(int index, std::int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
}

void Statement::bind(int index, double value) {
  sqlite3_bind_double(statement_.get(), index, value);
}

void Statement::bind(int index, std::string_view value) {
  // A null pointer would bind NULL, where an empty text is meant.
  sqlite3_bind_text64(statement_.get(), index, value.empty() ? "" : value.data(), value.size(), SQLITE_STATIC,
                      SQLITE_UTF8);
}

Result<bool> Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  auto error = sql_error(file_, code, sqlite3_errmsg(sqlite3_db_handle(statement_.get())));
  reset();
  return error;
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double Statement::real(int column) const {
  if (is_null(column)) return std::numeric_limits<double>::quiet_NaN();
  return sqlite3_column_double(statement_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (bytes == nullptr) return {};
  return std::string(bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column)));
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

void Database::Close::operator()(sqlite3* handle) const {
  sqlite3_close(handle);
}

Result<Database> Database::open(const std::filesystem::path& file, OpenMode mode, int busy_timeout_ms) {
  const int flags = SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
                    (mode == OpenMode::kReadWrite ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(uri_of(file, mode == OpenMode::kReadOnlyFixed).c_str(), &handle, flags, nullptr);
  Database database(handle, file);
  if (code != SQLITE_OK) return sql_error(file, code, handle == nullptr ? "no memory" : sqlite3_errmsg(handle));
  sqlite3_busy_timeout(handle, busy_timeout_ms);
  return database;
}

Result<Statement> Database::prepare(std::string_view sql) const {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return sql_error(file_, code, sqlite3_errmsg(handle_.get()));
  MB_CHECK(statement != nullptr, "an empty SQL statement");
  return Statement(statement, file_);
}

Status Database::execute(const std::string& sql) const {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return sql_error(file_, code, sqlite3_errmsg(handle_.get()));
  return {};
}

Result<std::int64_t> Database::integer(std::string_view sql) const {
  MB_ASSIGN(Statement statement, prepare(sql));
  MB_ASSIGN(const bool row, statement.step());
  if (!row) return fail(ErrorCode::kBadFile, fmt::format("store {}: a row is missing", file_.string()));
  return statement.integer(0);
}

Result<std::string> Database::text(std::string_view sql) const {
  MB_ASSIGN(Statement statement, prepare(sql));
  MB_ASSIGN(const bool row, statement.step());
  if (!row) return fail(ErrorCode::kBadFile, fmt::format("store {}: a row is missing", file_.string()));
  return statement.text(0);
}

std::int64_t Database::last_row() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

Result<Transaction> Transaction::begin(const Database& database) {
  // IMMEDIATE takes the write lock now, where waiting for it is possible, rather than at the first write.
  MB_TRY(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  // A full disk may have rolled it back already; then this says so and nothing is lost.
  if (database_ != nullptr) (void)database_->execute("ROLLBACK");
}

Status Transaction::commit() {
  MB_TRY(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace mbb::baselines
