// SQLite behind NsysTables: read-only, the schema of the file not trusted.
#include "profiler/trace/readers/nsys_tables.h"

#include <sqlite3.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "profiler/base/text.h"

namespace mbb::profiler {

namespace {

std::string quoted(const std::string& identifier) {
  return "\"" + replace_all(identifier, "\"", "\"\"") + "\"";
}

using Statement = std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>;

class StatementRow final : public NsysRow {
 public:
  StatementRow(sqlite3_stmt* statement, std::vector<int> places) : statement_(statement), places_(std::move(places)) {}
  std::optional<int64_t> integer(size_t column) const override {
    const int place = places_[column];
    if (place < 0 || sqlite3_column_type(statement_, place) != SQLITE_INTEGER) return std::nullopt;
    return sqlite3_column_int64(statement_, place);
  }
  std::optional<std::string_view> text(size_t column) const override {
    const int place = places_[column];
    if (place < 0 || sqlite3_column_type(statement_, place) != SQLITE_TEXT) return std::nullopt;
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, place));
    if (bytes == nullptr) return std::nullopt;
    return std::string_view(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, place)));
  }

 private:
  sqlite3_stmt* statement_;
  std::vector<int> places_;  // -1: the table lacks the column
};

}  // namespace

struct NsysTables::Impl {
  Impl(std::filesystem::path of, sqlite3* handle) : path(std::move(of)), database(handle) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { sqlite3_close(database); }

  tl::unexpected<Error> error() const {
    return fail(ErrorCode::kBadFile, fmt::format("{}: {}", path.string(), sqlite3_errmsg(database)),
                "export the report again: nsys export --type sqlite REPORT.nsys-rep");
  }

  Result<Statement> prepare(const std::string& sql) const {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return error();
    return Statement(statement, &sqlite3_finalize);
  }

  // The table's name in this file; empty when it is absent.
  std::string find(const std::string& name) const {
    if (tables.contains(name)) return name;
    std::string best;
    int64_t best_version = -1;
    for (const auto& [table, ignored] : tables) {
      if (!table.starts_with(name + "_V")) continue;
      const auto version = parse_int(std::string_view(table).substr(name.size() + 2));
      if (version && *version > best_version) {
        best = table;
        best_version = *version;
      }
    }
    return best;
  }

  Status read_schema() {
    MB_ASSIGN(Statement statement, prepare("SELECT name FROM sqlite_master WHERE type = 'table'"));
    int code = SQLITE_ROW;
    while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
      const auto* table = reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 0));
      if (table != nullptr) tables[table];
    }
    if (code != SQLITE_DONE) return error();
    for (auto& [table, columns] : tables) {
      MB_ASSIGN(Statement info, prepare("PRAGMA table_info(" + quoted(table) + ")"));
      while ((code = sqlite3_step(info.get())) == SQLITE_ROW) {
        const auto* column = reinterpret_cast<const char*>(sqlite3_column_text(info.get(), 1));
        if (column != nullptr) columns.emplace_back(column);
      }
      if (code != SQLITE_DONE) return error();
    }
    return {};
  }

  std::filesystem::path path;
  sqlite3* database;
  std::map<std::string, std::vector<std::string>> tables;
};

NsysTables::NsysTables(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NsysTables::NsysTables(NsysTables&&) noexcept = default;
NsysTables& NsysTables::operator=(NsysTables&&) noexcept = default;
NsysTables::~NsysTables() = default;

Result<NsysTables> NsysTables::open(const std::filesystem::path& path) {
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (!std::filesystem::exists(status))
    return fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path.string()));
  if (!std::filesystem::is_regular_file(status))
    return fail(ErrorCode::kBadFile, fmt::format("{} is not a file", path.string()));
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READONLY, nullptr);
  auto impl = std::make_unique<Impl>(path, database);
  if (code != SQLITE_OK) return impl->error();
  sqlite3_exec(database, "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON", nullptr, nullptr, nullptr);
  MB_TRY(impl->read_schema());
  return NsysTables(std::move(impl));
}

bool NsysTables::has(const std::string& name) const {
  return !impl_->find(name).empty();
}

Status NsysTables::rows(const std::string& name, const std::vector<std::string>& columns,
                        const std::function<void(const NsysRow&)>& take) const {
  const std::string table = impl_->find(name);
  if (table.empty()) return {};
  const std::vector<std::string>& present = impl_->tables.at(table);
  std::vector<int> places;
  std::vector<std::string> selected;
  for (const std::string& column : columns) {
    const bool there = std::find(present.begin(), present.end(), column) != present.end();
    places.push_back(there ? static_cast<int>(selected.size()) : -1);
    if (there) selected.push_back(quoted(column));
  }
  if (selected.empty()) return {};
  MB_ASSIGN(Statement statement, impl_->prepare("SELECT " + join(selected, ", ") + " FROM " + quoted(table)));
  const StatementRow row(statement.get(), std::move(places));
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) take(row);
  if (code != SQLITE_DONE) return impl_->error();
  return {};
}

}  // namespace mbb::profiler
