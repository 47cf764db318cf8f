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
      {.key = "host.cpu_binding",
       .field = field(&Config::host, &HostConfig::cpu_binding),
       .doc = "CPUs of the rank threads: none, local (those near the rank's GPU; on the CPU a part each), or a list as "
              "numactl takes it (0-7,16). What is in force is read back and stored."},
      {.key = "host.vboost",
       .field = field(&Config::host, &HostConfig::vboost),
       .range = within(-1, 16),
       .doc =
           "The driver's video boost slider during the cell; -1 = as found. Changing it needs --allow-clock-changes, "
           "and the old value returns whatever ends the run."},
  };
}

}  // namespace mbb::trainer
