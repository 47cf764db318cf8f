// A knob: one record that says everything about one setting and reaches the typed field it sets.
//
// Configurations are plain structs of sections. A record names the field by member pointers (field() below), and from
// the record come the command-line flag, the TOML key, the environment variable, the stored value, `mbbench knobs` and
// the reference page. The default is what a default-constructed configuration holds, so it is written once.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <variant>
#include <vector>

#include "profiler/base/check.h"
#include "profiler/base/error.h"

namespace mbb {

enum class KnobType { kBool, kAutoBool, kInt, kDouble, kString, kChoice, kIntList, kTable };

// Stable name, as `mbbench knobs` prints it: "integer".
const char* name(KnobType type);

// Named scalars of a table knob, by dotted name: {"proj.method", "pipeline"}.
using KnobMap = std::map<std::string, std::string>;

struct KnobAuto {
  bool operator==(const KnobAuto&) const = default;
};

// A value on its way between text, file and field. A choice travels by its name.
using KnobData = std::variant<KnobAuto, bool, int64_t, double, std::string, std::vector<int64_t>, KnobMap>;

// One value of a choice knob; `value` is the enumerator.
struct KnobChoice {
  std::string name;
  int64_t value = 0;
  std::string doc;
};

template <typename Enum>
KnobChoice choice(std::string name, Enum value, std::string doc = {}) {
  return {std::move(name), static_cast<int64_t>(value), std::move(doc)};
}

// Allowed numbers; for a list, of each element.
struct KnobRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_allowed = true;
  bool high_allowed = true;

  bool holds(double value) const;
  std::string text() const;  // "at least 1", "above 0 and below 1"; empty when any number is allowed
};

KnobRange at_least(double low);
KnobRange above(double low);
KnobRange within(double low, double high);  // both allowed
KnobRange at_least_and_below(double low, double high);

// The way to one field of a configuration of type `config`. Enumerations travel as int64 here.
struct KnobField {
  KnobType type = KnobType::kBool;
  std::type_index config = typeid(void);
  std::function<KnobData(const void*)> get;
  std::function<void(void*, const KnobData&)> set;
};

struct Knob {
  std::string key;                     // "parallel.tensor_model_parallel_size"; without a dot it has no section
  std::vector<std::string> aliases{};  // short forms and other spellings, unique in the table: "tp"
  KnobField field{};
  std::vector<KnobChoice> choices{};  // for an enumeration
  KnobRange range{};
  std::string unit{};                // "sequences", "tokens"; empty for a plain number
  std::string doc{};                 // one sentence
  std::string history{};             // why the default is what it is, where it differs from Megatron's; may be empty
  std::vector<std::string> needs{};  // what must hold for it to do anything, in words of its table: "pp > 1"
  bool path = false;      // a file or folder: relative ones in a settings or suite file count from that file's folder
  bool identity = true;   // runs that differ in it are different series
  bool projected = true;  // false: a projected time is as without it

  std::string_view section() const;  // "parallel", or empty
  std::string_view bare_name() const;

  // Value of the field in `config`, which must be of type field.config; a choice gives its name.
  KnobData get(const void* config) const;
  // Checks type, choice and range, then sets the field. A whole table is replaced.
  Status set(void* config, KnobData value) const;
  // Reads `text` as this knob's type; the error says what was expected.
  Result<KnobData> parse(std::string_view text) const;
};

// Text that Knob::parse reads back as the same value: "4", "0.0003", "auto", "1,2,3", "proj.method=bulk,proj.num_sm=1".
std::string knob_text(const KnobData& value);

namespace knob_detail {

template <typename T>
constexpr KnobType type_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return KnobType::kBool;
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return KnobType::kAutoBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return KnobType::kInt;
  } else if constexpr (std::is_same_v<T, double>) {
    return KnobType::kDouble;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return KnobType::kString;
  } else if constexpr (std::is_enum_v<T>) {
    return KnobType::kChoice;
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return KnobType::kIntList;
  } else {
    static_assert(std::is_same_v<T, KnobMap>, "no knob type holds this field");
    return KnobType::kTable;
  }
}

template <typename T>
KnobData to_data(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return value ? KnobData(*value) : KnobData(KnobAuto{});
  } else {
    return value;
  }
}

template <typename T>
T from_data(const KnobData& data) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(std::get<int64_t>(data));
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return std::holds_alternative<KnobAuto>(data) ? T{} : T{std::get<bool>(data)};
  } else {
    return std::get<T>(data);
  }
}

}  // namespace knob_detail

// A field inside a section: field(&Config::parallel, &ParallelConfig::tensor_model_parallel_size).
template <typename Config, typename Section, typename T>
KnobField field(Section Config::*section, T Section::*member) {
  return {
      knob_detail::type_of<T>(), typeid(Config),
      [=](const void* config) { return knob_detail::to_data(static_cast<const Config*>(config)->*section.*member); },
      [=](void* config, const KnobData& data) {
        static_cast<Config*>(config)->*section.*member = knob_detail::from_data<T>(data);
      }};
}

// A field of the configuration itself.
template <typename Config, typename T>
KnobField field(T Config::*member) {
  return {knob_detail::type_of<T>(), typeid(Config),
          [=](const void* config) { return knob_detail::to_data(static_cast<const Config*>(config)->*member); },
          [=](void* config, const KnobData& data) {
            static_cast<Config*>(config)->*member = knob_detail::from_data<T>(data);
          }};
}

}  // namespace mbb
