// Accepted baselines: what a series is held against. An append-only text file of JSON lines that a person can review in
// a change: who accepted what, why, on which evidence, until when. A line is never edited; a later one ends an earlier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::baselines {

struct Pin {
  std::string id;  // "b-20261128-0412-7d3a"
  // The series: as SeriesKey, with the cell's name and model for a person.
  std::string identity_hash;
  std::string class_hash;
  std::string metric;
  std::string cell;
  std::string model;
  std::string suite;  // that the cell is of: others have cells of that name; empty in lines older than this field
  std::string unit;
  // Launch medians of each accepted night, in `unit`.
  std::vector<std::vector<double>> nights;
  std::int64_t steps = 0;         // that a launch of them recorded; 0 in lines older than this field: not known
  std::vector<std::string> runs;  // evidence: the runs that the nights come from
  std::string build;              // the product that ran them as a person calls it: a commit, "image nemo:25.09"
  std::string epoch;              // of those runs; empty in lines older than epochs: any epoch of the class
  std::string product;            // hash of the product's facts of those runs; empty likewise
  std::string configuration;      // configuration_hash() of the cell; empty likewise
  std::string author;
  std::string reason;
  std::int64_t accepted_unix_ns = 0;
  std::int64_t expires_unix_ns = 0;  // 0: never
  std::string ended_by;              // who ended it and why, by a later line; empty while it stands
};

// Every pin with later lines applied, oldest first; none when there is no file. A line that is no pin is kBadFile with
// its number.
Result<std::vector<Pin>> read_pins(const std::string& file);

// Adds a line each, all or none. `author`, `reason` and at least one launch are needed, and a file that read_pins
// reads; where its last line lacks an end, it gets one first.
Status append_pins(const std::string& file, const std::vector<Pin>& pins);
inline Status append_pin(const std::string& file, const Pin& pin) {
  return append_pins(file, {pin});
}

// Adds a line that ends pin `id`, which must stand.
Status end_pin(const std::string& file, const std::string& id, const std::string& author, const std::string& reason);

// The newest standing and unexpired pin of a series in an epoch.
const Pin* find_pin(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& class_hash,
                    const std::string& epoch, const std::string& metric, std::int64_t now_unix_ns);

// The newest pin of the metric of an identity that nobody ended, in whatever environment it was accepted and even when
// it has expired: what a series without a baseline of its own may have had.
const Pin* find_any_pin(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& metric);

// Steps that a launch of an identity in an environment class must have, by the newest baseline that nobody ended; 0: no
// baseline says.
std::int64_t steps_due(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& class_hash);

// Whether the gate would take that pin of `pins` in its environment: not ended, not expired, and none newer stands.
bool stands(const std::vector<Pin>& pins, const Pin& pin, std::int64_t now_unix_ns);

// Whether its cell is the suite's, as far as the line says.
inline bool may_be_of(const Pin& pin, const std::string& suite) {
  return pin.suite.empty() || pin.suite == suite;
}

inline bool has_expired(const Pin& pin, std::int64_t now_unix_ns) {
  return pin.expires_unix_ns != 0 && pin.expires_unix_ns <= now_unix_ns;
}

inline constexpr std::int64_t kExpiryWarningNs = std::int64_t{14} * 24 * 3600 * 1'000'000'000;

}  // namespace mbb::baselines
