// Names, labels and hashes of stored records.
#include "baselines/store/records.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <ctime>
#include <utility>

#include "profiler/base/clock.h"

namespace mbb::baselines {
namespace {

template <typename T>
struct Named {
  T value;
  const char* text;
};

constexpr std::array kClasses = {
    Named{ResultClass::kMeasured, "measured"},
    Named{ResultClass::kGhost, "ghost"},
    Named{ResultClass::kProjected, "projected"},
    Named{ResultClass::kFunctionalCpu, "functional/cpu"},
};
constexpr std::array kStatuses = {
    Named{CellStatus::kOk, "ok"},
    Named{CellStatus::kSkipped, "skipped"},
    Named{CellStatus::kBroken, "broken"},
    Named{CellStatus::kUnstable, "unstable"},
};
constexpr std::array kVerdicts = {
    Named{Verdict::kSlower, "slower"},
    Named{Verdict::kSame, "same"},
    Named{Verdict::kFaster, "faster"},
    Named{Verdict::kNew, "new"},
    Named{Verdict::kInconclusive, "inconclusive"},
    Named{Verdict::kUnstable, "unstable"},
    Named{Verdict::kIncomparable, "incomparable"},
    Named{Verdict::kBroken, "broken"},
};

template <typename Table, typename T>
const char* text_of(const Table& table, T value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.text;
  }
  return "invalid";
}

template <typename T, typename Table>
Result<T> value_of(const Table& table, std::string_view text, const char* what) {
  std::string known;
  for (const auto& entry : table) {
    if (text == entry.text) return entry.value;
    known += known.empty() ? entry.text : fmt::format(", {}", entry.text);
  }
  return fail(ErrorCode::kBadFile, fmt::format("\"{}\" is no {}", text, what), fmt::format("one of: {}", known));
}

std::string hex16(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace

const char* name(ResultClass value) {
  return text_of(kClasses, value);
}
const char* name(CellStatus value) {
  return text_of(kStatuses, value);
}
const char* name(Verdict value) {
  return text_of(kVerdicts, value);
}

Result<ResultClass> parse_result_class(std::string_view text) {
  return value_of<ResultClass>(kClasses, text, "result class");
}
Result<CellStatus> parse_cell_status(std::string_view text) {
  return value_of<CellStatus>(kStatuses, text, "cell status");
}
Result<Verdict> parse_verdict(std::string_view text) {
  return value_of<Verdict>(kVerdicts, text, "verdict");
}

std::string class_label(const Cell& cell) {
  std::string label = name(cell.result_class);
  if (cell.result_class == ResultClass::kMeasured) {
    label += "/" + cell.device;
    if (cell.devices > 0) label += fmt::format("×{}", cell.devices);  // 0: nothing says how many
  }
  if (cell.numerics_only) label += "+numerics-only";
  return label;
}

bool take_class_label(std::string_view label, Cell& cell) {
  constexpr std::string_view kNumericsOnly = "+numerics-only", kTimes = "×";
  const bool numerics_only = label.ends_with(kNumericsOnly);
  if (numerics_only) label.remove_suffix(kNumericsOnly.size());
  const std::string_view word = label.substr(0, label.starts_with("measured/") ? label.find('/') : label.size());
  const auto parsed = parse_result_class(word);
  if (!parsed) return false;
  if (*parsed == ResultClass::kMeasured) {
    const size_t times = label.rfind(kTimes);
    const size_t device_end = std::min(times, label.size());
    if (device_end <= word.size() + 1) return false;
    int devices = 0;
    if (times != std::string_view::npos) {
      const std::string_view digits = label.substr(times + kTimes.size());
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), devices);
      if (error != std::errc{} || end != digits.data() + digits.size()) return false;
    }
    cell.device = label.substr(word.size() + 1, device_end - word.size() - 1);
    cell.devices = devices;
  }
  cell.result_class = *parsed;
  cell.numerics_only = numerics_only;
  return true;
}

std::string identity_hash(const Cell& cell) {
  std::vector<std::pair<std::string_view, std::string_view>> parts;
  for (const KnobValue& knob : cell.knobs) {
    if (knob.identity) parts.emplace_back(knob.key, knob.value);
  }
  std::sort(parts.begin(), parts.end());
  // Lengths keep ("a", "bc") and ("ab", "c") apart.
  std::string text;
  const auto add = [&text](std::string_view part) { text += fmt::format("{}:{};", part.size(), part); };
  add(cell.model);
  add(class_label(cell));
  add(std::to_string(cell.gpus));
  add(std::to_string(cell.ranks));
  for (const auto& [key, value] : parts) {
    add(key);
    add(value);
  }
  // A record without a hash, of a program that stored none, keeps its series.
  if (!cell.data_hash.empty()) {
    add("data");
    add(cell.data_hash);
  }
  return hex16(XXH3_64bits(text.data(), text.size()));
}

std::string configuration_hash(const Cell& cell) {
  std::vector<std::string> parts;
  for (const KnobValue& knob : cell.knobs)
    parts.push_back(fmt::format("{}:{}={}:{};", knob.key.size(), knob.key, knob.value.size(), knob.value));
  std::sort(parts.begin(), parts.end());
  std::string text = fmt::format("{};{};", cell.identity_hash, cell.program_hash);
  for (const std::string& part : parts) text += part;
  return hex16(XXH3_64bits(text.data(), text.size()));
}

std::string loss_checksum(const std::vector<Step>& steps) {
  std::vector<std::uint64_t> bits;
  bits.reserve(steps.size());
  for (const Step& step : steps) {
    // One pattern for every NaN: text keeps no NaN's payload.
    bits.push_back(std::isnan(step.loss) ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(step.loss));
  }
  return hex16(XXH3_64bits(bits.data(), bits.size() * sizeof(bits[0])));
}

std::string new_run_id(std::int64_t created_unix_ns, std::uint64_t nonce) {
  const std::time_t seconds = created_unix_ns / 1'000'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("r-{:04}{:02}{:02}-{:02}{:02}-{:04x}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, nonce & 0xffffU);
}

std::uint64_t fresh_nonce() {
  const std::uint64_t of[2] = {static_cast<std::uint64_t>(monotonic_ns()), static_cast<std::uint64_t>(getpid())};
  return XXH3_64bits(of, sizeof(of));
}

Status check_cell_name(std::string_view cell_name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-+=").find(c) != std::string_view::npos;
  };
  if (cell_name.empty() || cell_name.size() > 120 || cell_name.front() == '.' ||
      !std::all_of(cell_name.begin(), cell_name.end(), allowed)) {
    return fail(ErrorCode::kBadArgument, fmt::format("cell name \"{}\" cannot name a folder", cell_name),
                "use 1 to 120 letters, digits or . _ - + =, not starting with a dot");
  }
  return {};
}

}  // namespace mbb::baselines
