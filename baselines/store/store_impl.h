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

// True for file systems of other machines (and FUSE, which often is one), by statfs(2)'s f_type: shared memory and
// locks, which a write-ahead log needs, do not reach across them.
bool is_network_file_system(std::int64_t statfs_type);

}  // namespace mbb::baselines
