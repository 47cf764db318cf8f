// Replaces the numbers in a path.
#include "analysis/report/op_groups.h"

#include <algorithm>
#include <vector>

#include "profiler/base/text.h"

namespace mbb::analysis {

std::string grouped_path(std::string_view path) {
  std::vector<std::string> parts;
  for (const std::string_view part : split(path, '.')) {
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    parts.push_back(number ? "*" : std::string(part));
  }
  return join(parts, ".");
}

}  // namespace mbb::analysis
