// The planted delay as a kernel that spins.
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/delay.h"

namespace mbb::trainer::cuda {

Status delay_op(const OpCall& call) {
  return spin(call.attrs<DelayAttrs>().ns, call.device.launch());
}

}  // namespace mbb::trainer::cuda
