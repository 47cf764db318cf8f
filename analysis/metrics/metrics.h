// Every metric of the product, declared once: id as stored, title as printed, unit, direction, definition, convention.
// Tables, the store, the gate and `mbbench help TERM` read this array; a test iterates it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mbb::analysis {

enum class Better { kLower, kHigher, kNeither };
const char* name(Better better);  // "lower", "higher", "neither"

// How a value is written for a person.
enum class MetricForm { kDuration, kRate, kTeraflops, kPercent, kBytes, kPlain };

struct MetricInfo {
  const char* id;     // stored name
  const char* title;  // column header
  const char* unit;   // of the stored value: "ns", "tokens/s", "TFLOP/s", "%", "bytes", "days", ""
  Better better;
  MetricForm form;
  const char* definition;  // one or two sentences, with the formula
  const char* convention;  // what it counts and what it does not; "" when the definition says all
};

std::span<const MetricInfo> metrics();
const MetricInfo* find_metric(std::string_view id);

// What `mbbench help TERM` prints: the entries whose id or title matches (dashes, underscores, blanks and case alike),
// else those that contain the words. Empty when nothing does.
std::vector<const MetricInfo*> lookup_metrics(std::string_view term);
std::string describe(const MetricInfo& metric);  // several lines for a person

// "171.9 ms", "10682", "41.0 %", "71.6 GiB"; "-" when the value is not finite.
std::string format_value(const MetricInfo& metric, double value);
// Half width of an interval in the same form: "±0.8 ms"; "" without an interval.
std::string format_half_width(const MetricInfo& metric, double low, double high);

}  // namespace mbb::analysis
