// A dense layer's product and SwiGLU in one kernel, on Hopper's tensor cores in bf16: the gate is applied, and its
// gradient taken, before results leave the registers. Same roundings as the product and the activation one after the
// other.
#pragma once

#include <initializer_list>

#include "trainer/ops/cuda/grouped_tiles.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Whether this device has the kernels and takes these addresses: hidden and ffn multiples of 8, 16-byte aligned.
bool gated_on_hopper(const GatedGemm& shape, std::initializer_list<const void*> addresses);

// gate_up[tokens, 2 ffn] = x[tokens, hidden] * w[2 ffn, hidden]^T, gates first; y[tokens, ffn] = silu(gate) * up.
Status gated_forward(const GatedGemm& shape, const void* x, const void* w, void* gate_up, void* y,
                     const Launch& launch);

// dy[tokens, hidden] * w[hidden, ffn] is the gradient of silu(gate) * up; dgate_up[tokens, 2 ffn] that of both.
Status gated_backward(const GatedGemm& shape, const void* dy, const void* w, const void* gate_up, void* dgate_up,
                      const Launch& launch);

}  // namespace mbb::trainer::cuda
