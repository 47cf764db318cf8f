// Reads the data part of Python's pickle format, and nothing that could run code.
//
// A pickle is a program for a small stack machine. Only opcodes that build None, booleans, numbers, texts, lists,
// tuples and dicts are known here; every other one (GLOBAL, REDUCE, BUILD, ...) ends the reading with an error that
// names it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

using PickleId = uint32_t;

// Values live in one table and name each other by index, so shared and even cyclic values cost nothing to hold.
struct PickleValue {
  enum class Kind : uint8_t { kNone, kBool, kInt, kBigInt, kFloat, kText, kList, kTuple, kDict };
  Kind kind = Kind::kNone;
  int64_t integer = 0;          // kBool, kInt
  double number = 0;            // kFloat
  std::string_view text;        // kText, kBigInt (little-endian): points into the bytes that were read
  std::vector<PickleId> items;  // kList, kTuple; kDict: key, value, key, value, ...
};

class Pickle {
 public:
  // `bytes` must outlive the result.
  static Result<Pickle> parse(std::string_view bytes);

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(PickleId id) const { return values_[id]; }

  // The value under a text key; null when `dict` is no dict or lacks it.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;
  // Likewise, for the number under a key; `missing` when it is absent or no integer.
  int64_t integer(const PickleValue& dict, std::string_view key, int64_t missing) const;
  std::string_view text(const PickleValue& dict, std::string_view key) const;

 private:
  std::vector<PickleValue> values_;
  PickleId root_ = 0;
};

}  // namespace mbb::profiler
