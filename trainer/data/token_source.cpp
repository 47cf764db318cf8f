// Synthetic tokens, the choice of a source by name, and the entropy of token frequencies.
#include "trainer/data/token_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/check.h"
#include "trainer/data/named_bytes.h"
#include "trainer/data/rng.h"

namespace mbb::trainer {
namespace {

class SyntheticSource : public TokenSource {
 public:
  SyntheticSource(std::uint64_t seed, std::int64_t vocab_size, std::int64_t num_tokens, std::int64_t document_length)
      : seed_(seed),
        vocab_size_(vocab_size),
        num_tokens_(num_tokens),
        document_length_(document_length),
        stream_(seed, "data.synthetic", 0) {}

  std::string describe() const override {
    return fmt::format("synthetic tokens, seed {}, vocabulary {}", seed_, vocab_size_);
  }
  std::string identity() const override {
    return fmt::format("synthetic-{}-{}-{}-{}", seed_, vocab_size_, num_tokens_, document_length_);
  }
  std::int64_t num_tokens() const override { return num_tokens_; }
  std::int64_t num_documents() const override { return (num_tokens_ + document_length_ - 1) / document_length_; }
  DocumentRange document(std::int64_t index) const override {
    MB_CHECK(index >= 0 && index < num_documents(), "no such document");
    const std::int64_t offset = index * document_length_;
    return {offset, std::min(document_length_, num_tokens_ - offset)};
  }
  Status read(std::int64_t offset, std::span<std::int32_t> out) const override {
    MB_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= num_tokens(), "read outside the tokens");
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int32_t>(
          stream_.below(static_cast<std::uint64_t>(vocab_size_), 0, static_cast<std::uint64_t>(offset) + i));
    return {};
  }

 private:
  std::uint64_t seed_;
  std::int64_t vocab_size_;
  std::int64_t num_tokens_;
  std::int64_t document_length_;
  RandomStream stream_;
};

DataKind kind_of(const DataSpec& spec) {
  if (spec.kind != DataKind::kAuto) return spec.kind;
  if (spec.path.empty()) return DataKind::kText;
  if (spec.path.ends_with(".jsonl")) return DataKind::kJsonl;
  if (spec.path.ends_with(".bin") || spec.path.ends_with(".idx")) return DataKind::kMegatron;
  // A prefix of an index pair is the common way to name one in Megatron; a plain file of that name wins.
  if (!map_file(spec.path).has_value() && map_file(spec.path + ".idx").has_value()) return DataKind::kMegatron;
  return DataKind::kBytes;
}

}  // namespace

Result<TokenSourcePtr> make_synthetic(std::uint64_t seed, std::int64_t vocab_size, std::int64_t num_tokens,
                                      std::int64_t document_length) {
  if (vocab_size < 1 || vocab_size > INT32_MAX)
    return fail(ErrorCode::kBadArgument, fmt::format("vocab_size is {}, not within 1..{}", vocab_size, INT32_MAX));
  if (num_tokens < 1 || document_length < 1)
    return fail(ErrorCode::kBadArgument, "synthetic data needs at least one token and documents of at least one");
  return std::make_unique<const SyntheticSource>(seed, vocab_size, num_tokens, document_length);
}

Result<TokenSourcePtr> open_tokens(const DataSpec& spec, std::int64_t vocab_size) {
  const DataKind kind = kind_of(spec);
  const bool needs_path = kind == DataKind::kBytes || kind == DataKind::kJsonl || kind == DataKind::kMegatron;
  if (needs_path && spec.path.empty())
    return fail(ErrorCode::kBadArgument, "this kind of training data needs a path", "set data.path");
  if (kind == DataKind::kSynthetic && !spec.path.empty())
    return fail(ErrorCode::kBadArgument,
                fmt::format("data.kind = synthetic reads no file, but data.path is {}", spec.path),
                "unset data.path or choose another kind of data");
  switch (kind) {
    case DataKind::kBytes: return open_raw_bytes(spec.path, vocab_size);
    case DataKind::kJsonl: return open_jsonl(spec.path, vocab_size);
    case DataKind::kMegatron: return open_megatron(spec.path, vocab_size);
    case DataKind::kSynthetic: return make_synthetic(spec.seed, vocab_size);
    case DataKind::kAuto:
    case DataKind::kText: break;
  }
  return spec.path.empty() ? open_shipped_text(vocab_size) : open_raw_bytes(spec.path, vocab_size);
}

Result<double> unigram_entropy(const TokenSource& source, std::int64_t limit) {
  const std::int64_t total = std::min(source.num_tokens(), limit);
  if (total < 1) return fail(ErrorCode::kBadArgument, "the entropy of no tokens is undefined");
  std::vector<std::int64_t> counts;
  std::vector<std::int32_t> piece(65536);
  for (std::int64_t done = 0; done < total;) {
    const auto take = static_cast<std::size_t>(std::min<std::int64_t>(total - done, 65536));
    MB_TRY(source.read(done, std::span(piece).first(take)));
    for (std::size_t i = 0; i < take; ++i) {
      const auto token = static_cast<std::size_t>(piece[i]);
      if (token >= counts.size()) counts.resize(token + 1);
      ++counts[token];
    }
    done += static_cast<std::int64_t>(take);
  }
  double entropy = 0;
  for (const std::int64_t count : counts) {
    const double share = static_cast<double>(count) / static_cast<double>(total);
    if (count > 0) entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace mbb::trainer
