// The stack machine of pickle, with the opcodes of plain data only.
#include "profiler/memory/pickle.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include <fmt/core.h>

namespace mbb::profiler {

namespace {

enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt4 = 'J',
  kInt1 = 'K',
  kInt2 = 'M',
  kLong1 = 0x8A,
  kFloat8 = 'G',
  kText4 = 'X',
  kText1 = 0x8C,
  kText8 = 0x8D,
  kMemoize = 0x94,
  kPut1 = 'q',
  kPut4 = 'r',
  kGet1 = 'h',
  kGet4 = 'j',
  kProtocol = 0x80,
  kFrame = 0x95
};

const char* known_danger(uint8_t opcode) {
  switch (opcode) {
    case 'c': return "GLOBAL";
    case 0x93: return "STACK_GLOBAL";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x92: return "NEWOBJ_EX";
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    case 0x82:
    case 0x83:
    case 0x84: return "EXT";
    default: return nullptr;
  }
}

class Machine {
 public:
  explicit Machine(std::string_view bytes) : bytes_(bytes) {}

  Status run(std::vector<PickleValue>& values, PickleId& root) {
    while (true) {
      const size_t at = at_;
      const uint8_t opcode = static_cast<uint8_t>(number(1));
      if (!ok_) return broken(at, "the pickle ends without STOP");
      if (opcode == kStop) break;
      if (!step(opcode)) {
        if (const char* danger = known_danger(opcode); danger != nullptr)
          return fail(ErrorCode::kBadFile, fmt::format("pickle: {} at byte {} would run code: refused", danger, at),
                      "a memory snapshot holds plain data only; this file holds more");
        return broken(at, fmt::format("opcode 0x{:02x} is unknown, cut off or out of place", opcode));
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) return broken(at_, "the pickle leaves more or less than one value");
    root = stack_.back();
    values = std::move(values_);
    return {};
  }

 private:
  using Kind = PickleValue::Kind;

  static tl::unexpected<Error> broken(size_t at, const std::string& why) {
    return fail(ErrorCode::kBadFile, fmt::format("pickle: {} (byte {})", why, at), "the file is damaged or no pickle");
  }

  std::string_view raw(uint64_t size) {
    if (!ok_ || size > bytes_.size() - at_) {
      ok_ = false;
      return {};
    }
    const std::string_view part = bytes_.substr(at_, size);
    at_ += size;
    return part;
  }

  uint64_t number(size_t width) {
    const std::string_view part = raw(width);
    uint64_t value = 0;
    for (size_t i = 0; i < part.size(); ++i) value |= uint64_t{static_cast<uint8_t>(part[i])} << (8 * i);
    return value;
  }

  bool push(PickleValue value) {
    if (!ok_ || values_.size() >= UINT32_MAX) return false;
    stack_.push_back(static_cast<PickleId>(values_.size()));
    values_.push_back(std::move(value));
    return true;
  }
  bool push_int(int64_t value) { return push({.kind = Kind::kInt, .integer = value, .text = {}, .items = {}}); }
  bool push_kind(Kind kind, int64_t value = 0) {
    return push({.kind = kind, .integer = value, .text = {}, .items = {}});
  }
  bool push_text(uint64_t size) {
    const std::string_view text = raw(size);
    return push({.kind = Kind::kText, .text = text, .items = {}});
  }

  bool push_long(uint64_t width) {
    const std::string_view part = raw(width);
    if (!ok_) return false;
    if (width > 8) return push({.kind = Kind::kBigInt, .text = part, .items = {}});
    uint64_t value = !part.empty() && (part.back() & '\x80') != 0 ? ~uint64_t{0} : 0;
    for (size_t i = part.size(); i > 0; --i) value = (value << 8U) | static_cast<uint8_t>(part[i - 1]);
    return push_int(static_cast<int64_t>(value));
  }

  bool push_float() {
    const uint64_t little = number(8);
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= ((little >> (8 * i)) & 0xFFU) << (8 * (7 - i));
    return push({.kind = Kind::kFloat, .number = std::bit_cast<double>(bits), .text = {}, .items = {}});
  }

  // How many values lie above the innermost mark's place; false when there is none.
  bool above_mark(size_t& count) {
    if (marks_.empty() || marks_.back() > stack_.size()) return false;
    count = stack_.size() - marks_.back();
    marks_.pop_back();
    return true;
  }
  // Values that no open mark protects.
  size_t free_values() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  // The top `count` values become a tuple.
  bool make_tuple(size_t count) {
    if (free_values() < count) return false;
    PickleValue tuple{.kind = Kind::kTuple, .text = {}, .items = {}};
    tuple.items.assign(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return push(std::move(tuple));
  }

  // The top `count` values go into the container below them.
  bool add_items(size_t count, Kind kind) {
    if (stack_.size() < count + 1) return false;
    PickleValue& to = values_[stack_[stack_.size() - count - 1]];
    if (to.kind != kind || (kind == Kind::kDict && count % 2 != 0)) return false;
    to.items.insert(to.items.end(), stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return true;
  }

  bool put(uint64_t slot) {
    if (!ok_ || free_values() == 0) return false;
    memo_[slot] = stack_.back();
    return true;
  }
  bool get(uint64_t slot) {
    const auto found = memo_.find(slot);
    if (!ok_ || found == memo_.end()) return false;
    stack_.push_back(found->second);
    return true;
  }

  bool step(uint8_t opcode) {
    size_t count = 0;
    switch (opcode) {
      case kProtocol: return number(1) <= 5 && ok_;
      case kFrame: number(8); return ok_;
      case kMark: marks_.push_back(stack_.size()); return true;
      case kNone: return push_kind(Kind::kNone);
      case kTrue: return push_kind(Kind::kBool, 1);
      case kFalse: return push_kind(Kind::kBool, 0);
      case kEmptyDict: return push_kind(Kind::kDict);
      case kEmptyList: return push_kind(Kind::kList);
      case kEmptyTuple: return push_kind(Kind::kTuple);
      case kInt1: return push_int(static_cast<int64_t>(number(1)));
      case kInt2: return push_int(static_cast<int64_t>(number(2)));
      case kInt4: return push_int(static_cast<int32_t>(static_cast<uint32_t>(number(4))));
      case kLong1: return push_long(number(1));
      case kFloat8: return push_float();
      case kText1: return push_text(number(1));
      case kText4: return push_text(number(4));
      case kText8: return push_text(number(8));
      case kTuple1: return make_tuple(1);
      case kTuple2: return make_tuple(2);
      case kTuple3: return make_tuple(3);
      case kTuple: return above_mark(count) && make_tuple(count);
      case kAppend: return free_values() >= 2 && add_items(1, Kind::kList);
      case kAppends: return above_mark(count) && add_items(count, Kind::kList);
      case kSetItem: return free_values() >= 3 && add_items(2, Kind::kDict);
      case kSetItems: return above_mark(count) && add_items(count, Kind::kDict);
      case kMemoize: return put(memo_.size());
      case kPut1: return put(number(1));
      case kPut4: return put(number(4));
      case kGet1: return get(number(1));
      case kGet4: return get(number(4));
      default: return false;
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
  std::vector<PickleValue> values_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleId> memo_;
};

}  // namespace

Result<Pickle> Pickle::parse(std::string_view bytes) {
  Pickle pickle;
  MB_TRY(Machine(bytes).run(pickle.values_, pickle.root_));
  return pickle;
}

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != PickleValue::Kind::kDict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {  // a later key replaces an earlier one
    const PickleValue& name = at(dict.items[i - 2]);
    if (name.kind == PickleValue::Kind::kText && name.text == key) return &at(dict.items[i - 1]);
  }
  return nullptr;
}

int64_t Pickle::integer(const PickleValue& dict, std::string_view key, int64_t missing) const {
  const PickleValue* value = find(dict, key);
  return value != nullptr && value->kind == PickleValue::Kind::kInt ? value->integer : missing;
}

std::string_view Pickle::text(const PickleValue& dict, std::string_view key) const {
  const PickleValue* value = find(dict, key);
  return value != nullptr && value->kind == PickleValue::Kind::kText ? value->text : std::string_view();
}

}  // namespace mbb::profiler
