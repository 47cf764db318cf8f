// The gradient of the first micro-batch into an embedding table that holds nothing yet.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// embedding_backward() that writes dtable: rows without tokens become zero. The workspace of both holds chains of
// tokens: embedding_workspace(tokens + vocab) bytes.
Status first_embedding_backward(const Embedding& args, const void* dy, void* dtable, void* workspace,
                                const Launch& launch);

}  // namespace mbb::trainer::cuda
