// Element types of tensors and messages: sizes, names, and bf16 conversion with one rounding to nearest even.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mbb::trainer {

enum class DType : uint8_t { kF32, kF64, kBf16, kF16, kE4M3, kE5M2, kE2M1, kE8M0, kI32, kI64, kU8, kU16 };

inline constexpr std::array kAllDTypes = {DType::kF32,  DType::kF64,  DType::kBf16, DType::kF16,
                                          DType::kE4M3, DType::kE5M2, DType::kE2M1, DType::kE8M0,
                                          DType::kI32,  DType::kI64,  DType::kU8,   DType::kU16};

// Bits of one element. E2M1 is the only type below a byte: two elements a byte, the even element in the low half.
constexpr int bits_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 64;
    case DType::kF32:
    case DType::kI32: return 32;
    case DType::kBf16:
    case DType::kF16:
    case DType::kU16: return 16;
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kE8M0:
    case DType::kU8: return 8;
    case DType::kE2M1: return 4;
  }
  return 0;
}

// Bytes that `count` elements take; a last odd E2M1 element takes a whole byte.
constexpr size_t bytes_of(DType dtype, size_t count) {
  return dtype == DType::kE2M1 ? (count + 1) / 2 : count * static_cast<size_t>(bits_of(dtype) / 8);
}

// Bytes of one element; 1 for E2M1, whose arrays are half that: use bytes_of for buffers.
constexpr size_t size_of(DType dtype) {
  return bytes_of(dtype, 1);
}

constexpr bool is_float(DType dtype) {
  return dtype < DType::kI32;
}

// Stable names, as stored and printed.
constexpr const char* name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kBf16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kE4M3: return "e4m3";
    case DType::kE5M2: return "e5m2";
    case DType::kE2M1: return "e2m1";
    case DType::kE8M0: return "e8m0";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kU16: return "u16";
  }
  return "unknown";
}

constexpr std::optional<DType> dtype_named(std::string_view text) {
  for (const DType dtype : kAllDTypes)
    if (text == name(dtype)) return dtype;
  return std::nullopt;
}

// A bf16 value as stored: the upper half of an f32.
struct Bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};
static_assert(sizeof(Bf16) == 2);

constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest even; overflow gives infinity, NaN stays a quiet NaN of the same sign.
constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// From f64 with one rounding: a plain cast to f32 first could round twice, so that cast is made to odd (truncate, then
// set the last bit when anything was lost), which keeps a later rounding to fewer bits exact.
constexpr Bf16 to_bf16(double value) {
  const float nearest = static_cast<float>(value);
  if (value != value || static_cast<double>(nearest) == value) return to_bf16(nearest);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double magnitude = value < 0 ? -value : value;
  const double nearest_magnitude = static_cast<double>(std::bit_cast<float>(bits & 0x7fffffffu));
  if (nearest_magnitude > magnitude) --bits;
  return to_bf16(std::bit_cast<float>(bits | 1u));
}

}  // namespace mbb::trainer
