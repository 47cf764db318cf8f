// Fixed work on the device: when its time changes, the device did (clocks, heat, memory), not the product.
#pragma once

#include "profiler/base/error.h"
#include "profiler/host/cuda_table.h"

namespace mbb::trainer::cuda {

// Two kernels on a stream of their own, by events, after 30 ms of the same work: a chain of dependent multiplications
// on every SM, which draws little power, and a copy of 128 MiB. The best of either fits into one time slice, of which
// another process takes nothing; so the chain is timed in queues of 27 ms too, which wait for whoever shares the GPU.
// Takes about 160 ms and 256 MiB, given back before it returns. The calling thread's device becomes `device`.
Result<profiler::CudaCanary> canary(int device);

}  // namespace mbb::trainer::cuda
