// The same ops for any shape and alignment: simple scalar kernels, right before fast.
//
// They serve shapes whose rows do not divide into 16-byte vectors. Argument structs are those of kernels.h.
#pragma once

#include <initializer_list>

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Whether rows of `cols` elements at these addresses can be read 8 at a time.
bool vectorizes(int64_t cols, std::initializer_list<const void*> addresses);

Status any_norm_forward(const NormForward& args, cudaStream_t stream);    // without residual
Status any_norm_backward(const NormBackward& args, cudaStream_t stream);  // needs no partials
Status any_swiglu_forward(Element element, RowShape shape, const void* gate_up, void* y, cudaStream_t stream);
Status any_swiglu_backward(Element element, RowShape shape, const void* gate_up, const void* dy, void* dgate_up,
                           cudaStream_t stream);
Status any_embedding_forward(const Embedding& args, const void* table, void* y, cudaStream_t stream);
// One block a vocabulary row walks all tokens: for small tables.
Status any_embedding_backward(const Embedding& args, const void* dy, float* dtable, cudaStream_t stream);

}  // namespace mbb::trainer::cuda
