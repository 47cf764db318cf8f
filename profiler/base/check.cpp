// Prints the failed invariant with its place and aborts.
#include "profiler/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mbb {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "mbbench: internal error at %s:%d: %s\n  failed: %s\n", file, line, message.c_str(), condition);
  std::abort();
}

}  // namespace mbb
