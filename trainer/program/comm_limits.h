// SMs that collectives are held to (CommAttrs::num_sm), and whether all that may run at once fits a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// SMs of the largest device that this runs on: H100 and H200.
inline constexpr int kMostSms = 132;
// Least SMs of a product beside a collective: a cluster's.
inline constexpr int kLeastProductSms = 2;

// Those of a program's collectives that have limits; ascending, each once.
std::vector<CommLimit> comm_limits(const Program& program);

// A collective of `num_sm` SMs, kernels of other streams that take `side_sms` and a product run at once. `knob` is what
// set num_sm.
Status check_sms(const std::string& knob, int num_sm, int64_t side_sms, int device_sms);

}  // namespace mbb::trainer
