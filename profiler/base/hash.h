// Content hashes (XXH3, 128 bit) as 32 lower-case hex digits: identities of files, configurations and results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb {

// Hash of a stream of bytes; how the stream is cut into updates does not matter.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  Hasher& update(const void* bytes, size_t size);
  Hasher& update(std::string_view bytes) { return update(bytes.data(), bytes.size()); }
  std::string hex() const;  // of what came so far; more may follow

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(std::string_view bytes);
// Reads the file in pieces; the error names the path.
Result<std::string> hash_file_hex(const std::string& path);
// 64-bit XXH3, for tables in memory; never stored.
uint64_t hash64(std::string_view bytes);

}  // namespace mbb
