// Log lines: see log.h.
#include "profiler/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "profiler/base/env.h"
#include "profiler/base/text.h"

namespace mbb {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::mutex g_sink_mutex;
std::function<void(LogLevel, std::string_view)> g_sink;

// Info lines carry no tag: they are what the user asked to see.
const char* tag(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return "error: ";
    case LogLevel::kWarning: return "warning: ";
    case LogLevel::kInfo: return "";
    case LogLevel::kDebug: return "debug: ";
  }
  return "";
}

}  // namespace

void set_log_level(LogLevel level) {
  g_level = level;
}
LogLevel log_level() {
  return g_level;
}

Status set_log_level_from_env() {
  const auto text = env_text("MBBENCH_LOG");
  if (!text) return {};
  const std::string word = to_lower(*text);
  if (word == "error") {
    set_log_level(LogLevel::kError);
  } else if (word == "warning") {
    set_log_level(LogLevel::kWarning);
  } else if (word == "info") {
    set_log_level(LogLevel::kInfo);
  } else if (word == "debug") {
    set_log_level(LogLevel::kDebug);
  } else {
    return fail(ErrorCode::kBadArgument, fmt::format("MBBENCH_LOG='{}' is not a log level", printable(*text)),
                "one of error, warning, info, debug");
  }
  return {};
}

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  const std::lock_guard lock(g_sink_mutex);
  g_sink = std::move(sink);
}

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void log_line(LogLevel level, std::string_view text) {
  if (level > g_level) return;
  const std::lock_guard lock(g_sink_mutex);
  if (g_sink) return g_sink(level, text);
  const std::string line = fmt::format("mbbench: {}{}\n", tag(level), text);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // stderr is gone: there is nobody left to tell
    done += static_cast<size_t>(wrote);
  }
}

}  // namespace mbb
