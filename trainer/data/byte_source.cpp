// Raw bytes as tokens.
#include <fmt/format.h>

#include "profiler/base/check.h"
#include "profiler/base/hash.h"
#include "trainer/data/named_bytes.h"

namespace mbb::trainer {
namespace {

class ByteSource : public TokenSource {
 public:
  ByteSource(NamedBytes bytes, std::string identity) : bytes_(std::move(bytes)), identity_(std::move(identity)) {}

  std::string describe() const override {
    return fmt::format("{}, {} bytes as tokens", bytes_.name, bytes_.bytes.size());
  }
  // Of a mapped file on demand: training needs none, and the whole file is read for it.
  std::string identity() const override { return identity_.empty() ? hash_hex(bytes_.bytes) : identity_; }
  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(bytes_.bytes.size()); }
  std::int64_t num_documents() const override { return 1; }
  DocumentRange document(std::int64_t index) const override {
    MB_CHECK(index == 0, "a raw file is one document");
    return {0, num_tokens()};
  }
  Status read(std::int64_t offset, std::span<std::int32_t> out) const override {
    MB_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= num_tokens(), "read outside the tokens");
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<unsigned char>(bytes_.bytes[static_cast<std::size_t>(offset) + i]);
    return {};
  }

 private:
  NamedBytes bytes_;
  std::string identity_;
};

}  // namespace

Result<TokenSourcePtr> read_raw_bytes(NamedBytes named, std::string identity, std::int64_t vocab_size) {
  const auto& [name, bytes, holder] = named;
  if (bytes.empty()) return fail(ErrorCode::kBadFile, fmt::format("{} is empty: there is nothing to train on", name));
  for (std::size_t i = 0; vocab_size < 256 && i < bytes.size(); ++i) {
    const int byte = static_cast<unsigned char>(bytes[i]);
    if (byte >= vocab_size)
      return fail(ErrorCode::kBadFile,
                  fmt::format("{}, offset {}: byte {} is no token of a vocabulary of {}", name, i, byte, vocab_size),
                  "bytes as tokens need vocab_size of 256, or above the largest byte used");
  }
  return std::make_unique<const ByteSource>(std::move(named), std::move(identity));
}

Result<TokenSourcePtr> open_raw_bytes(const std::string& path, std::int64_t vocab_size) {
  MB_ASSIGN(NamedBytes file, map_file(path));
  return read_raw_bytes(std::move(file), "", vocab_size);
}

}  // namespace mbb::trainer
