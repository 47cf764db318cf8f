// Reading and writing the small texts people meet: names with a typo, numbers with units, durations, sizes, counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mbb {

std::string_view trim(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);  // keeps empty parts; "" gives one ""
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string to_lower(std::string_view text);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// `text` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD, so that the result always parses.
std::string json_quote(std::string_view text);
// `text` for a terminal or an error line: control bytes and broken UTF-8 become \xNN, longer than `limit` is cut with
// "...".
std::string printable(std::string_view text, size_t limit = 120);
// How many terminal columns `text` takes when each code point takes one (no wide glyphs are printed by this program).
size_t display_width(std::string_view text);

// True when `text` matches `pattern`, where '*' stands for any run of characters and '?' for one.
bool glob_match(std::string_view pattern, std::string_view text);

// Edits (insert, delete, replace, swap of neighbours) that turn one name into the other; '-' and '_' are alike and case
// does not count.
size_t edit_distance(std::string_view a, std::string_view b);
// The name a person most likely meant, or nothing when no name is near (a third of its length, at least 1, at most 4).
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& names);

// Whole-text parsers: nothing when the text is not exactly one such value or overflows. No locale, no leading blanks.
std::optional<int64_t> parse_int(std::string_view text);    // "-12", "1_000_000"
std::optional<double> parse_double(std::string_view text);  // "3e-4", "inf" and "nan" are refused
std::optional<bool> parse_bool(std::string_view text);      // true false on off yes no 1 0
std::optional<int64_t> parse_duration_ns(
    std::string_view text);  // "250us", "1.5 s", "10m", "2h", "1d"; a unit is needed
std::optional<int64_t> parse_size_bytes(std::string_view text);  // "4096", "64KiB", "1.5 GiB", "10MB"

// Forms for a person. Three or four significant digits; a value that is not finite prints as "-".
std::string format_ns(double ns);                // "171.9 ms", "20.0 s", "4m05s", "3h12m", "2d04h"
std::string format_bytes(double bytes);          // binary: "71.6 GiB", "512 B"
std::string format_bytes_decimal(double bytes);  // decimal, as link and message sizes are told: "16.8 MB"
std::string format_count(double count,
                         std::string_view unit);  // "942 PF", "3.14 TF/s", "70.6 B" with unit "": "70.6 G"
std::string format_percent(double fraction, int decimals = 1);  // 0.041 -> "4.1 %"
// Shortest decimal that reads back as the same double: for values that are stored and replayed.
std::string format_exact(double value);

}  // namespace mbb
