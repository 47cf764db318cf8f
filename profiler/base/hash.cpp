// XXH3 hashes: see hash.h.
#include "profiler/base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "profiler/base/check.h"
#include "profiler/base/file.h"

namespace mbb {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* stream = XXH3_createState();
  ~State() { XXH3_freeState(stream); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  MB_CHECK(state_->stream != nullptr && XXH3_128bits_reset(state_->stream) == XXH_OK, "no memory for a hash state");
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

Hasher& Hasher::update(const void* bytes, size_t size) {
  if (size > 0) MB_CHECK(XXH3_128bits_update(state_->stream, bytes, size) == XXH_OK, "hash update refused its bytes");
  return *this;
}

std::string Hasher::hex() const {
  return to_hex(XXH3_128bits_digest(state_->stream));
}

std::string hash_hex(std::string_view bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

uint64_t hash64(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Result<std::string> hash_file_hex(const std::string& path) {
  Hasher hasher;
  MB_TRY(read_file_in_pieces(path, [&](std::string_view piece) { hasher.update(piece); }));
  return hasher.hex();
}

}  // namespace mbb
