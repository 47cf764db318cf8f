// Megatron's indexed dataset: an .idx file of tables over a .bin file of tokens.
//
// The .idx, little-endian and unaligned: 9 bytes "MMIDIDX\0\0"; u64 version 1; u8 token type; u64 sequences n; u64
// entries m of the document table; n × i32 lengths in tokens; n × i64 byte offsets into the .bin; m × i64 indices of
// each document's first sequence, closed by n.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "profiler/base/check.h"
#include "profiler/base/hash.h"
#include "trainer/data/named_bytes.h"

namespace mbb::trainer {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kLengthsAt = 34;

template <typename T>
T load(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct TokenType {
  int code;
  const char* name;
  std::size_t size;
  std::int64_t (*read)(std::string_view, std::size_t);
};
template <typename T>
std::int64_t widen(std::string_view bytes, std::size_t at) {
  return static_cast<std::int64_t>(load<T>(bytes, at));
}
// Codes 6 and 7 are floating point, which no token is.
constexpr TokenType kTypes[] = {
    {1, "uint8", 1, widen<std::uint8_t>}, {2, "int8", 1, widen<std::int8_t>},   {3, "int16", 2, widen<std::int16_t>},
    {4, "int32", 4, widen<std::int32_t>}, {5, "int64", 8, widen<std::int64_t>}, {8, "uint16", 2, widen<std::uint16_t>},
};

// Where the tables lie, checked against the size of the file.
struct Layout {
  const TokenType* type;
  std::int64_t sequences;
  std::int64_t documents;
  std::size_t offsets_at;
  std::size_t documents_at;
};

tl::unexpected<Error> bad(const std::string& path, std::size_t offset, const std::string& text, std::string hint = {}) {
  return fail(ErrorCode::kBadFile, fmt::format("{}, offset {}: {}", path, offset, text), std::move(hint));
}

Result<Layout> read_header(const std::string& path, std::string_view index) {
  if (index.size() < kLengthsAt)
    return bad(path, index.size(), fmt::format("the file ends inside the header of {} bytes", kLengthsAt));
  if (index.substr(0, kMagic.size()) != kMagic)
    return bad(path, 0, "this is no Megatron index: it does not start with MMIDIDX");
  if (const auto version = load<std::uint64_t>(index, kVersionAt); version != 1)
    return bad(path, kVersionAt, fmt::format("index version {} is unknown: only 1 is", version));
  Layout layout{};
  const int code = static_cast<unsigned char>(index[kTypeAt]);
  for (const TokenType& type : kTypes)
    if (type.code == code) layout.type = &type;
  if (layout.type == nullptr) return bad(path, kTypeAt, fmt::format("token type {} is no integer type", code));

  const auto sequences = load<std::uint64_t>(index, kSequencesAt);
  const auto documents = load<std::uint64_t>(index, kDocumentsAt);
  // Each entry takes bytes of the file, so counts above its size lie; below it the sums cannot overflow.
  if (sequences > index.size())
    return bad(path, kSequencesAt, fmt::format("{} sequences cannot fit a file of {} bytes", sequences, index.size()));
  if (documents > index.size())
    return bad(path, kDocumentsAt, fmt::format("{} documents cannot fit a file of {} bytes", documents, index.size()));
  layout.sequences = static_cast<std::int64_t>(sequences);
  layout.documents = static_cast<std::int64_t>(documents) - 1;
  layout.offsets_at = kLengthsAt + 4 * sequences;
  layout.documents_at = layout.offsets_at + 8 * sequences;
  const std::size_t needed = layout.documents_at + 8 * documents;
  if (index.size() < needed)
    return bad(path, index.size(), fmt::format("the file ends early: its tables need {} bytes", needed));
  if (index.size() == needed + sequences && sequences > 0)
    return bad(path, needed, "a multimodal index (one mode a sequence) is not supported");
  if (index.size() != needed)
    return bad(path, needed, fmt::format("{} bytes follow the tables", index.size() - needed));
  if (documents < 1) return bad(path, kDocumentsAt, "the document table is empty: it must at least hold its end");
  return layout;
}

Status check_sequences(const std::string& path, std::string_view index, const Layout& layout, std::int64_t bin_bytes) {
  const auto token_bytes = static_cast<std::int64_t>(layout.type->size);
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < layout.sequences; ++i) {
    const std::size_t length_at = kLengthsAt + 4 * static_cast<std::size_t>(i);
    const std::size_t offset_at = layout.offsets_at + 8 * static_cast<std::size_t>(i);
    const auto length = load<std::int32_t>(index, length_at);
    const auto offset = load<std::int64_t>(index, offset_at);
    if (length < 0) return bad(path, length_at, fmt::format("sequence {} has length {}", i, length));
    if (offset != end)
      return bad(
          path, offset_at,
          fmt::format("sequence {} starts at byte {} of the data, but those before it end at {}", i, offset, end));
    end += length * token_bytes;
    if (end > bin_bytes)
      return bad(path, length_at,
                 fmt::format("sequence {} ends at byte {} of the data, which has {}", i, end, bin_bytes),
                 "the .bin is truncated, or the two files do not belong together");
  }
  if (end != bin_bytes)
    return bad(path, kSequencesAt, fmt::format("the index covers {} of the {} bytes of data", end, bin_bytes),
               "the index is truncated, or the two files do not belong together");
  return {};
}

Status check_documents(const std::string& path, std::string_view index, const Layout& layout) {
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= layout.documents; ++i) {
    const std::size_t at = layout.documents_at + 8 * static_cast<std::size_t>(i);
    const auto first = load<std::int64_t>(index, at);
    if (first < previous || first > layout.sequences || (i == 0 && first != 0))
      return bad(path, at,
                 fmt::format("document {} starts at sequence {}, not within {}..{}", i, first, previous,
                             i == 0 ? 0 : layout.sequences));
    if (i == layout.documents && first != layout.sequences)
      return bad(path, at, fmt::format("the documents end at sequence {} of {}", first, layout.sequences));
    previous = first;
  }
  return {};
}

class MegatronSource : public TokenSource {
 public:
  MegatronSource(NamedBytes index, NamedBytes data, const Layout& layout, std::int64_t vocab_size)
      : index_(std::move(index)), data_(std::move(data)), layout_(layout), vocab_size_(vocab_size) {}

  std::string describe() const override {
    return fmt::format("Megatron index {}, {} {} tokens in {} documents", index_.name, num_tokens(), layout_.type->name,
                       num_documents());
  }

  std::string identity() const override {
    Hasher hasher;
    hasher.update(index_.bytes);
    const std::string_view data = data_.bytes;
    const std::size_t size = data.size();
    hasher.update(&size, sizeof size);
    if (size <= kPieces * kPieceBytes) return hasher.update(data).hex();
    for (std::size_t piece = 0; piece < kPieces; ++piece) hasher.update(data.substr(piece_at(piece), kPieceBytes));
    return hasher.hex();
  }

  // Looks at all tokens of a small file and at the same pieces of a large one that its identity covers; what else is
  // out of the vocabulary is found when it is read.
  Status check_tokens() const {
    const std::size_t size = layout_.type->size, tokens = data_.bytes.size() / size;
    if (tokens * size <= kCheckedWhole) return check(0, tokens);
    for (std::size_t piece = 0; piece < kPieces; ++piece)
      MB_TRY(check(piece_at(piece) / size, std::min(kPieceBytes / size, tokens - piece_at(piece) / size)));
    return {};
  }

  std::int64_t num_tokens() const override {
    return static_cast<std::int64_t>(data_.bytes.size() / layout_.type->size);
  }
  std::int64_t num_documents() const override { return layout_.documents; }

  DocumentRange document(std::int64_t i) const override {
    MB_CHECK(i >= 0 && i < layout_.documents, "no such document");
    const std::int64_t begin = first_token(i), end = first_token(i + 1);
    return {begin, end - begin};
  }

  Status read(std::int64_t offset, std::span<std::int32_t> out) const override {
    MB_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= num_tokens(), "read outside the tokens");
    const std::string_view data = data_.bytes;
    MB_TRY(check(static_cast<std::size_t>(offset), out.size()));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int32_t>(
          layout_.type->read(data, (static_cast<std::size_t>(offset) + i) * layout_.type->size));
    return {};
  }

 private:
  static constexpr std::size_t kPieces = 64, kPieceBytes = 4096, kCheckedWhole = std::size_t{16} << 20;

  // Of a file that is larger than all pieces.
  std::size_t piece_at(std::size_t piece) const { return (data_.bytes.size() - kPieceBytes) / (kPieces - 1) * piece; }

  Status check(std::size_t first, std::size_t count) const {
    for (std::size_t i = first; i < first + count; ++i) {
      const std::size_t at = i * layout_.type->size;
      const std::int64_t token = layout_.type->read(data_.bytes, at);
      if (token < 0 || token >= vocab_size_)
        return bad(data_.name, at, fmt::format("token {} is not within the vocabulary of {}", token, vocab_size_),
                   "set vocab_size to that of the tokenizer that made the file");
    }
    return {};
  }

  std::int64_t first_token(std::int64_t document_index) const {
    const std::string_view index = index_.bytes;
    const auto sequence =
        load<std::int64_t>(index, layout_.documents_at + 8 * static_cast<std::size_t>(document_index));
    if (sequence == layout_.sequences) return num_tokens();
    return load<std::int64_t>(index, layout_.offsets_at + 8 * static_cast<std::size_t>(sequence)) /
           static_cast<std::int64_t>(layout_.type->size);
  }

  NamedBytes index_;
  NamedBytes data_;
  Layout layout_;
  std::int64_t vocab_size_;
};

}  // namespace

Result<TokenSourcePtr> open_megatron(const std::string& path, std::int64_t vocab_size) {
  std::string prefix = path;
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) prefix.resize(prefix.size() - 4);
  MB_ASSIGN(NamedBytes index, map_file(prefix + ".idx"));
  MB_ASSIGN(NamedBytes data, map_file(prefix + ".bin"));
  return read_megatron(std::move(index), std::move(data), vocab_size);
}

Result<TokenSourcePtr> read_megatron(NamedBytes index, NamedBytes data, std::int64_t vocab_size) {
  MB_ASSIGN(const Layout layout, read_header(index.name, index.bytes));
  const auto bin_bytes = static_cast<std::int64_t>(data.bytes.size());
  MB_TRY(check_sequences(index.name, index.bytes, layout, bin_bytes));
  MB_TRY(check_documents(index.name, index.bytes, layout));
  if (bin_bytes == 0) return fail(ErrorCode::kBadFile, fmt::format("{} has no tokens", data.name));
  auto source = std::make_unique<const MegatronSource>(std::move(index), std::move(data), layout, vocab_size);
  MB_TRY(source->check_tokens());
  return source;
}

}  // namespace mbb::trainer
