// Knobs of [host]: where the ranks run.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> host_knobs() {
  return {
      {.key = "host.device",
       .field = field(&Config::host, &HostConfig::device),
       .choices = {choice("cpu", Device::kCpu, "ranks are threads; the oracle"),
                   choice("cuda", Device::kCuda, "one GPU a rank")},
       .doc = "What computes the step."},
  };
}

}  // namespace mbb::trainer
