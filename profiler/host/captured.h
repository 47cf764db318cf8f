// Environment and command line as they may be stored: names on an allow-list in clear, all others as "set, hash".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mbb::profiler {

// An environment variable or an argument. When `hashed`, `value` is the hash of the real value, never the value.
struct CapturedValue {
  std::string name;
  std::string value;
  bool hashed = false;
};

}  // namespace mbb::profiler
