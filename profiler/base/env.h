// The one place that reads environment variables. A name that is read is declared in the list below, so that a user can
// see every variable the program listens to, and a run can record those that were set.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/base/error.h"

namespace mbb {

struct EnvVar {
  std::string_view name;
  std::string_view meaning;
};

// Every variable read by name, sorted. Settings are read as MBBENCH_<KEY> beside these (env_settings).
std::span<const EnvVar> env_vars();

// The value of a declared variable; nothing when unset or empty. Reading an undeclared name is a bug (MB_CHECK).
std::optional<std::string> env_text(std::string_view name);
Result<std::optional<int64_t>> env_int(std::string_view name);
Result<std::optional<bool>> env_bool(std::string_view name);

// Variables named MBBENCH_<KEY> that are not in env_vars(), as (full name, value), sorted by name: knobs and settings.
std::vector<std::pair<std::string, std::string>> env_settings();

// All (name, value) pairs, for the fingerprint's allow-list; values of names outside it must not be printed or stored.
std::vector<std::pair<std::string, std::string>> env_all();

}  // namespace mbb
