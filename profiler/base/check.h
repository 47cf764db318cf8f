// MB_CHECK: an invariant of our own code. It aborts in release builds too; it ends the child process, not the suite.
#pragma once

#include <string>

namespace mbb {

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace mbb

// MB_CHECK(condition, "text that may be any std::string expression").
#define MB_CHECK(condition, message)                                  \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::mbb::check_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
