// Columns of a span block: frame of reference (value - smallest) in 0, 1, 2, 4 or 8 bytes.
#include "profiler/trace/span_block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

namespace mbb::profiler {

static_assert(std::endian::native == std::endian::little, "columns are copied as they lie in memory");

namespace {

enum Field : size_t {
  kStart,
  kLength,
  kCollective,
  kCorrelation,
  kTrack,
  kName,
  kOp,
  kStep,
  kMicro,
  kKind,
  kPhase,
  kFields
};

// The value of a field as 64 bits; start times are differences to the span before.
uint64_t field_of(const Span& span, int64_t previous_start, size_t field) {
  switch (field) {
    case kStart: return static_cast<uint64_t>(span.start_ns) - static_cast<uint64_t>(previous_start);
    case kLength: return static_cast<uint64_t>(span.end_ns) - static_cast<uint64_t>(span.start_ns);
    case kCollective: return span.collective;
    case kCorrelation: return span.correlation;
    case kTrack: return span.track;
    case kName: return span.name;
    case kOp: return span.op;
    case kStep: return static_cast<uint64_t>(int64_t{span.step});
    case kMicro: return static_cast<uint64_t>(int64_t{span.micro_batch});
    case kKind: return static_cast<uint64_t>(span.kind);
    default: return static_cast<uint64_t>(span.phase);
  }
}

template <typename Unsigned>
void append_column(std::string& out, const std::vector<uint64_t>& values, uint64_t base) {
  const size_t at = out.size();
  out.resize(at + values.size() * sizeof(Unsigned));
  char* to = out.data() + at;
  for (const uint64_t value : values) {
    const auto narrow = static_cast<Unsigned>(value - base);
    std::memcpy(to, &narrow, sizeof narrow);
    to += sizeof narrow;
  }
}

void encode_column(const std::vector<uint64_t>& values, ByteWriter& out) {
  // Signed smallest, so that negative differences and step -1 do not widen the column.
  const auto less = [](uint64_t a, uint64_t b) { return static_cast<int64_t>(a) < static_cast<int64_t>(b); };
  const auto [low, high] = std::minmax_element(values.begin(), values.end(), less);
  const uint64_t base = *low;
  const uint64_t range = *high - base;
  const int width = range == 0 ? 0 : range <= 0xFF ? 1 : range <= 0xFFFF ? 2 : range <= 0xFFFFFFFF ? 4 : 8;
  out.u64(base);
  out.u8(static_cast<uint8_t>(width));
  std::string bytes;
  if (width == 1) append_column<uint8_t>(bytes, values, base);
  if (width == 2) append_column<uint16_t>(bytes, values, base);
  if (width == 4) append_column<uint32_t>(bytes, values, base);
  if (width == 8) append_column<uint64_t>(bytes, values, base);
  out.raw(bytes);
}

template <typename Unsigned>
void widen(const char* from, uint64_t base, std::vector<uint64_t>& out) {
  for (uint64_t& value : out) {
    Unsigned narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    from += sizeof narrow;
    value = base + narrow;
  }
}

bool decode_column(ByteReader& in, std::vector<uint64_t>& out) {
  const uint64_t base = in.u64();
  const uint8_t width = in.u8();
  if (width != 0 && width != 1 && width != 2 && width != 4 && width != 8) return false;
  const std::string_view bytes = in.raw(out.size() * width);
  if (!in.ok()) return false;
  if (width == 0) std::fill(out.begin(), out.end(), base);
  if (width == 1) widen<uint8_t>(bytes.data(), base, out);
  if (width == 2) widen<uint16_t>(bytes.data(), base, out);
  if (width == 4) widen<uint32_t>(bytes.data(), base, out);
  if (width == 8) widen<uint64_t>(bytes.data(), base, out);
  return true;
}

bool fits_u32(uint64_t value) {
  return value <= std::numeric_limits<uint32_t>::max();
}
bool fits_i32(uint64_t value) {
  const auto wide = static_cast<int64_t>(value);
  return wide >= std::numeric_limits<int32_t>::min() && wide <= std::numeric_limits<int32_t>::max();
}

// One decoded value into its span; false when it cannot be one.
bool store_field(size_t field, uint64_t value, Span& span) {
  switch (field) {
    case kStart: span.start_ns = static_cast<int64_t>(value); return true;
    case kLength:
      span.end_ns = static_cast<int64_t>(static_cast<uint64_t>(span.start_ns) + value);
      return span.end_ns >= span.start_ns;
    case kCollective: span.collective = value; return true;
    case kCorrelation: span.correlation = static_cast<uint32_t>(value); return fits_u32(value);
    case kTrack: span.track = static_cast<uint32_t>(value); return fits_u32(value);
    case kName: span.name = static_cast<uint32_t>(value); return fits_u32(value);
    case kOp: span.op = static_cast<uint32_t>(value); return fits_u32(value);
    case kStep: span.step = static_cast<int32_t>(value); return fits_i32(value);
    case kMicro: span.micro_batch = static_cast<int32_t>(value); return fits_i32(value);
    case kKind: span.kind = static_cast<SpanKind>(value); return value < kSpanKinds;
    default: span.phase = static_cast<Phase>(value); return value < kPhases;
  }
}

}  // namespace

std::string encode_spans(std::span<const Span> spans) {
  ByteWriter out;
  if (spans.empty()) return out.take();
  out.i64(spans.front().start_ns);
  std::vector<uint64_t> column(spans.size());
  for (size_t field = 0; field < kFields; ++field) {
    int64_t previous = spans.front().start_ns;
    for (size_t i = 0; i < spans.size(); ++i) {
      column[i] = field_of(spans[i], previous, field);
      previous = spans[i].start_ns;
    }
    encode_column(column, out);
  }
  return out.take();
}

bool decode_spans(std::string_view bytes, size_t count, std::vector<Span>& out) {
  if (count == 0) return bytes.empty();
  ByteReader in(bytes);
  uint64_t previous = in.u64();
  const size_t first = out.size();
  out.resize(first + count);
  std::vector<uint64_t> column(count);
  for (size_t field = 0; field < kFields; ++field) {
    if (!decode_column(in, column)) return false;
    for (size_t i = 0; i < count; ++i) {
      if (field == kStart) column[i] = previous += column[i];
      if (!store_field(field, column[i], out[first + i])) return false;
    }
  }
  return in.at_end();
}

void ByteWriter::text(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  bytes_ += value;
}

uint64_t ByteReader::number(size_t width) {
  const std::string_view part = raw(width);
  uint64_t value = 0;
  for (size_t i = 0; i < part.size(); ++i) value |= uint64_t{static_cast<uint8_t>(part[i])} << (8 * i);
  return value;
}

std::string_view ByteReader::raw(size_t size) {
  if (!ok_ || size > bytes_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view part = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return part;
}

std::string_view ByteReader::text() {
  return raw(u32());
}

}  // namespace mbb::profiler
