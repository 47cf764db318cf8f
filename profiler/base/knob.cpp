// Values of knobs: their texts, their rules, and the way into the field.
#include "profiler/base/knob.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/text.h"

namespace mbb {
namespace {

// Beyond this a double no longer holds every integer, and no size or count of a run comes near it.
constexpr int64_t kIntLimit = int64_t{1} << 53;
constexpr const char* kIntegerOfAtMost = "an integer of at most 2^53";
constexpr size_t kListLimit = 4096;

std::string quoted(std::string_view text) {
  return fmt::format("'{}'", printable(text));
}

tl::unexpected<Error> expected(const Knob& knob, const std::string& what, const std::string& got,
                               std::string hint = {}) {
  return fail(ErrorCode::kBadArgument, fmt::format("{} must be {}, not {}", knob.key, what, got), std::move(hint));
}

std::string number_wanted(const Knob& knob, const char* kind) {
  std::string text = kind;
  if (!knob.unit.empty()) text += fmt::format(" ({})", knob.unit);
  return text;
}

std::vector<std::string> choice_names(const Knob& knob) {
  std::vector<std::string> names;
  for (const KnobChoice& c : knob.choices) names.push_back(c.name);
  return names;
}

Status check_number(const Knob& knob, double value, const std::string& text) {
  if (knob.range.holds(value)) return {};
  return expected(knob, knob.range.text(), text, knob.doc);
}

Status check_integer(const Knob& knob, int64_t value) {
  if (value > kIntLimit || value < -kIntLimit) return expected(knob, kIntegerOfAtMost, fmt::format("{}", value));
  return check_number(knob, static_cast<double>(value), fmt::format("{}", value));
}

// Control bytes would break the one-line forms in which values are stored and printed.
bool one_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

Status check_table(const Knob& knob, const KnobMap& table) {
  for (const auto& [name, value] : table) {
    if (name.empty() || name.find_first_of("=, ") != std::string::npos || !one_line(name))
      return expected(knob, "a table with plain names", quoted(name));
    if (value.find_first_of("=,") != std::string::npos || !one_line(value))
      return expected(knob, "a table of values without '=' or ','", quoted(value));
  }
  return {};
}

Result<int64_t> choice_value(const Knob& knob, const std::string& given) {
  const std::string wanted = replace_all(to_lower(given), "-", "_");
  for (const KnobChoice& c : knob.choices)
    if (replace_all(to_lower(c.name), "-", "_") == wanted) return c.value;
  const auto names = choice_names(knob);
  const auto near = nearest(given, names);
  return expected(knob, "one of " + join(names, ", "), quoted(given),
                  near ? fmt::format("did you mean '{}'?", *near) : "");
}

// What arrived, told by its type: for a value from a file that has the wrong one.
std::string told(const KnobData& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return "the string \"" + printable(*text) + "\"";
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "the boolean true" : "the boolean false";
  if (std::holds_alternative<KnobMap>(value)) return "a table";
  if (std::holds_alternative<std::vector<int64_t>>(value)) return "a list";
  return "the number " + knob_text(value);
}

const char* wanted_form(KnobType type) {
  switch (type) {
    case KnobType::kBool: return "true or false";
    case KnobType::kAutoBool: return "true, false or \"auto\"";
    case KnobType::kInt: return "an integer";
    case KnobType::kDouble: return "a number";
    case KnobType::kString: return "a string";
    case KnobType::kChoice: return "a string";
    case KnobType::kIntList: return "a list of integers";
    case KnobType::kTable: return "a table";
  }
  return "";
}

// Widens what means the same: an integer where a number is wanted, "auto", one integer as a list of one.
void widen(KnobType type, KnobData& value) {
  const auto* number = std::get_if<int64_t>(&value);
  const auto* text = std::get_if<std::string>(&value);
  if (type == KnobType::kDouble && number != nullptr) {
    value.emplace<double>(static_cast<double>(*number));
  } else if (type == KnobType::kIntList && number != nullptr) {
    value = std::vector<int64_t>(1, *number);
  } else if (type == KnobType::kAutoBool && text != nullptr && to_lower(*text) == "auto") {
    value.emplace<KnobAuto>();
  }
}

bool fits(KnobType type, const KnobData& value) {
  switch (type) {
    case KnobType::kBool: return std::holds_alternative<bool>(value);
    case KnobType::kAutoBool: return std::holds_alternative<bool>(value) || std::holds_alternative<KnobAuto>(value);
    case KnobType::kInt: return std::holds_alternative<int64_t>(value);
    case KnobType::kDouble: return std::holds_alternative<double>(value);
    case KnobType::kString:
    case KnobType::kChoice: return std::holds_alternative<std::string>(value);
    case KnobType::kIntList: return std::holds_alternative<std::vector<int64_t>>(value);
    case KnobType::kTable: return std::holds_alternative<KnobMap>(value);
  }
  return false;
}

Result<KnobData> parse_list(const Knob& knob, std::string_view text) {
  std::vector<int64_t> list;
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = trim(text.substr(1, text.size() - 2));
  if (text.empty()) return list;
  for (const std::string_view part : split(text, ',')) {
    const auto number = parse_int(trim(part));
    if (!number) return expected(knob, "integers separated by commas", quoted(text));
    list.push_back(*number);
  }
  return list;
}

Result<KnobData> parse_table(const Knob& knob, std::string_view text) {
  KnobMap table;
  if (text.empty()) return table;
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) return expected(knob, "name=value pairs separated by commas", quoted(text));
    table[std::string(trim(part.substr(0, equals)))] = std::string(trim(part.substr(equals + 1)));
  }
  return table;
}

}  // namespace

const char* name(KnobType type) {
  switch (type) {
    case KnobType::kBool: return "boolean";
    case KnobType::kAutoBool: return "auto or boolean";
    case KnobType::kInt: return "integer";
    case KnobType::kDouble: return "number";
    case KnobType::kString: return "string";
    case KnobType::kChoice: return "choice";
    case KnobType::kIntList: return "list of integers";
    case KnobType::kTable: return "table";
  }
  return "";
}

bool KnobRange::holds(double value) const {
  const bool low_ok = low_allowed ? value >= low : value > low;
  const bool high_ok = high_allowed ? value <= high : value < high;
  return low_ok && high_ok;
}

std::string KnobRange::text() const {
  std::vector<std::string> parts;
  if (std::isfinite(low)) parts.push_back(fmt::format("{} {}", low_allowed ? "at least" : "above", low));
  if (std::isfinite(high)) parts.push_back(fmt::format("{} {}", high_allowed ? "at most" : "below", high));
  return join(parts, " and ");
}

KnobRange at_least(double low) {
  return {.low = low};
}
KnobRange above(double low) {
  return {.low = low, .low_allowed = false};
}
KnobRange within(double low, double high) {
  return {.low = low, .high = high};
}
KnobRange at_least_and_below(double low, double high) {
  return {.low = low, .high = high, .high_allowed = false};
}

std::string_view Knob::section() const {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? std::string_view{} : std::string_view(key).substr(0, dot);
}

std::string_view Knob::bare_name() const {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? std::string_view(key) : std::string_view(key).substr(dot + 1);
}

KnobData Knob::get(const void* config) const {
  KnobData value = field.get(config);
  if (field.type != KnobType::kChoice) return value;
  for (const KnobChoice& c : choices)
    if (c.value == std::get<int64_t>(value)) return c.name;
  MB_CHECK(false, fmt::format("knob {} holds an enumerator that is none of its choices", key));
}

Status Knob::set(void* config, KnobData value) const {
  widen(field.type, value);
  if (!fits(field.type, value)) {
    const std::string wanted = field.type == KnobType::kChoice ? "one of " + join(choice_names(*this), ", ")
                                                               : std::string(wanted_form(field.type));
    return expected(*this, wanted, told(value));
  }
  switch (field.type) {
    case KnobType::kBool:
    case KnobType::kAutoBool: break;
    case KnobType::kInt: MB_TRY(check_integer(*this, std::get<int64_t>(value))); break;
    case KnobType::kDouble: {
      const double number = std::get<double>(value);
      if (!std::isfinite(number)) return expected(*this, "a finite number", knob_text(value));
      MB_TRY(check_number(*this, number, knob_text(value)));
      break;
    }
    case KnobType::kString:
      if (!one_line(std::get<std::string>(value)))
        return expected(*this, "one line without control characters", quoted(std::get<std::string>(value)));
      break;
    case KnobType::kChoice: {
      MB_ASSIGN(const int64_t enumerator, choice_value(*this, std::get<std::string>(value)));
      value = enumerator;
      break;
    }
    case KnobType::kIntList: {
      const auto& list = std::get<std::vector<int64_t>>(value);
      if (list.size() > kListLimit)
        return expected(*this, fmt::format("a list of at most {}", kListLimit), fmt::format("{} long", list.size()));
      for (const int64_t element : list) MB_TRY(check_integer(*this, element));
      break;
    }
    case KnobType::kTable: MB_TRY(check_table(*this, std::get<KnobMap>(value))); break;
  }
  field.set(config, value);
  return {};
}

Result<KnobData> Knob::parse(std::string_view text) const {
  switch (field.type) {
    case KnobType::kBool:
    case KnobType::kAutoBool: {
      if (field.type == KnobType::kAutoBool && to_lower(text) == "auto") return KnobAuto{};
      const auto flag = parse_bool(text);
      if (!flag)
        return expected(*this, field.type == KnobType::kBool ? "true or false" : "true, false or auto", quoted(text));
      return *flag;
    }
    case KnobType::kInt: {
      const auto number = parse_int(text);
      const bool huge = !number && std::abs(parse_double(text).value_or(0)) > static_cast<double>(kIntLimit);
      if (huge) return expected(*this, kIntegerOfAtMost, quoted(text));
      if (!number) return expected(*this, number_wanted(*this, "an integer"), quoted(text));
      return *number;
    }
    case KnobType::kDouble: {
      const auto number = parse_double(text);
      if (!number) return expected(*this, number_wanted(*this, "a number"), quoted(text));
      return *number;
    }
    case KnobType::kString:
    case KnobType::kChoice: return std::string(text);
    case KnobType::kIntList: return parse_list(*this, text);
    case KnobType::kTable: return parse_table(*this, text);
  }
  return fail(ErrorCode::kBadArgument, "unknown knob type");
}

std::string knob_text(const KnobData& value) {
  struct Printer {
    std::string operator()(KnobAuto) const { return "auto"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return format_exact(number); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<int64_t>& list) const { return fmt::format("{}", fmt::join(list, ",")); }
    std::string operator()(const KnobMap& table) const {
      std::vector<std::string> pairs;
      for (const auto& [name, entry] : table) pairs.push_back(name + "=" + entry);
      return join(pairs, ",");
    }
  };
  return std::visit(Printer{}, value);
}

}  // namespace mbb
