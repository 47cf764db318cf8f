// Knobs of [debug]: what a run keeps for checking it, and what is looked into when something is wrong.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> debug_knobs() {
  return {
      {.key = "debug.record_gradients",
       .field = field(&Config::debug, &DebugConfig::record_gradients),
       .doc =
           "Keeps every weight's whole gradient of the first step in the bundle; cells of the same work are compared "
           "with one rank's.",
       .identity = false},
      {.key = "debug.nan_trace",
       .field = field(&Config::debug, &DebugConfig::nan_trace),
       .doc = "Runs a step whose loss or gradient norm is not finite once more, looking at every value, and names the "
              "first op that made one, the optimizer of the step before where it began with such weights; a good step "
              "costs nothing.",
       .identity = false},
      {.key = "debug.inject_fault",
       .field = field(&Config::debug, &DebugConfig::inject_fault),
       .doc = "Makes one rank fail before its second step, to see how a run ends: KIND@RANK, where KIND is exception, "
              "error, return (leaves early), hang, kill or, on a GPU, trap (a kernel that ends the device's context). "
              "Empty = none.",
       .identity = false},
      {.key = "debug.delay_us",
       .field = field(&Config::debug, &DebugConfig::delay_us),
       .range = at_least(0),
       .unit = "us",
       .doc = "A planted regression, to test that a gate finds one: an op `debug.delay` that computes nothing burns so "
              "much CPU time of each rank a step, or spins so long on its GPU. The step program shows it.",
       .identity = false,
       .projected = false},
  };
}

}  // namespace mbb::trainer
