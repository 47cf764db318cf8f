// Why a cell is what it is, in the one line that a table has for it.
#pragma once

#include <string>

#include "profiler/base/error.h"

namespace mbb::suites {

// "what was wrong (what to do about it)"
inline std::string reason_of(const Error& error) {
  return error.hint.empty() ? error.what : error.what + " (" + error.hint + ")";
}

}  // namespace mbb::suites
