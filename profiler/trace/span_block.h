// The bytes of a span block before compression: one column a field, each as narrow as its values allow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/trace/trace.h"

namespace mbb::profiler {

std::string encode_spans(std::span<const Span> spans);

// Appends `count` spans (bounded by the caller) to `out`; false when the bytes are no such block (lengths, ranges of
// fields). Ids are not compared with tables here.
bool decode_spans(std::string_view bytes, size_t count, std::vector<Span>& out);

// Little-endian fields of fixed width, for block headers and tables.
class ByteWriter {
 public:
  void u8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void u32(uint32_t value) { number(value, 4); }
  void u64(uint64_t value) { number(value, 8); }
  void i32(int32_t value) { u32(static_cast<uint32_t>(value)); }
  void i64(int64_t value) { u64(static_cast<uint64_t>(value)); }
  void text(std::string_view value);  // length and bytes
  void raw(std::string_view value) { bytes_ += value; }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  void number(uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string bytes_;
};

// Reads what ByteWriter wrote. Past the end it gives zeros and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  int32_t i32() { return static_cast<int32_t>(u32()); }
  int64_t i64() { return static_cast<int64_t>(u64()); }
  std::string_view text();
  std::string_view raw(size_t size);
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }
  size_t left() const { return bytes_.size(); }

 private:
  uint64_t number(size_t width);
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace mbb::profiler
