// Text from files, made safe to draw and short enough to lay out; numbers as tables print them.
//
// Durations and sizes come from profiler/base/text.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mbb::viewer {

// Valid UTF-8 without control characters, at most `limit` bytes: what is invalid becomes U+FFFD, controls a middle
// dot, newlines and tabs a space; a longer text ends in an ellipsis.
std::string clean(std::string_view raw, std::size_t limit = 512);

// "1,638", "14.3 k", "942 P": for counts and rates.
std::string count_text(double value);
// "+1.7 %" with sign where `sign`, "-" where not finite.
std::string percent_text(double fraction, bool sign = false);
// A stored metric with its unit: ns, bytes, ratio and fraction become readable, others keep the unit beside the number.
std::string quantity_text(double value, std::string_view unit);
// Text of an instant, UTC: "2026-11-27 14:05".
std::string utc_text(std::int64_t unix_ns);

}  // namespace mbb::viewer
