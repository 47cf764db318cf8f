// Products of a router, bound by the tokens' bytes: bf16 tokens [tokens, hidden] and weights [experts, hidden], fp32
// logits [tokens, experts] and gradients, sums in fp32 and in a fixed order.
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

// Of more experts the library makes the products, in bf16: a gradient of a logit is the sum of three bf16 parts (high,
// middle, low: 24 bits), each [tokens, padded_experts] with zeros where no expert is.
int64_t padded_experts(const RouterProduct& shape);  // a multiple of 8
// Experts in fours, rows and addresses of 16-byte vectors.
bool router_parts_take(const RouterProduct& shape, std::initializer_list<const void*> addresses);
// parts: bf16 [tokens, 3, padded_experts].
Status router_split_gradients(const RouterProduct& shape, const float* dlogits, void* parts, const Launch& launch);
// stack: the weights three times, bf16 [3, padded_experts, hidden].
Status router_stack_weights(const RouterProduct& shape, const void* weights, void* stack, const Launch& launch);
// dweights (+)= the sum of parts f32 [3, padded_experts, hidden], low ones first.
Status router_sum_parts(const RouterProduct& shape, const float* parts, float* dweights, bool accumulate,
                        const Launch& launch);

}  // namespace mbb::trainer::cuda
