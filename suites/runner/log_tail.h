// What a process said last, for the one line that says why it failed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb::suites {

// Whole lines of `text` in about `limit` bytes, joined by " | ", without blank ones: the last that names an error and
// what follows it, else the last ones. Empty when nothing was said.
std::string last_lines(std::string_view text, size_t limit = 400);

// The last error that a process of this program printed, as format() of profiler/base/error.h writes it; its code is
// kRankFailed.
std::optional<Error> error_said(std::string_view text);

}  // namespace mbb::suites
