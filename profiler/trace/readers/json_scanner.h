// A strict streaming JSON scanner for large traces: one pass over a window of the file, texts handed out in place.
//
// Handler functions, called in document order: start_object(), end_object(), start_array(), end_array(), key(text),
// string(text), number(text), literal() for true, false and null. Texts are valid during the call; numbers come as
// written, and NaN, Infinity and -Infinity, which some writers put into traces, count as numbers. Nesting costs one
// byte of memory a level and no stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/readers/gzip_stream.h"

namespace mbb::profiler {

template <typename Handler>
class JsonScanner {
 public:
  JsonScanner(GzipStream& file, Handler& handler) : file_(file), handler_(handler) {
    buffer_.resize(kWindow + 1);
    buffer_[0] = '\0';
  }

  // The whole document. An error says at which byte and what was wrong; a failing read comes as the stream's error.
  Status run() {
    Expect expect = Expect::kValue;
    for (;;) {
      const char c = skip_blanks();
      if (c == '\0' && at_end()) break;
      switch (expect) {
        case Expect::kFirstValue:
          if (c == ']') {
            expect = close('[');
            break;
          }
          [[fallthrough]];
        case Expect::kValue: expect = value(c); break;
        case Expect::kFirstKey:
          if (c == '}') {
            expect = close('{');
            break;
          }
          [[fallthrough]];
        case Expect::kKey: expect = key(c); break;
        case Expect::kComma: expect = comma(c); break;
        case Expect::kNothing: expect = wrong("something behind the end of the document"); break;
        case Expect::kError: break;
      }
      if (expect == Expect::kError) break;
    }
    MB_TRY(read_);
    if (problem_ == nullptr && expect != Expect::kNothing) problem_ = "the document is not complete";
    if (problem_ == nullptr) return {};
    return fail(ErrorCode::kBadFile, "not valid JSON at byte " + std::to_string(before_ + at_) + ": " + problem_,
                "the file was cut off or is no Chrome trace");
  }

 private:
  enum class Expect { kValue, kFirstValue, kFirstKey, kKey, kComma, kNothing, kError };
  static constexpr size_t kWindow = size_t{1} << 18U;

  Expect wrong(const char* problem) {
    problem_ = problem;
    return Expect::kError;
  }

  // Reads more behind what is kept: bytes from `keep` on move to the front. False at the end of the file.
  bool more(size_t& keep) {
    if (!read_) return false;
    if (keep > 0) {
      std::memmove(buffer_.data(), buffer_.data() + keep, end_ - keep);
      before_ += keep;
      at_ -= keep;
      end_ -= keep;
      keep = 0;
    }
    if (end_ + 1 >= buffer_.size()) buffer_.resize(2 * buffer_.size());
    auto got = file_.read({buffer_.data() + end_, buffer_.size() - 1 - end_});
    if (!got) read_ = tl::unexpected<Error>(got.error());
    const size_t size = got ? *got : 0;
    end_ += size;
    buffer_[end_] = '\0';  // ends every inner loop
    return size > 0;
  }

  bool at_end() {
    size_t keep = at_;
    return at_ == end_ && !more(keep);
  }

  char skip_blanks() {
    for (;;) {
      while (buffer_[at_] == ' ' || buffer_[at_] == '\n' || buffer_[at_] == '\r' || buffer_[at_] == '\t') ++at_;
      if (at_ < end_ || at_end()) return buffer_[at_];
    }
  }

  Expect after_value() { return open_.empty() ? Expect::kNothing : Expect::kComma; }

  Expect value(char c) {
    if (c == '"') {
      std::string_view text;
      if (!string(text)) return Expect::kError;
      handler_.string(text);
      return after_value();
    }
    if (c == '{' || c == '[') {
      ++at_;
      open_.push_back(c);
      if (c == '{')
        handler_.start_object();
      else
        handler_.start_array();
      return c == '{' ? Expect::kFirstKey : Expect::kFirstValue;
    }
    if (c == '-' || (c >= '0' && c <= '9') || c == 'N' || c == 'I') return number();
    return literal();
  }

  Expect close(char opened) {
    ++at_;
    open_.pop_back();
    if (opened == '{')
      handler_.end_object();
    else
      handler_.end_array();
    return after_value();
  }

  Expect key(char c) {
    if (c != '"') return wrong("expected a key");
    std::string_view text;
    if (!string(text)) return Expect::kError;
    handler_.key(text);
    if (skip_blanks() != ':') return wrong("expected ':' behind a key");
    ++at_;
    return Expect::kValue;
  }

  Expect comma(char c) {
    if (c == ',') {
      ++at_;
      return open_.back() == '{' ? Expect::kKey : Expect::kValue;
    }
    if (c == '}' && open_.back() == '{') return close('{');
    if (c == ']' && open_.back() == '[') return close('[');
    return wrong("expected ',' or the end of a list or object");
  }

  // From the opening quote behind the closing one.
  bool string(std::string_view& text) {
    size_t start = ++at_;
    bool escaped = false;
    for (;;) {
      at_ = plain_until(at_);
      const char c = buffer_[at_];
      if (c == '"') break;
      if (c == '\\') {
        escaped = true;
        if (at_ + 1 >= end_ && !more(start)) return wrong("a text without end"), false;
        at_ += 2;
        continue;
      }
      if (at_ < end_) return wrong("a control character in a text"), false;
      if (!more(start)) return wrong("a text without end"), false;
    }
    text = {buffer_.data() + start, at_ - start};
    ++at_;
    return !escaped || unescape(text);
  }

  // The first byte from `at` that is a quote, a backslash or below a blank (the sentinel too): eight at a time.
  size_t plain_until(size_t at) const {
    constexpr uint64_t kOnes = 0x0101'0101'0101'0101U, kHighs = 0x8080'8080'8080'8080U;
    while (at + 8 <= end_) {
      uint64_t word = 0;
      std::memcpy(&word, buffer_.data() + at, 8);
      const uint64_t quote = word ^ (kOnes * '"'), slash = word ^ (kOnes * '\\');
      const uint64_t found = ((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | ((word - kOnes * 0x20) & ~word);
      if ((found & kHighs) != 0) break;
      at += 8;
    }
    for (;; ++at) {
      const char c = buffer_[at];
      if (c == '"' || c == '\\' || (c >= 0 && c < 0x20)) return at;
    }
  }

  bool unescape(std::string_view& text) {
    scratch_.clear();
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        scratch_ += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
      if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
        scratch_ += kTo[simple];
      } else if (c != 'u' || !unicode(text, i)) {
        return wrong("an unknown escape in a text"), false;
      }
    }
    text = scratch_;
    return true;
  }

  static bool hex4(std::string_view text, size_t at, uint32_t& code) {
    if (at + 4 > text.size()) return false;
    code = 0;
    for (const char c : text.substr(at, 4)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return true;
  }

  // At the 'u' of an escape; moves to its last digit. Halves of a pair that stand alone become U+FFFD.
  bool unicode(std::string_view text, size_t& i) {
    uint32_t code = 0, low = 0;
    if (!hex4(text, i + 1, code)) return false;
    i += 4;
    if (code >= 0xd800 && code < 0xdc00 && text.substr(i + 1, 2) == "\\u" && hex4(text, i + 3, low) && low >= 0xdc00 &&
        low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10U) + (low - 0xdc00);
      i += 6;
    } else if (code >= 0xd800 && code < 0xe000) {
      code = 0xfffd;
    }
    const auto put = [&](uint32_t byte) { scratch_ += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | (code >> 6U)), put(0x80 | (code & 0x3fU));
    } else if (code < 0x10000) {
      put(0xe0 | (code >> 12U)), put(0x80 | ((code >> 6U) & 0x3fU)), put(0x80 | (code & 0x3fU));
    } else {
      put(0xf0 | (code >> 18U)), put(0x80 | ((code >> 12U) & 0x3fU));
      put(0x80 | ((code >> 6U) & 0x3fU)), put(0x80 | (code & 0x3fU));
    }
    return true;
  }

  // The run of characters that a number or a word may have, whole in the window.
  std::string_view word() {
    size_t start = at_;
    for (;;) {
      while (is_word(buffer_[at_])) ++at_;
      if (at_ < end_ || !more(start)) return {buffer_.data() + start, at_ - start};
    }
  }
  static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' ||
           c == '.';
  }

  Expect number() {
    const std::string_view text = word();
    if (!is_number(text)) return wrong("a malformed number");
    handler_.number(text);
    return after_value();
  }

  static bool is_number(std::string_view text) {
    if (!text.empty() && text.front() == '-') text.remove_prefix(1);
    if (text == "NaN" || text == "Infinity" || text == "Inf") return true;
    const auto digits = [&] {
      size_t count = 0;
      while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
      text.remove_prefix(count);
      return count;
    };
    const bool zero = text.starts_with('0');
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (text.starts_with('.')) {
      text.remove_prefix(1);
      if (digits() == 0) return false;
    }
    if (text.starts_with('e') || text.starts_with('E')) {
      text.remove_prefix(1);
      if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
      if (digits() == 0) return false;
    }
    return text.empty();
  }

  Expect literal() {
    const std::string_view text = word();
    if (text != "true" && text != "false" && text != "null") return wrong("expected a value");
    handler_.literal();
    return after_value();
  }

  GzipStream& file_;
  Handler& handler_;
  std::vector<char> buffer_;  // [at_, end_) is unread; buffer_[end_] is a zero
  size_t at_ = 0;
  size_t end_ = 0;
  size_t before_ = 0;  // bytes of the file before buffer_
  std::string open_;   // '{' and '[' of the levels we are in
  std::string scratch_;
  const char* problem_ = nullptr;
  Status read_;
};

}  // namespace mbb::profiler
