// Products of a router with few experts, bound by the tokens' bytes: bf16
// tokens [tokens, hidden] and weights [experts, hidden], fp32 logits [tokens,
// experts] and gradients, sums in fp32 and in a fixed order.
#pragma once

#include <initializer_list>

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

struct RouterProduct {
  int64_t tokens = 0, hidden = 0, experts = 0;
};

// At most 8 experts, rows and addresses of 16-byte vectors.
bool router_product_takes(const RouterProduct& shape, std::initializer_list<const void*> addresses);

Status router_logits(const RouterProduct& shape, const void* x, const void* weights, float* logits,
                     const Launch& launch);
Status router_dgrad(const RouterProduct& shape, const float* dlogits, const void* weights, void* dx,
                    const Launch& launch);
int64_t router_wgrad_workspace(const RouterProduct& shape, const Launch& launch);
Status router_wgrad(const RouterProduct& shape, const float* dlogits, const void* x, float* dweights, bool accumulate,
                    void* workspace, const Launch& launch);

}  // namespace mbb::trainer::cuda
