// SMs that norm kernels leave to communication beside them.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// Sets NormAttrs::sm_margin of every norm, which its launch subtracts from the device's SMs.
void leave_sms_beside_norms(Program& program, int forward_sms, int backward_sms);

}  // namespace mbb::trainer
