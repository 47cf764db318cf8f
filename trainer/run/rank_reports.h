// What ranks tell rank 0 after a step, the same way for threads and for processes: through the world's communicator.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trainer/comm/communicator.h"

namespace mbb::trainer {

// Every rank gives its bytes; rank 0 gets all of them, by rank, the others nothing. All ranks call it.
Result<std::vector<std::string>> gather_at_first(Communicator& everyone, std::string_view mine);
// Rank 0's value, on all.
Status from_first(Communicator& everyone, int32_t& value);

// Plain values as bytes and back.
template <typename T>
std::string bytes_of_values(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
std::vector<T> values_of_bytes(std::string_view bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace mbb::trainer
