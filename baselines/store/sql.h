// SQLite as this room uses it: a database, a prepared statement, a transaction; errors with a remedy, no sqlite3.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

struct sqlite3;
struct sqlite3_stmt;

namespace mbb::baselines {

class Statement {
 public:
  // Binds the parameters in order. NaN is stored as NULL, and NULL reads back as NaN.
  template <typename... Values>
  void bind_all(const Values&... values) {
    reset();
    int index = 0;
    (bind(++index, values), ...);
  }
  void bind(int index, std::int64_t value);
  void bind(int index, int value) { bind(index, static_cast<std::int64_t>(value)); }
  void bind(int index, std::uint32_t value) { bind(index, static_cast<std::int64_t>(value)); }
  void bind(int index, bool value) { bind(index, static_cast<std::int64_t>(value)); }
  void bind(int index, double value);
  void bind(int index, std::string_view value);  // the text must live until the statement has run
  void bind(int index, const std::string& value) { bind(index, std::string_view(value)); }
  void bind(int index, const char* value) { bind(index, std::string_view(value)); }

  // True: a row is there. False: done.
  Result<bool> step();
  // Binds, runs to the end, ignores rows.
  template <typename... Values>
  Status run(const Values&... values) {
    bind_all(values...);
    MB_ASSIGN(bool more, step());
    while (more) {
      MB_ASSIGN(more, step());
    }
    return {};
  }
  void reset();

  std::int64_t integer(int column) const;
  int small(int column) const { return static_cast<int>(integer(column)); }
  bool flag(int column) const { return integer(column) != 0; }
  double real(int column) const;
  std::string text(int column) const;
  bool is_null(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  Statement(sqlite3_stmt* statement, const std::filesystem::path& file) : statement_(statement), file_(file) {}
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::filesystem::path file_;
};

enum class OpenMode { kReadWrite, kReadOnly, kReadOnlyFixed };  // fixed: nobody writes; needs no side files

class Database {
 public:
  static Result<Database> open(const std::filesystem::path& file, OpenMode mode, int busy_timeout_ms);

  Result<Statement> prepare(std::string_view sql) const;
  Status execute(const std::string& sql) const;
  // First column of the first row; an error when there is none.
  Result<std::int64_t> integer(std::string_view sql) const;
  Result<std::string> text(std::string_view sql) const;
  std::int64_t last_row() const;
  const std::filesystem::path& file() const { return file_; }

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  Database(sqlite3* handle, std::filesystem::path file) : handle_(handle), file_(std::move(file)) {}
  std::unique_ptr<sqlite3, Close> handle_;
  std::filesystem::path file_;
};

// Rolls back when it goes out of scope without commit().
class Transaction {
 public:
  static Result<Transaction> begin(const Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Status commit();

 private:
  explicit Transaction(const Database& database) : database_(&database) {}
  const Database* database_;
};

}  // namespace mbb::baselines
