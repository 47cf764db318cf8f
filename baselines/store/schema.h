// The store's schema as a list of migrations, and bringing a file up to it.
#pragma once

#include <filesystem>
#include <span>

#include "baselines/store/sql.h"

namespace mbb::baselines {

// Step n of the list brings a file from version n to n + 1. Migrations only add. `oldest_reader`: the first version of
// this list whose readers still understand the file afterwards.
struct Migration {
  const char* sql;
  int oldest_reader;
};

std::span<const Migration> store_migrations();

// Creates, migrates or accepts the database, by its user_version. Before it changes a file that holds runs it copies it
// to <file>.v<version>.bak. Files of other programs and newer versions are errors and stay as they are.
Status bring_up_to_date(const Database& database, std::span<const Migration> migrations);

// Checks without writing: for read-only opening. A newer file passes when its oldest_reader allows.
Status check_readable(const Database& database, std::span<const Migration> migrations);

}  // namespace mbb::baselines
