// What a knob means for the numbers of a run: the one list by which runs may be compared.
#pragma once

#include <string_view>

namespace mbb::trainer {

enum class KnobEffect {
  kWork,      // what is trained, on what, by which rule: other values are another run
  kRounding,  // in which formats: other values are the same run in other rounding
  kHow,       // how the work is mapped, kept and run: other values give the same losses, up to the order of sums
};

// Of a knob's key, "memory.recompute_granularity".
KnobEffect effect_of(std::string_view key);

}  // namespace mbb::trainer
