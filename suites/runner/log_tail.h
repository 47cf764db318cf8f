// What a process said last, for the one line that says why it failed.
#pragma once

#include <string>
#include <string_view>

namespace mbb::suites {

// Whole lines of `text` in about `limit` bytes, joined by " | ", without blank ones: the last that names an error and
// what follows it, else the last ones. Empty when nothing was said.
std::string last_lines(std::string_view text, size_t limit = 400);

}  // namespace mbb::suites
