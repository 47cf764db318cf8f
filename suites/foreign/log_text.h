// Finding values in log lines, and collecting steps: what the readers share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "suites/foreign/training_log.h"

namespace mbb::suites {

// `text` without terminal colours ("\x1b[32m") and carriage returns.
std::string plain_line(std::string_view text);

// The number behind the first `key` in `text`, blanks and thousands separators skipped, whatever follows it; nothing
// when the key is not there. A key without a number behind it counts in `log.unreadable`; "nan" and "inf" are numbers.
std::optional<double> number_after(std::string_view text, std::string_view key, TrainingLog& log);
std::optional<int64_t> integer_after(std::string_view text, std::string_view key, TrainingLog& log);

// Seconds of the first "YYYY-MM-DD hh:mm:ss" (with ",mmm" or ".mmm", 'T' for the blank) in `text`; NaN without one.
double time_stamp(std::string_view text);

// Adds steps to a log, each index once.
class StepCollector {
 public:
  explicit StepCollector(TrainingLog& log) : log_(log) {}
  // True when the step is new.
  bool add(const LoggedStep& step);

 private:
  TrainingLog& log_;
  std::unordered_set<int64_t> seen_;
};

}  // namespace mbb::suites
