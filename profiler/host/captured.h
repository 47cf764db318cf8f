// Environment and command line as they may be stored: names on an allow-list in clear, all others as "set, hash".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mbb::profiler {

// An environment variable or an argument. When `hashed`, `value` is a short hash of the real value, never the value.
// An argument that is no option has an empty name.
struct CapturedValue {
  std::string name;
  std::string value;
  bool hashed = false;
};

// True for names whose values may be stored: knobs and settings. Option names come without leading dashes.
using IsKnown = std::function<bool(std::string_view name)>;

// `variables` as env_all() gives them. In clear: the fixed list of names that shape performance, and what `is_known`
// accepts. Sorted by name.
std::vector<CapturedValue> capture_environment(const std::vector<std::pair<std::string, std::string>>& variables,
                                               const IsKnown& is_known);

// A command line, without the program's name. In clear: plain words, and values of options and of key=value that
// `is_known` accepts. Hashed: every other value, the word behind an unknown option, addresses with "://", and all that
// follows "--" (a user's own command).
std::vector<CapturedValue> capture_arguments(const std::vector<std::string>& arguments, const IsKnown& is_known);

// Six hexadecimal digits: enough to see that a value changed, too few to find the value by trying.
std::string short_hash(std::string_view value);

}  // namespace mbb::profiler
