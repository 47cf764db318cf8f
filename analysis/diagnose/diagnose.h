// What the step of a cell loses, and the settings that usually win it back: rules over the cell's own metrics and
// knobs.
//
// A rule says what is lost and which changes of knobs to try; what a change is worth is not known here: the caller
// projects each and drops those that do not resolve, do not fit or do not help.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::analysis {

struct KnobChange {
  std::string key;  // "overlap.tp_comm_overlap"
  std::string value;
};

// Changes that only make sense together.
struct Remedy {
  std::vector<KnobChange> changes;
  std::string text() const;  // "tp_comm_overlap=true", several with a blank between
};

struct Symptom {
  std::string what;  // "TP communication exposed: 14.2 ms of 196.0 ms (7.2 %), most in layers.*.attn.proj.fwd.scatter"
  double lost_ns = 0;            // of the step; 0 where the loss is no share of it (unused memory)
  std::vector<Remedy> remedies;  // the usual one first
  bool all_of_it = false;        // the remedy wins all of lost_ns, by closed form: nothing to project
};

// The cell's knobs in effect, by key, as text; "" for a key that the cell does not have.
using KnobText = std::function<std::string(std::string_view key)>;
KnobText knob_text_of(const baselines::Cell& cell);

// Largest loss first. `capacity_bytes`: memory a plan may take on the device; 0 where it is not known. Empty when
// the cell has no step time, or nothing passes a rule's threshold.
std::vector<Symptom> symptoms(const baselines::Cell& cell, const KnobText& knob, double capacity_bytes);

}  // namespace mbb::analysis
