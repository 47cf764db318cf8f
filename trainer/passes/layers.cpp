// Reading a layer's prefix off a path.
#include "trainer/passes/layers.h"

#include <cctype>
#include <utility>

namespace mbb::trainer {

std::string_view layer_of(std::string_view path) {
  const auto numbered = [&](std::string_view head, std::string_view tail) -> std::string_view {
    if (!path.starts_with(head)) return {};
    size_t end = head.size();
    while (end < path.size() && std::isdigit(static_cast<unsigned char>(path[end]))) ++end;
    return end > head.size() && path.substr(end).starts_with(tail) ? path.substr(0, end + tail.size())
                                                                   : std::string_view{};
  };
  for (const auto& [head, tail] : {std::pair{"layers.", "."}, {"encoder.layers.", "."}, {"mtp.", ".layer."}})
    if (const std::string_view found = numbered(head, tail); !found.empty()) return found;
  return {};
}

}  // namespace mbb::trainer
