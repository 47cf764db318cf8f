// Kernels of mixture-of-experts layers: router, dispatch plan, permutation, grouped bias and grouped matrix products
// whose row counts live on the device. Every sum runs in a fixed order. Layouts are those of trainer/ops/experts.cpp
// and router.cpp: segments i32 [2, experts] = first row and rows of each expert in a buffer of static size.
#pragma once

#include <initializer_list>

#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

struct RouterShape {
  int64_t tokens = 0;
  int64_t experts = 0;  // at most 4096
};
// Which tokens of the whole sequence a rank's are: row r of [s, b] is row first + r, whose place is at[row / batch]
// where there is a table.
struct TokenPlaces {
  int64_t first = 0, batch = 1;
  const int32_t* at = nullptr;
};
// Scores are worked in double, so that selections equal the oracle's. bias: fp32 [experts] or null. sequences: i32
// [tokens] or null, -1 where a token is padding, which goes to no expert (-1), is not counted and has no loss.
Status router_select(const RouterAttrs& attrs, RouterShape shape, const float* logits, const float* bias,
                     const int32_t* sequences, int32_t* experts, const Launch& launch, const TokenPlaces& places = {});
Status router_weights(const RouterAttrs& attrs, RouterShape shape, const float* logits, const int32_t* experts,
                      float* weights, const Launch& launch);
Status router_weights_grad(const RouterAttrs& attrs, RouterShape shape, const float* dweights, const float* logits,
                           const int32_t* experts, float* dlogits, const Launch& launch);
// counts: tokens of each expert, f32 [sets, experts]; token t belongs to set t mod sets, or to its sequence's where
// there are sets and sequences. workspace: router_loss_workspace() bytes, for both directions.
int64_t router_loss_workspace(RouterShape shape, int64_t sets);
Status router_loss(const MoeLossAttrs& attrs, RouterShape shape, int64_t sets, const float* logits, const float* counts,
                   const int32_t* sequences, float* losses, void* workspace, const Launch& launch);
// given: gradients of the two losses, or null for 1.
Status router_loss_grad(const MoeLossAttrs& attrs, RouterShape shape, int64_t sets, const float* logits,
                        const float* counts, const int32_t* sequences, const float* given, float* dlogits,
                        void* workspace, const Launch& launch);
Status expert_counts(const CountAttrs& attrs, int64_t tokens, int64_t top_k, const int32_t* experts,
                     const int32_t* sequences, float* counts, const Launch& launch);
Status expert_load(const float* counts, int64_t sets, int64_t experts, bool accumulate, float* load,
                   const Launch& launch);
// total f64 (+)= scale · losses.
Status loss_sum(const LossSumAttrs& attrs, const float* losses, int64_t count, double* total, const Launch& launch);
Status expert_bias(const float* load, int64_t experts, double rate, float* bias, const Launch& launch);

// experts: -1 where a pair was dropped before.
int64_t dispatch_workspace(const DispatchAttrs& attrs, int64_t pairs);
// Where a slot has too few rows for what a peer's experts get, pairs are dropped and alarm = {op, rows they need}.
struct Alarm {
  int32_t* flag = nullptr;
  int32_t op = 0;
};
Status dispatch_plan(const DispatchAttrs& attrs, int64_t pairs, const int32_t* experts, const float* weights,
                     int32_t* rows, int32_t* segments, void* workspace, const Alarm& alarm, const Launch& launch);

// kept[i] = experts[i], -1 where rows[i] is negative.
Status kept_experts(int64_t pairs, const int32_t* experts, const int32_t* rows, int32_t* kept, const Launch& launch);

// Buffer [buffer_rows, hidden]; rows [tokens, top_k], -1 where a pair was dropped, null: the buffer's rows are the
// pairs. Kernels that write a buffer clear its rows that no pair has.
struct Routed {
  Element element = Element::kBf16;
  int64_t tokens = 0, top_k = 1, hidden = 0, buffer_rows = 0;
  const int32_t* rows = nullptr;
};
Status permute(const Routed& args, const void* x, void* buffer, const Launch& launch);
Status permute_grad(const Routed& args, const void* dbuffer, void* dx, const Launch& launch);
Status combine(const Routed& args, const void* buffer, const float* weights, void* y, const Launch& launch);
Status combine_grad(const Routed& args, const void* dy, const void* buffer, const float* weights, void* dbuffer,
                    float* dweights, const Launch& launch);

Status grouped_bias(Element element, RowShape shape, const void* x, const void* bias, const int32_t* segments,
                    int64_t experts, float scale, void* y, const Launch& launch);
Status grouped_bias_grad(Element element, RowShape shape, const void* dy, const int32_t* segments, int64_t experts,
                         float scale, bool accumulate, float* dbias, const Launch& launch);

// Products of each expert's rows with its weight [experts, n, k]:
//   fprop y[rows, n] = x[rows, k] * w^T;  dgrad dx[rows, k] = dy[rows, n] * w;  wgrad dw[experts, n, k] (+)= dy^T * x.
// Rows of y and dx that no expert fills become zero, or stay where `keep` is set. bf16 with n and k multiples of 8 runs
// on tensor cores, Hopper's own where the device has them.
struct GroupedGemm {
  Element element = Element::kBf16;
  Element gradient = Element::kF32;  // of dw
  int64_t rows = 0, experts = 0, n = 0, k = 0;
  const int32_t* segments = nullptr;
  bool keep = false;      // rows that no expert fills are other products'
  bool portable = false;  // not Hopper's own instructions: to compare with
  // Device scalars that results are multiplied with, both or neither: the operands' inverse scales.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};
// Segments [2, experts] in which one expert alone has rows.
Status one_expert(const int32_t* segments, int64_t experts, int64_t only, int32_t* alone, const Launch& launch);
Status grouped_fprop(const GroupedGemm& args, const void* x, const void* w, void* y, const Launch& launch);
Status grouped_dgrad(const GroupedGemm& args, const void* dy, const void* w, void* dx, const Launch& launch);
// dw is `gradient`; bf16 where grouped_on_hopper().
Status grouped_wgrad(const GroupedGemm& args, const void* dy, const void* x, void* dw, bool accumulate,
                     const Launch& launch);
// Whether a product with these addresses runs on Hopper's own instructions.
bool grouped_on_hopper(const GroupedGemm& args, std::initializer_list<const void*> addresses);

}  // namespace mbb::trainer::cuda
