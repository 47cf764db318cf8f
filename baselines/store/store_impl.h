// What the store's source files share: the open database and the paths of reading and writing one cell.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baselines/store/sql.h"
#include "baselines/store/store.h"

namespace mbb::baselines {

struct Store::Impl {
  Database database;
  bool read_only = false;
};

// store_write.cpp
Status write_run_row(const Database& database, const Run& run, const std::string& bundle);
Status write_cell_rows(const Database& database, const Cell& cell);

// store_read.cpp
Result<Run> read_run_rows(const Database& database, const std::string& id);

}  // namespace mbb::baselines
