// The table of named model sizes: one row a size, from the models' public configurations.
#include "trainer/models/model.h"

namespace mbb::trainer {
namespace {

using Size = std::int64_t;

// What the sizes of a family share; a row gives the rest.
struct Dims {
  Size num_layers, hidden_size, ffn_hidden_size, num_attention_heads, num_query_groups, head_dim, vocab_size,
      max_positions;
};

ModelShape sized(std::string name, Family family, const Dims& dims) {
  ModelShape shape;
  shape.name = std::move(name);
  shape.family = family;
  shape.num_layers = dims.num_layers;
  shape.hidden_size = dims.hidden_size;
  shape.ffn_hidden_size = dims.ffn_hidden_size;
  shape.num_attention_heads = dims.num_attention_heads;
  shape.num_query_groups = dims.num_query_groups;
  shape.head_dim = dims.head_dim;
  shape.vocab_size = dims.vocab_size;
  shape.max_positions = dims.max_positions;
  return shape;
}

// GPT-2 and GPT-3: pre-LayerNorm, biases everywhere, learned positions, tied embeddings, feed-forward of 4 · hidden.
ModelShape gpt(std::string name, Size layers, Size hidden, Size heads, Size vocab = 51200, Size positions = 2048) {
  ModelShape shape = sized(std::move(name), Family::kGpt,
                           {layers, hidden, 4 * hidden, heads, heads, hidden / heads, vocab, positions});
  shape.norm = NormKind::kLayerNorm;
  shape.activation = Activation::kGeluTanh;
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.position = PositionKind::kLearned;
  shape.tied_embeddings = true;
  return shape;
}

ModelShape untied(ModelShape shape) {
  shape.tied_embeddings = false;
  return shape;
}

ModelShape llama(std::string name, const Dims& dims, double theta) {
  ModelShape shape = sized(std::move(name), Family::kLlama, dims);
  shape.rope.theta = theta;
  return shape;
}

// Llama 3.1: Llama 3 with the rotary frequencies stretched from 8,192 to 131,072 positions.
ModelShape llama31(std::string name, Dims dims) {
  dims.max_positions = 131072;
  ModelShape shape = llama(std::move(name), dims, 500000.0);
  shape.rope.scaling = RopeScaling::kLlama3;
  shape.rope.factor = 8.0;
  shape.rope.original_max_positions = 8192;
  return shape;
}

ModelShape nemotron4(std::string name, const Dims& dims, double init_std) {
  ModelShape shape = sized(std::move(name), Family::kNemotron, dims);
  shape.norm = NormKind::kLayerNorm1p;
  shape.activation = Activation::kSquaredRelu;
  shape.rope.fraction = 0.5;
  shape.init_std = init_std;
  return shape;
}

ModelShape qwen25(std::string name, const Dims& dims, bool tied, double eps) {
  ModelShape shape = sized(std::move(name), Family::kQwen2, dims);
  shape.norm_eps = eps;
  shape.qkv_bias = true;
  shape.rope.theta = 1e6;
  shape.tied_embeddings = tied;
  return shape;
}

ModelShape qwen3(std::string name, Size layers, Size hidden, Size ffn, Size heads, bool tied) {
  ModelShape shape = sized(std::move(name), Family::kQwen3, {layers, hidden, ffn, heads, 8, 128, 151936, 40960});
  shape.norm_eps = 1e-6;
  shape.qk_norm = true;
  shape.rope.theta = 1e6;
  shape.tied_embeddings = tied;
  return shape;
}

// Mixtral: eight experts, two chosen; the softmax runs over the chosen two.
ModelShape mixtral(std::string name, const Dims& dims) {
  ModelShape shape = sized(std::move(name), Family::kMixtral, dims);
  shape.rope.theta = 1e6;
  shape.moe.num_experts = 8;
  shape.moe.top_k = 2;
  shape.moe.expert_ffn_hidden_size = dims.ffn_hidden_size;
  shape.moe.order = RouterOrder::kTopKThenScore;
  shape.moe.aux_loss = AuxLoss::kBatch;
  shape.moe.aux_loss_coefficient = 0.02;
  return shape;
}

// Qwen3 MoE: softmax over all 128 experts, eight kept, their weights renormalized.
ModelShape qwen3_moe(std::string name, const Dims& dims, Size expert_ffn) {
  ModelShape shape = sized(std::move(name), Family::kQwen3Moe, dims);
  shape.norm_eps = 1e-6;
  shape.qk_norm = true;
  shape.rope.theta = 1e6;
  shape.moe.num_experts = 128;
  shape.moe.top_k = 8;
  shape.moe.expert_ffn_hidden_size = expert_ffn;
  shape.moe.normalize_top_k = true;
  shape.moe.aux_loss = AuxLoss::kBatch;
  shape.moe.aux_loss_coefficient = 1e-3;
  return shape;
}

// GPT-OSS: even layers see 128 tokens back, every head has a sink, every linear layer a bias, clamped SwiGLU.
ModelShape gpt_oss(std::string name, Size layers, Size experts) {
  ModelShape shape = sized(std::move(name), Family::kGptOss, {layers, 2880, 2880, 64, 8, 64, 201088, 131072});
  shape.activation = Activation::kClampedSwiglu;
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.rope.theta = 150000.0;
  shape.rope.scaling = RopeScaling::kYarn;
  shape.rope.factor = 32.0;
  shape.rope.original_max_positions = 4096;
  shape.rope.truncate = false;
  shape.sliding_window = 128;
  shape.sliding_pattern = {true, false};
  shape.attention_sinks = true;
  shape.moe.num_experts = experts;
  shape.moe.top_k = 4;
  shape.moe.expert_ffn_hidden_size = 2880;
  shape.moe.order = RouterOrder::kTopKThenScore;
  shape.moe.router_bias = true;
  return shape;
}

// DeepSeek-V3: MLA, sigmoid router over 8 groups of which 4 may win, bias correction, one shared expert, three dense
// layers first. Its one multi-token-prediction layer is asked for with mtp_num_layers = 1.
ModelShape deepseek_v3(std::string name) {
  ModelShape shape = sized(std::move(name), Family::kDeepSeekV3, {61, 7168, 18432, 128, 128, 192, 129280, 163840});
  shape.norm_eps = 1e-6;
  shape.init_std = 0.006;
  shape.rope.interleaved = true;
  shape.rope.scaling = RopeScaling::kYarn;
  shape.rope.factor = 40.0;
  shape.rope.original_max_positions = 4096;
  shape.rope.mscale = 1.0;
  shape.rope.mscale_all_dim = 1.0;
  shape.mla = {1536, 512, 128, 64, 128};
  shape.moe.num_experts = 256;
  shape.moe.top_k = 8;
  shape.moe.expert_ffn_hidden_size = 2048;
  shape.moe.shared_ffn_hidden_size = 2048;
  shape.moe.score = RouterScore::kSigmoid;
  shape.moe.normalize_top_k = true;
  shape.moe.routed_scaling = 2.5;
  shape.moe.num_groups = 8;
  shape.moe.top_k_groups = 4;
  shape.moe.bias_correction = true;
  shape.moe.first_dense_layers = 3;
  shape.moe.aux_loss = AuxLoss::kSequence;
  shape.moe.aux_loss_coefficient = 1e-4;
  return shape;
}

// T5 version 1.1: gated GELU, no biases, relative position bias, separate LM head.
ModelShape t5(std::string name, Size layers, Size hidden, Size ffn, Size heads) {
  ModelShape shape = sized(std::move(name), Family::kT5, {layers, hidden, ffn, heads, heads, 64, 32128, 512});
  shape.norm_eps = 1e-6;
  shape.activation = Activation::kGeglu;
  shape.position = PositionKind::kRelativeBias;
  shape.scale_attention = false;
  shape.num_encoder_layers = layers;
  return shape;
}

// Dims: layers, hidden, feed-forward, heads, key/value heads, head width, vocabulary, positions.
std::vector<ModelShape> make_table() {
  return {
      // Small enough to learn the shipped text in seconds on one core; divides by TP 2 and PP 2.
      llama("quickstart-llama", {2, 64, 176, 4, 2, 16, 256, 512}, 10000.0),

      gpt("gpt2-1.5b", 48, 1600, 25, 50257, 1024),
      gpt("gpt3-126m", 12, 768, 12),
      gpt("gpt3-5b", 24, 4096, 32),
      gpt("gpt3-20b", 44, 6144, 48),
      gpt("gpt3-40b", 48, 8192, 64),
      gpt("gpt3-175b", 96, 12288, 96),
      untied(gpt("gpt-462b", 112, 18432, 144, 131072, 4096)),
      gpt("mt-nlg-530b", 105, 20480, 128),

      llama("llama2-7b", {32, 4096, 11008, 32, 32, 128, 32000, 4096}, 10000.0),
      llama("llama2-13b", {40, 5120, 13824, 40, 40, 128, 32000, 4096}, 10000.0),
      llama("llama2-70b", {80, 8192, 28672, 64, 8, 128, 32000, 4096}, 10000.0),
      llama("llama3-8b", {32, 4096, 14336, 32, 8, 128, 128256, 8192}, 500000.0),
      llama("llama3-70b", {80, 8192, 28672, 64, 8, 128, 128256, 8192}, 500000.0),
      llama31("llama3.1-8b", {32, 4096, 14336, 32, 8, 128, 128256, 0}),
      llama31("llama3.1-70b", {80, 8192, 28672, 64, 8, 128, 128256, 0}),
      llama31("llama3.1-405b", {126, 16384, 53248, 128, 8, 128, 128256, 0}),
      // One rank's shapes of Llama 3 70B under TP 4, a quarter of its layers: a model of its own, for one GPU.
      llama("llama3-70b-tp4shard", {20, 8192, 7168, 16, 2, 128, 32064, 8192}, 500000.0),
      // A GPT-2 XL with Llama's layer: wide enough to train whole on one GPU, too narrow for large GEMMs.
      llama("gated-h1600", {48, 1600, 6400, 25, 25, 64, 50304, 1024}, 10000.0),

      nemotron4("nemotron4-15b", {32, 6144, 24576, 48, 8, 128, 256000, 4096}, 0.0134),
      nemotron4("nemotron4-340b", {96, 18432, 73728, 96, 8, 192, 256000, 4096}, 0.0063),

      qwen25("qwen2.5-0.5b", {24, 896, 4864, 14, 2, 64, 151936, 32768}, true, 1e-6),
      qwen25("qwen2.5-1.5b", {28, 1536, 8960, 12, 2, 128, 151936, 131072}, true, 1e-6),
      qwen25("qwen2.5-3b", {36, 2048, 11008, 16, 2, 128, 151936, 32768}, true, 1e-6),
      qwen25("qwen2.5-7b", {28, 3584, 18944, 28, 4, 128, 152064, 131072}, false, 1e-6),
      qwen25("qwen2.5-14b", {48, 5120, 13824, 40, 8, 128, 152064, 131072}, false, 1e-5),
      qwen25("qwen2.5-32b", {64, 5120, 27648, 40, 8, 128, 152064, 131072}, false, 1e-5),
      qwen25("qwen2.5-72b", {80, 8192, 29568, 64, 8, 128, 152064, 131072}, false, 1e-5),

      qwen3("qwen3-0.6b", 28, 1024, 3072, 16, true),
      qwen3("qwen3-1.7b", 28, 2048, 6144, 16, true),
      qwen3("qwen3-4b", 36, 2560, 9728, 32, true),
      qwen3("qwen3-8b", 36, 4096, 12288, 32, false),
      qwen3("qwen3-14b", 40, 5120, 17408, 40, false),
      qwen3("qwen3-32b", 64, 5120, 25600, 64, false),

      mixtral("mixtral-8x7b", {32, 4096, 14336, 32, 8, 128, 32000, 32768}),
      mixtral("mixtral-8x22b", {56, 6144, 16384, 48, 8, 128, 32768, 65536}),

      qwen3_moe("qwen3-30b-a3b", {48, 2048, 6144, 32, 4, 128, 151936, 40960}, 768),
      qwen3_moe("qwen3-235b-a22b", {94, 4096, 12288, 64, 4, 128, 151936, 40960}, 1536),

      gpt_oss("gpt-oss-20b", 24, 32),
      gpt_oss("gpt-oss-120b", 36, 128),

      deepseek_v3("deepseek-v3"),

      t5("t5-220m", 12, 768, 2048, 12),
      t5("t5-3b", 24, 2048, 5120, 32),
      t5("t5-11b", 24, 4096, 10240, 64),
  };
}

}  // namespace

std::span<const ModelShape> all_models() {
  static const std::vector<ModelShape> table = make_table();
  return table;
}

}  // namespace mbb::trainer
