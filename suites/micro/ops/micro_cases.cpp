// One line a configuration; a test counts the op kinds they hold.
#include "suites/micro/ops/micro_cases.h"

namespace mbb::suites {
namespace {

// A dense layer, one of experts and one that predicts a further token, with as many experts as a GPU holds.
MicroCase deepseek_slice(const std::string& recipe) {
  return {"deepseek-v3-16-experts/" + recipe,
          {"model=deepseek-v3", "num_layers=2", "moe_first_dense_layers=1", "num_experts=16", "moe_router_num_groups=4",
           "moe_router_group_topk=2", "mtp_num_layers=1", "vocab_size=32000", "seq_length=4096", "recipe=" + recipe,
           "use_precision_aware_optimizer=true"}};
}

}  // namespace

const std::vector<MicroCase>& micro_cases() {
  static const std::vector<MicroCase> cases{
      {"llama3-8b/bf16", {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=bf16"}},
      {"llama3-8b/fused",
       {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=bf16", "residual_fusion=true",
        "cross_entropy_loss_fusion=true", "swiglu_fusion=true"}},
      {"qwen2.5-1.5b/fused",
       {"model=qwen2.5-1.5b", "num_layers=1", "seq_length=1024", "mbs=16", "recipe=bf16", "residual_fusion=true",
        "cross_entropy_loss_fusion=true", "swiglu_fusion=true"}},
      {"llama3-8b/fp8_current",
       {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=fp8_current", "residual_fusion=true",
        "cross_entropy_loss_fusion=true"}},
      {"llama3-8b/fp8_delayed", {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=fp8_delayed"}},
      {"llama3-8b/fp8_param",
       {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=fp8_current", "fp8_param=true"}},
      {"llama3-8b/fp8_blockwise", {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=fp8_blockwise"}},
      {"llama3-8b/mxfp8", {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=mxfp8"}},
      {"llama3-8b/nvfp4", {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=nvfp4"}},
      {"llama3-70b/bf16",
       {"model=llama3-70b", "num_layers=1", "seq_length=8192", "recipe=bf16", "use_precision_aware_optimizer=true",
        "exp_avg_dtype=bf16", "exp_avg_sq_dtype=bf16"}},
      {"llama3-70b/fp8_current",
       {"model=llama3-70b", "num_layers=1", "seq_length=8192", "recipe=fp8_current",
        "use_precision_aware_optimizer=true", "exp_avg_dtype=bf16", "exp_avg_sq_dtype=bf16"}},
      {"llama3-8b/packed",
       {"model=llama3-8b", "num_layers=1", "seq_length=4096", "packed_sequence_size=8192",
        "packing.sequences=documents", "packing.max_sequences=16", "recipe=bf16"}},
      {"llama3-8b/fp8_moments",
       {"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=bf16", "use_precision_aware_optimizer=true",
        "exp_avg_dtype=fp8", "exp_avg_sq_dtype=fp8"}},
      {"gpt3-126m/bf16",
       {"model=gpt3-126m", "num_layers=1", "seq_length=2048", "mbs=16", "recipe=bf16", "hidden_dropout=0.1"}},
      {"gpt3-126m/padded",
       {"model=gpt3-126m", "num_layers=1", "seq_length=2048", "mbs=16", "recipe=bf16", "vocab_size=50257",
        "gradient_accumulation_fusion=false"}},
      {"gpt3-126m/bias-fused",
       {"model=gpt3-126m", "num_layers=1", "seq_length=2048", "mbs=16", "recipe=bf16", "hidden_dropout=0.1",
        "bias_activation_fusion=true", "bias_dropout_fusion=true"}},
      {"nemotron4-15b/bf16", {"model=nemotron4-15b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16"}},
      {"qwen3-30b-a3b/bf16", {"model=qwen3-30b-a3b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16"}},
      {"mixtral-8x7b/bf16", {"model=mixtral-8x7b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16"}},
      {"mixtral-8x7b/fp8_current",
       {"model=mixtral-8x7b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=fp8_current"}},
      {"mixtral-8x7b/unfused",
       {"model=mixtral-8x7b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16", "moe_permute_fusion=false"}},
      {"mixtral-8x7b/router",
       {"model=mixtral-8x7b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16", "moe_router_fusion=true"}},
      {"gpt-oss-20b/bf16", {"model=gpt-oss-20b", "num_layers=1", "seq_length=4096", "mbs=2", "recipe=bf16"}},
      deepseek_slice("bf16"),
      deepseek_slice("fp8_current"),
      deepseek_slice("fp8_blockwise"),
      {"unfused-attention/bf16",
       {"model=llama3-8b", "num_layers=1", "seq_length=2048", "recipe=bf16", "attention_backend=unfused",
        "masked_softmax_fusion=false"}},
      {"masked-softmax/bf16",
       {"model=llama3-8b", "num_layers=1", "seq_length=2048", "recipe=bf16", "attention_backend=unfused"}},
      {"offload/bf16",
       {"model=llama3-8b", "num_layers=2", "seq_length=2048", "vocab_size=32000", "recipe=bf16", "cpu_offloading=true",
        "cpu_offloading_num_layers=1"}},
      {"t5-220m/bf16",
       {"model=t5-220m", "num_layers=1", "encoder_num_layers=1", "seq_length=512", "mbs=16", "recipe=bf16"}},
  };
  return cases;
}

}  // namespace mbb::suites
