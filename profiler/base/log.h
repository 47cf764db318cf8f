// Leveled log lines on stderr: "mbbench: warning: text". One write a line, so that threads and child processes do not
// mix.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "profiler/base/error.h"

namespace mbb {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void set_log_level(LogLevel level);  // default kInfo
LogLevel log_level();
// Reads MBBENCH_LOG; an unknown level is an error that names the levels.
Status set_log_level_from_env();
// Sends lines (without newline) elsewhere, for tests and the progress line; an empty sink restores stderr. Thread-safe.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

void log_line(LogLevel level, std::string_view text);

// Text as it is on stderr, for progress and results. A reader that is gone is no error: the work goes on.
void say(std::string_view text);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level <= log_level()) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kError, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}

}  // namespace mbb
