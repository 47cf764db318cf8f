// The CUDA function of every op kind, found by the name its record gives.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/execute/cuda/device.h"
#include "trainer/ops/cuda/packs.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer::cuda {

// One operand: row-major elements of `tensor->dtype` in device memory.
struct Operand {
  void* data = nullptr;
  const Tensor* tensor = nullptr;

  int64_t elements() const { return tensor->shape.elements(); }
  const Shape& shape() const { return tensor->shape; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// What a CUDA function is called with: it enqueues on the device's stream and returns. An updated tensor has the same
// data in both lists.
struct OpCall {
  const Op& op;
  std::span<const Operand> in;
  std::span<const Operand> out;
  const MeshCoordinates& coordinates;
  int shard_index = 0;  // in the group of the op's bucket, for optimizer ops
  Device& device;
  int sm_target = 0;                   // SMs a GEMM may take; 0: all
  const RankContext* ranks = nullptr;  // mesh and communicators; null where a rank is alone
  uint32_t id = 0;                     // of the op at this place of the walk, from 1 on; 0: not in a walk

  template <typename T>
  const T& attrs() const {
    return std::get<T>(op.attrs);
  }
  // SMs of a product that leaves `margin` of them to a collective beside it.
  int product_sms(int margin) const { return sms_beside(device.sms(), margin, sm_target); }
};

using OpFunction = Status (*)(const OpCall& call);

// nullptr when this build has no function of that name.
OpFunction find_op_function(std::string_view cuda_name);

// Where the rows of a pack that context parallelism cuts lie is known on the device alone: refused.
inline Status whole_pack(const mbb::trainer::Positions& positions) {
  if (positions.whole()) return {};
  return fail(ErrorCode::kUnavailable, "packs that context parallelism cuts do not run on CUDA",
              "run on the CPU: --device cpu");
}

// Where the rows of a part of the sequence lie, an op's constant on the device; null for a whole one.
Result<const int32_t*> places_of(const OpCall& call, const mbb::trainer::Positions& positions, bool packed);
// The same on the host: of all rows that the positions name.
std::vector<int32_t> places_of(const mbb::trainer::Positions& positions);

// Norm kernels leave SMs to communication.
inline Launch norm_launch(const OpCall& call) {
  Launch launch = call.device.launch();
  launch.sms.margin = call.attrs<NormAttrs>().sm_margin;
  return launch;
}

// Where the sequence of each of `tokens` tokens begins, from the starts in operand `operand`: [tokens] in the scratch,
// behind the `beside` bytes that the op itself will ask for.
Result<const int32_t*> own_starts(const OpCall& call, size_t operand, int64_t tokens, int64_t beside);

// Where `seq` rows lie for what turns them: Rope's table and own. The starts of a pack are operand `operand`.
struct RotaryTables {
  const float* table = nullptr;
  const int32_t* own = nullptr;
};
Result<RotaryTables> rotary_tables(const OpCall& call, const Rotation& rotation, int turned, int64_t seq,
                                   size_t operand);

// What `queries` query and `keys` key rows of packs see of each other, likewise in the scratch. Their starts are
// operand `first`, or `first` and the next one where keys are packs `apart`.
Result<PackSpans> pack_spans(const OpCall& call, size_t first, int64_t queries, int64_t keys, bool apart,
                             int64_t beside);

// The i32 operand `at` of the `tokens` tokens a router's op has, of all TP ranks' tokens where these are a part; null
// where operands end before.
const int32_t* sequences_of(const OpCall& call, size_t at, int64_t tokens);

// Mean ms of `calls` runs after one, on the call's stream.
Result<double> timed(const OpCall& call, int calls, const std::function<Status()>& run);

// fp32 or bf16, as the kernels know them; anything else is an error that names the tensor.
Result<Element> element_of(const Tensor& tensor);

Status gemm_op(const OpCall& call);
// Chooses the algorithm of the op's problem for gemm_op (Device::tune). Overwrites the output.
Status tune_gemm_op(const OpCall& call, const TuneEffort& effort);
Status tune_gemm_rows_op(const OpCall& call, const TuneEffort& effort);
Status tune_gemm_scaled_rows_op(const OpCall& call, const TuneEffort& effort);
Status gemm_swiglu_op(const OpCall& call);
Status gemm_swiglu_grad_op(const OpCall& call);
// Chooses the product's algorithm, and where the rank is alone, by time whether one kernel does all: ranks must not
// differ in it. Overwrites the outputs.
Status tune_gemm_swiglu_op(const OpCall& call, const TuneEffort& effort, bool alone);
Status tune_gemm_swiglu_grad_op(const OpCall& call, const TuneEffort& effort, bool alone);
// Of an op that quantizes tensorwise: times it in one launch and in two and chooses, where both give the same codes.
// Overwrites the outputs. nullptr for any other op.
OpFunction tune_of_quantization(OpFunction function);
Status rmsnorm_op(const OpCall& call);
Status rmsnorm_grad_op(const OpCall& call);
Status embedding_op(const OpCall& call);
Status embedding_grad_op(const OpCall& call);
Status rope_op(const OpCall& call);
Status attention_op(const OpCall& call);
Status attention_grad_op(const OpCall& call);
// attention_backend = auto: times what can compute the op, and chooses the fastest for it. Overwrites the outputs.
Status tune_attention_op(const OpCall& call);
Status tune_attention_grad_op(const OpCall& call);
Status swiglu_op(const OpCall& call);
Status swiglu_grad_op(const OpCall& call);
Status add_op(const OpCall& call);
Status fill_zero_op(const OpCall& call);
Status cast_op(const OpCall& call);
Status copy_op(const OpCall& call);
Status mask_vocabulary_op(const OpCall& call);
Status cross_entropy_max_op(const OpCall& call);
Status cross_entropy_sum_op(const OpCall& call);
Status cross_entropy_loss_op(const OpCall& call);
Status cross_entropy_grad_op(const OpCall& call);
Status amax_op(const OpCall& call);
Status quantize_op(const OpCall& call);
Status rmsnorm_quantize_op(const OpCall& call);
Status swiglu_quantize_op(const OpCall& call);
Status swiglu_grad_quantize_op(const OpCall& call);
Status gemm_scaled_op(const OpCall& call);
Status gemm_scaled_rows_op(const OpCall& call);
Status quantize_blocks_op(const OpCall& call);
Status gemm_blocks_op(const OpCall& call);
Status grouped_gemm_quantized_op(const OpCall& call);
Status grouped_gemm_quantized_dgrad_op(const OpCall& call);
Status grouped_gemm_quantized_wgrad_op(const OpCall& call);
Status tune_gemm_scaled_op(const OpCall& call, const TuneEffort& effort);
// Where the library takes such blocks; nothing is chosen for the bf16 product that stands in elsewhere.
Status tune_gemm_blocks_op(const OpCall& call, const TuneEffort& effort);
Status rmsnorm_grad_add_op(const OpCall& call);
Status cross_entropy_fused_op(const OpCall& call);
Status layernorm_op(const OpCall& call);
Status layernorm_grad_op(const OpCall& call);
Status bias_add_op(const OpCall& call);
Status bias_add_grad_op(const OpCall& call);
Status position_embedding_op(const OpCall& call);
Status position_embedding_grad_op(const OpCall& call);
Status qk_norm_op(const OpCall& call);
Status qk_norm_grad_op(const OpCall& call);
Status activation_op(const OpCall& call);
Status activation_grad_op(const OpCall& call);
Status dropout_op(const OpCall& call);
Status scale_by_op(const OpCall& call);
Status latent_pack_op(const OpCall& call);
Status latent_pack_grad_op(const OpCall& call);
Status shift_tokens_op(const OpCall& call);
Status cross_attention_op(const OpCall& call);
Status cross_attention_grad_op(const OpCall& call);
Status router_gemm_op(const OpCall& call);
Status router_select_op(const OpCall& call);
Status router_weights_op(const OpCall& call);
Status router_weights_grad_op(const OpCall& call);
Status router_loss_op(const OpCall& call);
Status router_loss_grad_op(const OpCall& call);
Status expert_counts_op(const OpCall& call);
Status expert_load_op(const OpCall& call);
Status loss_sum_op(const OpCall& call);
Status expert_bias_op(const OpCall& call);
Status router_op(const OpCall& call);
Status unpermute_op(const OpCall& call);
Status weighted_sum_op(const OpCall& call);
Status weighted_sum_grad_op(const OpCall& call);
Status quantize_tokens_op(const OpCall& call);
Status dequantize_tokens_op(const OpCall& call);
Status segment_counts_op(const OpCall& call);
Status receive_plan_op(const OpCall& call);
Status merge_pieces_op(const OpCall& call);
Status dispatch_plan_op(const OpCall& call);
Status kept_experts_op(const OpCall& call);
Status permute_op(const OpCall& call);
Status permute_grad_op(const OpCall& call);
Status combine_op(const OpCall& call);
Status combine_grad_op(const OpCall& call);
Status grouped_gemm_op(const OpCall& call);
Status grouped_gemm_dgrad_op(const OpCall& call);
Status grouped_gemm_wgrad_op(const OpCall& call);
Status grouped_bias_op(const OpCall& call);
Status grouped_bias_grad_op(const OpCall& call);
Status group_identity_op(const OpCall& call);
Status bias_activation_op(const OpCall& call);
Status bias_activation_grad_op(const OpCall& call);
Status bias_dropout_add_op(const OpCall& call);
Status attention_scores_op(const OpCall& call);
Status attention_scores_grad_op(const OpCall& call);
Status scale_mask_op(const OpCall& call);
Status scale_mask_grad_op(const OpCall& call);
Status softmax_op(const OpCall& call);
Status softmax_grad_op(const OpCall& call);
Status masked_softmax_op(const OpCall& call);
Status masked_softmax_grad_op(const OpCall& call);
Status attention_context_op(const OpCall& call);
Status attention_context_grad_op(const OpCall& call);
Status quantize_delayed_op(const OpCall& call);
Status amax_record_op(const OpCall& call);
Status scale_update_op(const OpCall& call);
Status scalar_sum_op(const OpCall& call);
Status transpose_quantized_op(const OpCall& call);
Status bucket_amax_op(const OpCall& call);
Status bucket_quantize_op(const OpCall& call);
Status grad_square_sum_op(const OpCall& call);
Status grad_scale_op(const OpCall& call);
Status adamw_op(const OpCall& call);
Status delay_op(const OpCall& call);
Status all_gather_op(const OpCall& call);
Status reduce_scatter_op(const OpCall& call);
Status all_reduce_op(const OpCall& call);
Status all_to_all_op(const OpCall& call);
Status all_to_all_rows_op(const OpCall& call);
Status ring_shift_op(const OpCall& call);
Status send_op(const OpCall& call);
Status recv_op(const OpCall& call);
Status split_columns_op(const OpCall& call);
Status join_columns_op(const OpCall& call);
Status columns_to_rows_op(const OpCall& call);
Status rows_to_columns_op(const OpCall& call);
Status reorder_runs_op(const OpCall& call);
Status merge_attention_op(const OpCall& call);
Status add_parts_op(const OpCall& call);
Status gemm_rows_op(const OpCall& call);
Status pack_fp8_op(const OpCall& call);
Status unpack_fp8_op(const OpCall& call);

// Of each block of rows of a product, which follow one another on both sides: the rows where it begins in A and in the
// result.
Status each_row_block(const OpCall& call, const RowBlocks& part,
                      const std::function<Status(int64_t a_row, int64_t result_row)>& product);

// Whether the library has refused such a product of FP8 codes; then their values are multiplied in bf16.
bool is_refused(const OpCall& call, const GemmProblem& problem);
// Notes that it refuses when `status` says so; any other error comes back.
Status note_refusal(const OpCall& call, const GemmProblem& problem, const Status& status);

}  // namespace mbb::trainer::cuda
