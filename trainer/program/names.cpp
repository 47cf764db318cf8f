// Stable names of the program's enumerations, as printed and stored.
#include "trainer/program/program.h"

namespace mbb::trainer {

const char* name(Category category) {
  constexpr const char* kNames[kCategories] = {"weights",     "main_grads", "master", "moments",
                                               "activations", "gradients",  "logits", "communication",
                                               "workspace",   "input",      "step"};
  return kNames[static_cast<size_t>(category)];
}

const char* name(Scope scope) {
  constexpr const char* kNames[] = {"call", "micro_batch", "step", "persistent"};
  return kNames[static_cast<size_t>(scope)];
}

const char* name(Role role) {
  constexpr const char* kNames[] = {"", "fprop", "dgrad", "wgrad"};
  return kNames[static_cast<size_t>(role)];
}

const char* name(When when) {
  constexpr const char* kNames[] = {"", "first", "not-first", "last", "not-last"};
  return kNames[static_cast<size_t>(when)];
}

const char* name(Stream stream) {
  constexpr const char* kNames[kStreams] = {"compute",     "tp",          "cp",          "ep", "pp_recv_fwd",
                                            "pp_send_fwd", "pp_recv_bwd", "pp_send_bwd", "dp", "copy"};
  return kNames[static_cast<size_t>(stream)];
}

const char* name(SegmentKind kind) {
  constexpr const char* kNames[kSegmentKinds] = {"forward",   "backward", "grad_sync",
                                                 "optimizer", "wgrad",    "param_gather"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name(Space space) {
  return space == Space::kHost ? "host" : "device";
}

const char* name(BlockScale scale) {
  constexpr const char* kNames[] = {"f32", "power_of_two", "e8m0", "e4m3"};
  return kNames[static_cast<size_t>(scale)];
}

const char* name(MasterForm form) {
  constexpr const char* kNames[] = {"none", "state", "remainder", "stochastic", "scaled"};
  return kNames[static_cast<size_t>(form)];
}

}  // namespace mbb::trainer
