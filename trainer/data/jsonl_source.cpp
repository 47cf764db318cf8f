// JSON lines of token lists, and tokens in memory.
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "profiler/base/check.h"
#include "profiler/base/hash.h"
#include "trainer/data/named_bytes.h"

namespace mbb::trainer {
namespace {

class MemorySource : public TokenSource {
 public:
  MemorySource(std::string description, std::string identity, std::vector<std::int32_t> tokens,
               std::vector<std::int64_t> starts)
      : description_(std::move(description)),
        identity_(std::move(identity)),
        tokens_(std::move(tokens)),
        starts_(std::move(starts)) {}

  std::string describe() const override {
    return fmt::format("{}, {} tokens in {} documents", description_, tokens_.size(), num_documents());
  }
  std::string identity() const override { return identity_; }
  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t num_documents() const override { return static_cast<std::int64_t>(starts_.size()) - 1; }
  DocumentRange document(std::int64_t index) const override {
    MB_CHECK(index >= 0 && index < num_documents(), "no such document");
    const auto i = static_cast<std::size_t>(index);
    return {starts_[i], starts_[i + 1] - starts_[i]};
  }
  Status read(std::int64_t offset, std::span<std::int32_t> out) const override {
    MB_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= num_tokens(), "read outside the tokens");
    std::memcpy(out.data(), tokens_.data() + offset, out.size_bytes());
    return {};
  }

 private:
  std::string description_;
  std::string identity_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> starts_;  // one more than documents
};

// Collects the token list of one line; everything else on the line is skipped. Returns false to stop with `problem`.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  LineHandler(std::vector<std::int32_t>& tokens, std::int64_t vocab_size) : tokens_(tokens), vocab_size_(vocab_size) {}

  std::string problem;
  bool found = false;

  bool start_array(std::size_t) override {
    if (inside_) return not_a_token("a list");
    if (depth_ == 0 || (depth_ == 1 && wanted_)) {
      if (found) return stop("has two token lists");
      found = inside_ = true;
      wanted_ = false;
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (inside_ && depth_ == list_depth()) inside_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (inside_) return not_a_token("an object");
    if (wanted_) return stop("has an object where the token list should be");
    in_object_ = in_object_ || depth_ == 0;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    wanted_ = depth_ == 1 && (name == "tokens" || name == "input_ids");
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!inside_) return scalar();
    if (value >= static_cast<std::uint64_t>(vocab_size_))
      return stop(fmt::format("token {} is {}, not within the vocabulary of {}", index_, value, vocab_size_));
    tokens_.push_back(static_cast<std::int32_t>(value));
    ++index_;
    return true;
  }
  bool number_integer(std::int64_t value) override {
    if (!inside_) return scalar();
    return stop(fmt::format("token {} is {}, not within the vocabulary of {}", index_, value, vocab_size_));
  }
  bool number_float(double, const std::string& text) override { return inside_ ? not_a_token(text) : scalar(); }
  bool string(std::string&) override { return inside_ ? not_a_token("a text") : scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool boolean(bool) override { return inside_ ? not_a_token("true or false") : scalar(); }
  bool null() override { return inside_ ? not_a_token("null") : scalar(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(fmt::format("is no JSON from its byte {} on", position));
  }

 private:
  int list_depth() const { return in_object_ ? 1 : 0; }
  bool stop(std::string text) {
    problem = std::move(text);
    return false;
  }
  bool not_a_token(const std::string& what) {
    return stop(fmt::format("token {} is {}, not a whole number", index_, what));
  }
  bool scalar() { return !wanted_ || stop("has a single value where the token list should be"); }

  std::vector<std::int32_t>& tokens_;
  std::int64_t vocab_size_;
  std::int64_t index_ = 0;
  int depth_ = 0;
  bool in_object_ = false;
  bool wanted_ = false;  // the value that comes next belongs to "tokens" or "input_ids"
  bool inside_ = false;  // within the token list
};

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<TokenSourcePtr> open_jsonl(const std::string& path, std::int64_t vocab_size) {
  MB_ASSIGN(const NamedBytes file, map_file(path));
  return read_jsonl(file, vocab_size);
}

Result<TokenSourcePtr> read_jsonl(const NamedBytes& named, std::int64_t vocab_size) {
  const auto& [path, text, holder] = named;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts = {0};
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++line_number;
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (!blank(line)) {
      LineHandler handler(tokens, vocab_size);
      const bool parsed = nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
      if (parsed && !handler.found) handler.problem = "has no token list";
      if (!handler.problem.empty())
        return fail(ErrorCode::kBadFile,
                    fmt::format("{}, line {} (offset {}): {}", path, line_number, begin, handler.problem),
                    "a line is [1, 2, 3] or {\"tokens\": [1, 2, 3]}");
      starts.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    begin = end + 1;
  }
  if (tokens.empty())
    return fail(
        ErrorCode::kBadFile,
        fmt::format("{}, offset {}: the file ends after {} lines without a token", path, text.size(), line_number),
        "a line is [1, 2, 3] or {\"tokens\": [1, 2, 3]}");
  return std::make_unique<const MemorySource>(path, hash_hex(text), std::move(tokens), std::move(starts));
}

Result<TokenSourcePtr> make_in_memory(std::string description, const std::vector<std::vector<std::int32_t>>& documents,
                                      std::int64_t vocab_size) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts = {0};
  Hasher hasher;
  for (const std::vector<std::int32_t>& document : documents) {
    for (const std::int32_t token : document)
      if (token < 0 || token >= vocab_size)
        return fail(ErrorCode::kBadArgument, fmt::format("{}: token {} is {}, not within the vocabulary of {}",
                                                         description, tokens.size(), token, vocab_size));
    tokens.insert(tokens.end(), document.begin(), document.end());
    starts.push_back(static_cast<std::int64_t>(tokens.size()));
    const std::size_t length = document.size();
    hasher.update(&length, sizeof length).update(document.data(), document.size() * sizeof(std::int32_t));
  }
  if (tokens.empty()) return fail(ErrorCode::kBadArgument, fmt::format("{} has no tokens", description));
  return std::make_unique<const MemorySource>(std::move(description), hasher.hex(), std::move(tokens),
                                              std::move(starts));
}

}  // namespace mbb::trainer
