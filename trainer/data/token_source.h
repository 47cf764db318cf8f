// One long stream of token ids, cut into documents: what every kind of training data looks like to the trainer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer {

// A document is the tokens [offset, offset + length) of the stream; documents follow each other without gaps.
struct DocumentRange {
  std::int64_t offset = 0;
  std::int64_t length = 0;
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // For a person: "Megatron index corpus.idx, 1234 tokens in 5 documents".
  virtual std::string describe() const = 0;
  // Equal for equal tokens: part of a run's identity. Hashes the file whole, a Megatron one in pieces: see the opener.
  virtual std::string identity() const = 0;
  virtual std::int64_t num_tokens() const = 0;
  virtual std::int64_t num_documents() const = 0;
  // 0 <= index < num_documents().
  virtual DocumentRange document(std::int64_t index) const = 0;
  // Fills `out` with the tokens [offset, offset + out.size()), which lie inside the stream (MB_CHECK). A token that is
  // not within the vocabulary is an error that names the file and the byte offset. Safe from many threads.
  virtual Status read(std::int64_t offset, std::span<std::int32_t> out) const = 0;
};

using TokenSourcePtr = std::unique_ptr<const TokenSource>;

// The text in trainer/data/text, embedded in the library: bytes are tokens. `vocab_size` must be above its largest
// byte.
Result<TokenSourcePtr> open_shipped_text(std::int64_t vocab_size);
// Any file: bytes are tokens, the file is one document.
Result<TokenSourcePtr> open_raw_bytes(const std::string& path, std::int64_t vocab_size);
// One document a line: [1, 2, 3] or an object with such a list under "tokens" or "input_ids". Blank lines are skipped.
// Read whole and checked.
Result<TokenSourcePtr> open_jsonl(const std::string& path, std::int64_t vocab_size);
// Megatron's indexed dataset; `path` is its .bin, its .idx, or their common prefix. Memory-mapped. The index is checked
// whole when opened, and so are the tokens of a .bin up to 16 MiB; of a larger one those pieces that its identity
// covers, and all tokens when read. Its identity is the hash of the index, the size of the .bin and the hash of
// 64 pieces of it.
Result<TokenSourcePtr> open_megatron(const std::string& path, std::int64_t vocab_size);
// Independent uniform tokens (path "data.synthetic" of the counter-based random numbers), in documents of
// `document_length`.
Result<TokenSourcePtr> make_synthetic(std::uint64_t seed, std::int64_t vocab_size,
                                      std::int64_t num_tokens = std::int64_t{1} << 40,
                                      std::int64_t document_length = 4096);
// Tokens already in memory, one vector a document; for tests and for what other readers produce.
Result<TokenSourcePtr> make_in_memory(std::string description, const std::vector<std::vector<std::int32_t>>& documents,
                                      std::int64_t vocab_size);

// What a user names. Path "" with kAuto or kText is the shipped text, and a file with kText is its bytes; kAuto goes by
// the name: *.jsonl, *.bin, *.idx (or a prefix of both), anything else is raw bytes.
enum class DataKind { kAuto, kText, kBytes, kJsonl, kMegatron, kSynthetic };
struct DataSpec {
  DataKind kind = DataKind::kAuto;
  std::string path;
  std::uint64_t seed = 1234;  // of synthetic tokens
};
Result<TokenSourcePtr> open_tokens(const DataSpec& spec, std::int64_t vocab_size);

// Entropy of the token frequencies, in nats: what a model reaches that knows the frequencies and nothing else. Looks at
// the first `limit` tokens.
Result<double> unigram_entropy(const TokenSource& source, std::int64_t limit = std::int64_t{1} << 26);

}  // namespace mbb::trainer
