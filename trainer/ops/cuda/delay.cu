// Spins on the device's nanosecond clock, whose grain is about a microsecond.
#include "trainer/ops/cuda/delay.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

__device__ unsigned long long device_ns() {
  unsigned long long ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void spin_kernel(unsigned long long ns) {
  const unsigned long long begin = device_ns();
  while (device_ns() - begin < ns) {
  }
}

__global__ void trap_kernel() {
  asm volatile("trap;");
}

}  // namespace

Status spin(int64_t ns, const Launch& launch) {
  spin_kernel<<<1, 1, 0, launch.stream>>>(static_cast<unsigned long long>(ns));
  return launched("spin");
}

Status trap(const Launch& launch) {
  trap_kernel<<<1, 1, 0, launch.stream>>>();
  return launched("trap");
}

}  // namespace mbb::trainer::cuda
