// Burns CPU time of the calling thread, by its own clock: waiting for a core does not count.
#include "profiler/base/clock.h"
#include "trainer/ops/cpu/functions.h"

namespace mbb::trainer {

Status cpu_delay(const CpuCall& call) {
  const int64_t end = thread_cpu_ns() + call.attrs<DelayAttrs>().ns;
  while (thread_cpu_ns() < end) {
  }
  return {};
}

}  // namespace mbb::trainer
