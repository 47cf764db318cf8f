// The list of op cases that device_cases() gives.
#include "trainer/execute/cuda/device_cases_test.h"

#include <string>

#include "trainer/ops/table.h"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {
namespace {

CaseInput weight(Shape shape) {
  return {shape, DType::kF32, Fill::kNormal, 0, true};
}
CaseInput integers(Shape shape, int64_t bound, Fill fill = Fill::kInts) {
  return {shape, DType::kI32, fill, bound};
}
CaseInput record() {
  return {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true};
}
CaseInput codes(Shape shape, DType dtype = DType::kE4M3) {
  return {shape, dtype};
}
CaseInput positive(Shape shape) {
  return {shape, DType::kF32, Fill::kPositive};
}

// Shapes that the vector kernels, cuBLASLt's tensor cores and both attentions take.
void add_wide_cases(std::vector<OpCase>& all) {
  all.push_back({"gemm/wide", &kGemm, {{{64, 2, 192}}, weight({320, 192})}, GemmAttrs{false, true, false}});
  all.push_back({"rmsnorm/wide", &kRmsNorm, {{{33, 2, 1600}}, weight({1600})}, NormAttrs{}});
  all.push_back({"rmsnorm/wider", &kRmsNorm, {{{700, 1, 4096}}, weight({4096})}, NormAttrs{}});
  all.push_back({"swiglu/wide", &kSwiglu, {{{20, 2, 512}}}, NoAttrs{}});
  all.push_back({"add/wide", &kAdd, {{{40, 2, 129}}, {{40, 2, 129}}}, NoAttrs{}});
  all.push_back({"embedding/wide", &kEmbedding, {integers({50, 2}, 70), weight({70, 264})}, EmbeddingAttrs{}});
  all.push_back({"rope/wide", &kRope, {{{24, 2, 512}}}, RopeAttrs{4, 2, 64, {.theta = 500000.0}}});
  RopeAttrs partial{21, 2, 64};
  partial.rotation.dim = 32;
  partial.rotary_offset = 16;
  all.push_back({"rope/wide-partial", &kRope, {{{9, 2, 1600}}}, partial});
  RopeAttrs keys{4, 2, 64};
  keys.first_head = 4;
  keys.turned_heads = 2;
  all.push_back({"rope/wide-keys", &kRope, {{{9, 2, 512}}}, keys});
  all.push_back({"attention/d64", &kAttention, {{{96, 2, 512}}}, AttentionAttrs{4, 2, 64, true, 0.125F}});
  all.push_back({"attention/d128", &kAttention, {{{130, 1, 768}}}, AttentionAttrs{4, 1, 128, true, 0.0884F}});
  AttentionAttrs window{4, 2, 64, true, 0.125F};
  window.window = 50;
  all.push_back({"attention/d64-window", &kAttention, {{{130, 2, 512}}}, window});
  window.backend = AttentionBackend::kFlash;
  all.push_back({"attention/d64-window-flash", &kAttention, {{{330, 2, 512}}}, window});
  // Sequences that begin inside blocks of the flash kernel and skip some of them, and tokens behind the last one.
  const CaseInput starts = integers({9}, 600, Fill::kStarts);
  const RopeAttrs turned{4, 2, 64, {.theta = 500000.0, .packed = true}};
  all.push_back({"rope/wide-packed", &kRope, {{{610, 1, 512}}, starts}, turned});
  AttentionAttrs pack{4, 2, 64, true, 0.125F};
  pack.packed = true;
  all.push_back({"attention/d64-packed", &kAttention, {{{610, 1, 512}}, starts}, pack});
  pack.backend = AttentionBackend::kFlash;
  all.push_back({"attention/d64-packed-flash", &kAttention, {{{610, 1, 512}}, starts}, pack});
  pack.causal = false;
  all.push_back({"attention/d64-packed-both-ways-flash", &kAttention, {{{610, 1, 512}}, starts}, pack});
  pack.backend = AttentionBackend::kAuto;
  all.push_back({"attention/d64-packed-both-ways", &kAttention, {{{610, 1, 512}}, starts}, pack});
  all.push_back({"attention/d128-packed-grouped",
                 &kAttention,
                 {{{610, 1, 10 * 128}}, starts},
                 AttentionAttrs{.heads = 8, .kv_heads = 1, .head_dim = 128, .scale = 0.0884F, .packed = true}});
  AttentionAttrs windows{4, 1, 128, true, 0.0884F};
  windows.packed = true;
  windows.window = 50;
  all.push_back({"attention/d128-packed-window", &kAttention, {{{610, 1, 768}}, starts}, windows});
  AttentionAttrs latent{3, 3, 192, true, 0.0722F};
  latent.v_head_dim = 128;
  all.push_back({"attention/d192-values-128", &kAttention, {{{130, 2, 3 * (192 + 192 + 128)}}}, latent});
  latent.packed = true;
  all.push_back({"attention/d192-values-128-packed", &kAttention, {{{610, 1, 3 * (192 + 192 + 128)}}, starts}, latent});
  // Steps of a ring: a rank's own keys, the first part of those of the rank before, all keys of a source.
  AttentionAttrs step{4, 1, 128, true, 0.0884F};
  step.queries = step.keys = context_positions(520, 2, 1);
  all.push_back({"cross_attention/d128-own", &kCrossAttention, {{{260, 2, 512}}, {{260, 2, 256}}}, step});
  step.keys = context_positions(520, 2, 0).rows(0, 130);
  all.push_back({"cross_attention/d128-before", &kCrossAttention, {{{260, 2, 512}}, {{130, 2, 256}}}, step});
  const AttentionAttrs all_keys{4, 2, 64, false, 0.125F};
  all.push_back({"cross_attention/d64-all", &kCrossAttention, {{{130, 2, 256}}, {{330, 2, 256}}}, all_keys});
  AttentionAttrs biased{4, 4, 64, true, 1.0F};
  biased.relative_buckets = 32;
  biased.relative_max_distance = 128;
  all.push_back({"attention/d64-biased", &kAttention, {{{328, 2, 768}}, weight({4, 32})}, biased});
  biased.causal = false;
  all.push_back({"attention/d64-biased-both-ways", &kAttention, {{{333, 2, 768}}, weight({4, 32})}, biased});
  all.push_back({"attention/d96", &kAttention, {{{40, 1, 384}}}, AttentionAttrs{2, 1, 96, true, 0.1F}});
}

// Latent attention's packing that turns: whole vectors, and parts that are longer than a block has threads.
void add_latent_cases(std::vector<OpCase>& all) {
  const auto add = [&](const std::string& name, int64_t tokens, int64_t batch, const LatentAttrs& attrs,
                       const Rotation& rotation) {
    all.push_back(turned_packing_case(name, tokens, batch, attrs, rotation));
  };
  const LatentAttrs deepseek{7, 128, 64, 128};
  add("d192", 70, 1, deepseek, {.interleaved = true});
  add("d192-batch", 41, 3, deepseek, {.interleaved = true, .factor = 1.25});
  add("d192-halves", 70, 2, deepseek, {});
  add("d192-part", 33, 1, deepseek, {.dim = 24, .interleaved = true});
  add("d192-part-halves", 33, 1, deepseek, {.dim = 48});
  add("d192-packed", 310, 1, deepseek, {.interleaved = true, .packed = true});
  add("d192-chunks", 60, 2, deepseek, {.interleaved = true, .positions = context_positions(120, 2, 1)});
  add("turned-odd", 6, 2, {3, 5, 301, 3}, {.dim = 298, .interleaved = true});
  add("turned-odd-halves", 6, 2, {3, 5, 602, 3}, {.dim = 600});
  add("turned-odd-packed", 90, 1, {5, 3, 6, 2}, {.packed = true});
}

// Attention taken apart, rows of whole vectors.
void add_matrix_cases(std::vector<OpCase>& all) {
  AttentionAttrs a{2, 1, 8, true, 0.35F};
  all.push_back({"softmax/wide", &kSoftmax, {{{2, 2, 36, 36}}}, a});
  all.push_back({"softmax/warps", &kSoftmax, {{{1, 2, 300, 300}}}, a, false});
  all.push_back({"masked_softmax/wide", &kMaskedSoftmax, {{{2, 2, 36, 36}}}, a});
  a.window = 40;
  all.push_back({"scale_mask/wide-window", &kScaleMask, {{{1, 2, 300, 300}}}, a, false});
  a.packed = true;
  all.push_back({"masked_softmax/wide-packed-window",
                 &kMaskedSoftmax,
                 {{{1, 2, 300, 300}}, integers({9}, 280, Fill::kStarts)},
                 a,
                 false});
}

void add_block_cases(std::vector<OpCase>& all) {
  NormAttrs plus;
  plus.one_plus = true;
  all.push_back({"layernorm/wide", &kLayerNorm, {{{33, 2, 1600}}, weight({1600}), weight({1600})}, NormAttrs{}});
  // More rows a block than it has on their way.
  all.push_back({"layernorm/wider", &kLayerNorm, {{{700, 1, 6144}}, weight({6144}), weight({6144})}, NormAttrs{}});
  all.push_back({"layernorm/rows", &kLayerNorm, {{{5431, 4, 72}}, weight({72}), weight({72})}, NormAttrs{}});
  all.push_back({"layernorm/plus", &kLayerNorm, {{{9, 2, 264}}, weight({264}), weight({264})}, plus});
  all.push_back({"latent_pack/wide",
                 &kLatentPack,
                 {{{40, 2, 3 * 48}}, {{40, 2, 16}}, {{40, 2, 3 * 56}}},
                 LatentAttrs{3, 32, 16, 24}});
  all.push_back({"latent_pack/long-odd",
                 &kLatentPack,
                 {{{6, 2, 3 * 306}}, {{6, 2, 301}}, {{6, 2, 3 * 8}}},
                 LatentAttrs{3, 5, 301, 3}});
  all.push_back({"scale_by/wide", &kScaleBy, {{{70, 2, 264}}}, ScaleByAttrs{0.3, 0.3}});
  all.push_back({"scale_by/odd", &kScaleBy, {{{3, 1, 9}}}, ScaleByAttrs{0.3, 0.3}});
  // Rows longer than what a block has on its way, the last part not whole.
  const CaseInput maxima{{10}, DType::kF32, Fill::kPositive};
  all.push_back({"cross_entropy/max-wide", &kCrossEntropyMax, {{{5, 2, 16408}}}, NoAttrs{}, false});
  all.push_back({"cross_entropy/sum-wide",
                 &kCrossEntropySum,
                 {{{5, 2, 16408}}, maxima, integers({5, 2}, 16408)},
                 EmbeddingAttrs{},
                 false});
  all.push_back({"bias_add/wide", &kBiasAdd, {{{70, 2, 264}}, weight({264})}, BiasAttrs{}});
  all.push_back({"bias_add/long", &kBiasAdd, {{{701, 1, 72}}, weight({72})}, BiasAttrs{}});
  all.push_back({"qk_norm/wide", &kQkNorm, {{{40, 2, 512}}, weight({64}), weight({64})}, QkNormAttrs{4, 2, 64}});
  all.push_back({"qk_norm/d128", &kQkNorm, {{{70, 1, 1152}}, weight({128}), weight({128})}, QkNormAttrs{7, 1, 128}});
  all.push_back({"qk_norm/d256", &kQkNorm, {{{9, 1, 1280}}, weight({256}), weight({256})}, QkNormAttrs{3, 1, 256}});
  for (const Pointwise f :
       {Pointwise::kGelu, Pointwise::kGeluTanh, Pointwise::kSquaredRelu, Pointwise::kGeglu, Pointwise::kClampedSwiglu})
    all.push_back({std::string("activation/wide-") + name(f), &kActivation, {{{20, 2, 512}}}, ActivationAttrs{f}});
  all.push_back({"bias_activation/wide",
                 &kBiasActivation,
                 {{{20, 2, 512}}, weight({512})},
                 ActivationAttrs{Pointwise::kGelu},
                 false});
  all.push_back(
      {"dropout/long", &kDropout, {{{6, 2, 1032}}, integers({2}, 100), record()}, DropoutAttrs{0.3, 77, false}});
  all.push_back(
      {"dropout/pairs", &kDropout, {{{5, 6, 776}}, integers({6}, 100), record()}, DropoutAttrs{0.1, 7, false}});
  all.push_back(
      {"dropout/odd-batch", &kDropout, {{{6, 3, 1032}}, integers({3}, 100), record()}, DropoutAttrs{0.3, 77, false}});
  all.push_back({"bias_dropout_add/long",
                 &kBiasDropoutAdd,
                 {{{5, 2, 776}}, {{5, 2, 776}}, weight({776}), integers({2}, 100), record()},
                 DropoutAttrs{0.1, 77, false},
                 false});
  all.push_back({"dropout/odd", &kDropout, {{{6, 2, 13}}, integers({2}, 100), record()}, DropoutAttrs{0.3, 77, false}});
  AttentionAttrs a{4, 2, 64, true, 0.125F};
  a.window = 50;
  a.sinks = true;
  all.push_back({"attention/long-window-sinks", &kAttention, {{{150, 2, 512}}, weight({4})}, a});
  a.backend = AttentionBackend::kFlash;
  all.push_back({"attention/long-window-sinks-flash", &kAttention, {{{150, 2, 512}}, weight({4})}, a});
  a.backend = AttentionBackend::kAuto;
  a.window = 0;
  all.push_back({"attention/d64-sinks", &kAttention, {{{333, 2, 512}}, weight({4})}, a});
  a.packed = true;
  all.push_back({"attention/d64-packed-sinks",
                 &kAttention,
                 {{{610, 1, 512}}, weight({4}), integers({9}, 600, Fill::kStarts)},
                 a});
}

// More experts than rows: most have none, and their weights' gradients are zeros.
void add_empty_expert_cases(std::vector<OpCase>& all) {
  constexpr int64_t kRows = 16, kExperts = 24;
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive},
      segments{{2, kExperts}, DType::kI32, Fill::kSegments, kRows};
  all.push_back({"grouped_gemm/empty-experts",
                 &kGroupedGemm,
                 {{{kRows, 80}}, weight({kExperts, 64, 80}), segments},
                 GroupedGemmAttrs{kRows, false}});
  GroupedQuantizedAttrs a;
  a.grouped.useful_rows = kRows, a.local_experts = kExperts;
  const auto add = [&](const char* name, const OpKind& kind, Shape left, Shape right, DType out) {
    a.out = out;
    all.push_back({name, &kind, {{left, DType::kE4M3}, {right, DType::kE4M3}, scales, scales, segments}, a, false});
  };
  add("grouped_gemm_quantized/empty-experts", kGroupedGemmQuantized, {kRows, 80}, {kExperts, 64, 80}, DType::kBf16);
  add("grouped_gemm_quantized/empty-experts-dgrad", kGroupedGemmQuantizedDgrad, {kRows, 64}, {80, kExperts * 64},
      DType::kBf16);
  add("grouped_gemm_quantized/empty-experts-wgrad", kGroupedGemmQuantizedWgrad, {64, kRows}, {80, kRows}, DType::kF32);
}

// Several tiles and stages of the kernel that multiplies codes, with ends inside both; experts begin at any row.
void add_quantized_expert_cases(std::vector<OpCase>& all) {
  const auto codes = [](Shape shape, DType dtype = DType::kE4M3) { return CaseInput{shape, dtype}; };
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive};
  GroupedQuantizedAttrs a;
  a.local_experts = 4;
  for (const int64_t rows : {608, 2000}) {
    const std::string name = "grouped_gemm_quantized/" + std::to_string(rows);
    const CaseInput segments{{2, 4}, DType::kI32, Fill::kSegments, rows};
    a.grouped.useful_rows = rows;
    a.out = DType::kBf16;
    for (const bool fast : {false, true}) {
      a.fast = fast;
      all.push_back({name + (fast ? "-fprop-fast" : "-fprop"),
                     &kGroupedGemmQuantized,
                     {codes({rows, 848}), codes({4, 336, 848}), scales, scales, segments},
                     a,
                     false});
    }
    a.fast = false;
    for (const DType left : {DType::kE4M3, DType::kE5M2}) {
      const std::string of = left == DType::kE4M3 ? "-e4m3" : "-e5m2";
      a.out = DType::kBf16;
      all.push_back({name + "-dgrad" + of,
                     &kGroupedGemmQuantizedDgrad,
                     {codes({rows, 336}, left), codes({272, 4 * 336}), scales, scales, segments},
                     a,
                     false});
      a.out = DType::kF32;
      all.push_back({name + "-wgrad" + of,
                     &kGroupedGemmQuantizedWgrad,
                     {codes({336, rows}, left), codes({272, rows}), scales, scales, segments},
                     a,
                     false});
    }
  }
}

// The same in blocks of 128, every side's last one partial.
void add_block_expert_cases(std::vector<OpCase>& all) {
  const auto codes = [](Shape shape) { return CaseInput{shape, DType::kE4M3}; };
  const auto scales = [](Shape shape) { return CaseInput{shape, DType::kF32, Fill::kPositive}; };
  GroupedQuantizedAttrs a;
  a.local_experts = 4;
  a.block = 128;
  for (const int64_t rows : {608, 2000}) {
    const std::string name = "grouped_gemm_quantized/" + std::to_string(rows) + "-blocks";
    const CaseInput segments{{2, 4}, DType::kI32, Fill::kSegments, rows};
    const int64_t across = (rows + 127) / 128;
    a.grouped.useful_rows = rows;
    a.out = DType::kBf16;
    a.b_square = true;
    all.push_back({name + "-fprop",
                   &kGroupedGemmQuantized,
                   {codes({rows, 848}), codes({4, 336, 848}), scales({rows, 7}), scales({4 * 3, 7}), segments},
                   a,
                   false});
    all.push_back({name + "-dgrad",
                   &kGroupedGemmQuantizedDgrad,
                   {codes({rows, 336}), codes({272, 4 * 336}), scales({rows, 3}), scales({3, 4 * 3}), segments},
                   a,
                   false});
    a.out = DType::kF32;
    a.b_square = false;
    all.push_back({name + "-wgrad",
                   &kGroupedGemmQuantizedWgrad,
                   {codes({336, rows}), codes({272, rows}), scales({336, across}), scales({272, across}), segments},
                   a,
                   false});
  }
}

// Pieces of five sources put together, with rows nobody fills; and rows that move one by one.
void add_piece_cases(std::vector<OpCase>& all) {
  all.push_back({"merge_pieces/five-sources",
                 &kMergePieces,
                 {integers({2, 5 * 7}, 1900, Fill::kSegments)},
                 DispatchAttrs{.experts = 7, .rows = 2000},
                 false});
  const CaseInput single = integers({150, 1}, 150, Fill::kDistinct);
  all.push_back({"permute/one-by-one", &kPermute, {{{150, 4360}}, single}, DispatchAttrs{.rows = 160}});
  all.push_back({"unpermute/one-by-one", &kUnpermute, {{{160, 264}}, single}, DispatchAttrs{.rows = 160}});
}

void add_expert_cases(std::vector<OpCase>& all) {
  add_quantized_expert_cases(all);
  add_block_expert_cases(all);
  // Few experts have kernels of their own in bf16: several blocks of columns and runs of tokens, odd numbers of both.
  const GemmAttrs logits{false, true, false, true};
  all.push_back({"router_gemm/few", &kRouterGemm, {{{70, 2, 2312}}, weight({5, 2312})}, logits});
  all.push_back({"router_gemm/many", &kRouterGemm, {{{70, 2, 264}}, weight({24, 264})}, logits});
  all.push_back({"router_gemm/many-fours", &kRouterGemm, {{{70, 2, 264}}, weight({12, 264})}, logits});
  all.push_back({"router_gemm/many-odd", &kRouterGemm, {{{70, 2, 264}}, weight({10, 264})}, logits});
  const CaseInput weights{{600, 2}, DType::kF32, Fill::kPositive};
  all.push_back({"dispatch_plan/dropless",
                 &kDispatchPlan,
                 {integers({600, 2}, 7), weights},
                 DispatchAttrs{7, 1200, 0, false},
                 false});
  all.push_back({"dispatch_plan/dropped-before",
                 &kDispatchPlan,
                 {integers({600, 2}, 7, Fill::kDropped), weights},
                 DispatchAttrs{7, 1200, 0, false},
                 false});
  all.push_back({"dispatch_plan/capacity",
                 &kDispatchPlan,
                 {integers({600, 2}, 7), weights},
                 DispatchAttrs{7, 7 * 150, 150, false},
                 false});
  all.push_back({"dispatch_plan/position",
                 &kDispatchPlan,
                 {integers({600, 2}, 7), weights},
                 DispatchAttrs{7, 7 * 150, 150, true},
                 false});
  const CaseInput rows = integers({60, 2}, 120, Fill::kDistinct);
  // Rows that no pair has are cleared.
  const CaseInput some = integers({60, 2}, 150, Fill::kDistinct);
  all.push_back({"permute/padded", &kPermute, {{{60, 1, 264}}, some}, DispatchAttrs{.rows = 150}});
  all.push_back({"permute/padded-odd", &kPermute, {{{60, 1, 13}}, some}, DispatchAttrs{.rows = 150}});
  all.push_back({"combine/padded", &kCombine, {{{150, 264}}, some, {{60, 2}}}, DispatchAttrs{.rows = 150}});
  all.push_back({"permute/wide", &kPermute, {{{60, 1, 264}}, rows}, DispatchAttrs{4, 120, 0, false}});
  all.push_back({"combine/wide", &kCombine, {{{120, 264}}, rows, {{60, 2}}}, DispatchAttrs{4, 120, 0, false}});
  // More rows than a thread has on their way.
  const CaseInput eleven = integers({12, 11}, 132, Fill::kDistinct);
  all.push_back({"permute/eleven", &kPermute, {{{12, 1, 2312}}, eleven}, DispatchAttrs{4, 132, 0, false}});
  all.push_back({"combine/eleven", &kCombine, {{{132, 2312}}, eleven, {{12, 11}}}, DispatchAttrs{4, 132, 0, false}});
  // Columns of more than one round of a block.
  const CaseInput four = integers({12, 4}, 60, Fill::kDistinct);
  all.push_back({"permute/four", &kPermute, {{{12, 1, 4360}}, four}, DispatchAttrs{.rows = 60}});
  all.push_back({"combine/four", &kCombine, {{{60, 4360}}, four, {{12, 4}}}, DispatchAttrs{.rows = 60}});
  all.push_back({"unpermute/wide", &kUnpermute, {{{150, 4360}}, some}, DispatchAttrs{.rows = 150}});
  all.push_back({"weighted_sum/wide", &kWeightedSum, {{{120, 4360}}, {{60, 2}}}, NoAttrs{}});
  const GroupedBiasAttrs bias{.scale = 0.5F, .gradient = 0.5F};
  all.push_back({"grouped_bias/wide",
                 &kGroupedBias,
                 {{{700, 4360}}, weight({5, 4360}), integers({2, 5}, 700, Fill::kSegments)},
                 bias});
  all.push_back({"grouped_bias/forty-experts",
                 &kGroupedBias,
                 {{{300, 72}}, weight({40, 72}), integers({2, 40}, 300, Fill::kSegments)},
                 bias});
  all.push_back({"grouped_gemm/wide",
                 &kGroupedGemm,
                 {{{700, 136}}, weight({5, 200, 136}), integers({2, 5}, 700, Fill::kSegments)},
                 GroupedGemmAttrs{700, false}});
  all.push_back({"expert_counts/wide", &kExpertCounts, {integers({600, 2}, 7)}, CountAttrs{.experts = 7}, false});
  all.push_back({"expert_load/plain", &kExpertLoad, {{{2, 7}}}, CountAttrs{.experts = 7}, false});
  RouterAttrs router;
  router.top_k = 6;
  router.groups = 8;
  router.top_k_groups = 3;
  router.biased = router.sigmoid = true;
  all.push_back({"router_select/many", &kRouterSelect, {{{64, 2, 256}}, {{256}}}, router, false});
}

// Products of rows of codes: tiles of the library's, and an inner side that it does not take.
void add_row_cases(std::vector<OpCase>& all) {
  const CaseInput scales{{2}, DType::kF32, Fill::kPositive};
  const ScaledGemmAttrs fprop{false, true, DType::kBf16}, dgrad{false, false, DType::kBf16};
  for (const int64_t inner : {512, 72}) {
    const std::string of = inner == 512 ? "wide" : "odd";
    const CaseInput weight{{384, inner}, DType::kE4M3};
    RowBlocks part{.whole_rows = 1024, .blocks = 2, .rows = 128, .stride = 512, .first = 256};
    all.push_back({"gemm_scaled_rows/of-a-" + of,
                   &kGemmScaledRows,
                   {{{512, 2, inner}, DType::kE4M3}, weight, scales, scales},
                   ScaledRowsAttrs{fprop, 0, part},
                   false});
    part.of_result = true;
    all.push_back({"gemm_scaled_rows/of-result-" + of,
                   &kGemmScaledRows,
                   {{{128, 2, inner}, DType::kE5M2}, weight, scales, scales, {{512, 2, 384}, DType::kBf16}},
                   ScaledRowsAttrs{dgrad, 16, part},
                   false});
  }
}

// GEMMs of the formats that this device emulates, and whole tensors in them.
void add_narrow_cases(std::vector<OpCase>& all) {
  const auto codes = [](Shape shape, DType dtype) { return CaseInput{shape, dtype}; };
  const auto inverse = CaseInput{{1}, DType::kF32, Fill::kPositive};
  const auto fp4 = [&](Shape shape) { return codes(shape, DType::kE2M1); };
  GemmBlocksAttrs mx, nv;
  mx.block = 32, nv.block = 16;
  all.push_back({"gemm_blocks/mxfp8",
                 &kGemmBlocks,
                 {codes({48, 256}, DType::kE4M3), codes({144, 256}, DType::kE4M3), codes({48, 8}, DType::kE8M0),
                  codes({144, 8}, DType::kE8M0)},
                 mx,
                 false});
  const auto scales = [&](int64_t lines) { return CaseInput{{lines, 16}, DType::kE4M3, Fill::kPositive}; };
  all.push_back({"gemm_blocks/nvfp4",
                 &kGemmBlocks,
                 {fp4({48, 256}), fp4({144, 256}), scales(48), scales(144), inverse, inverse},
                 nv,
                 false});
  nv.accumulate = true, nv.out = DType::kF32;
  all.push_back({"gemm_blocks/nvfp4-accumulate",
                 &kGemmBlocks,
                 {fp4({48, 256}), fp4({144, 256}), scales(48), scales(144), inverse, inverse, {{48, 144}}},
                 nv,
                 false});
  // Past one tile on both sides, with the last tile and the last block partly filled.
  const std::vector<CaseInput> x{{{154, 2, 200}, DType::kBf16}};
  const auto quantize = [&](const char* name, DType to, BlockScale scale, int block, bool square) {
    all.push_back({name, &kQuantizeBlocks, x,
                   QuantizeBlocksAttrs{.to = to, .scale = scale, .block = block, .square = square}, false});
  };
  quantize("quantize_blocks/odd-tiles", DType::kE4M3, BlockScale::kPowerOfTwo, 128, false);
  quantize("quantize_blocks/odd-tiles-square", DType::kE4M3, BlockScale::kF32, 128, true);
  quantize("quantize_blocks/odd-tiles-fp4", DType::kE2M1, BlockScale::kE4M3, 16, false);
  quantize("quantize_blocks/odd-tiles-mx", DType::kE5M2, BlockScale::kE8M0, 32, false);
  const CaseInput pair{{2}, DType::kF32, Fill::kPositive}, segments{{2, 5}, DType::kI32, Fill::kSegments, 700};
  GroupedQuantizedAttrs grouped;
  grouped.grouped.useful_rows = 700, grouped.local_experts = 5;
  all.push_back({"grouped_gemm_quantized/wide",
                 &kGroupedGemmQuantized,
                 {codes({700, 136}, DType::kE4M3), codes({5, 200, 136}, DType::kE4M3), pair, pair, segments},
                 grouped,
                 false});
  grouped.block = 32;
  all.push_back({"grouped_gemm_quantized/mxfp8",
                 &kGroupedGemmQuantized,
                 {codes({700, 128}, DType::kE4M3), codes({5, 64, 128}, DType::kE4M3), codes({700, 4}, DType::kE8M0),
                  codes({320, 4}, DType::kE8M0), segments},
                 grouped,
                 false});
}

// Sides in sixteens and eights, which tiles in registers take: ten tiles down and three across, the last ones partial.
void add_block_tile_cases(std::vector<OpCase>& all) {
  const auto add = [&](const char* name, const QuantizeBlocksAttrs& attrs, Shape shape = {584, 2, 264}) {
    all.push_back({name, &kQuantizeBlocks, {{shape, DType::kBf16}}, attrs, false});
  };
  const auto form = [](DType to, BlockScale scale, int block, bool square, int64_t stack) {
    return QuantizeBlocksAttrs{.to = to, .scale = scale, .block = block, .square = square, .stack = stack};
  };
  add("quantize_blocks/tiles", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, false, 1));
  add("quantize_blocks/tiles-f32", form(DType::kE5M2, BlockScale::kF32, 128, false, 1));
  add("quantize_blocks/tiles-square", form(DType::kE4M3, BlockScale::kF32, 128, true, 1));
  add("quantize_blocks/tiles-mx", form(DType::kE4M3, BlockScale::kE8M0, 32, false, 1));
  // So many that nothing need stay in L2, then that their scales are gathered.
  add("quantize_blocks/tiles-leaving", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, false, 1), {8, 2, 262152});
  add("quantize_blocks/tiles-leaving-mx", form(DType::kE4M3, BlockScale::kE8M0, 32, false, 1), {262160, 1, 16});
  add("quantize_blocks/tiles-many", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, false, 1), {8, 2, 327688});
  add("quantize_blocks/tiles-many-mx", form(DType::kE4M3, BlockScale::kE8M0, 32, false, 1), {327696, 1, 16});
  add("quantize_blocks/tiles-stack", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, false, 2), {2, 208, 264});
  add("quantize_blocks/tiles-square-stack", form(DType::kE4M3, BlockScale::kF32, 128, true, 2), {2, 208, 264});
  // Tiles that are all whole, of NVFP4.
  QuantizeBlocksAttrs fp4 = form(DType::kE2M1, BlockScale::kE4M3, 16, false, 1);
  add("quantize_blocks/whole-fp4", fp4, {128, 2, 384});
  fp4.stack = 2;
  add("quantize_blocks/whole-fp4-stack", fp4, {2, 256, 384});
  fp4.square = true;
  add("quantize_blocks/whole-fp4-square-stack", fp4, {2, 256, 384});
  fp4.square = false, fp4.stack = 1;
  fp4.rotate = true, fp4.rotate_signs = 0x5a3c, fp4.stream = 77;
  add("quantize_blocks/whole-fp4-rotated", fp4, {128, 2, 384});
  fp4.stochastic = true;
  const auto drawn = [&](const char* name) {
    all.push_back(
        {name,
         &kQuantizeBlocks,
         {{{128, 2, 384}, DType::kBf16}, {{2}, DType::kI32, Fill::kInts, 9}, {{4}, DType::kF32, Fill::kPositive}},
         fp4,
         false});
  };
  drawn("quantize_blocks/whole-fp4-gradient");
  fp4.rotate = false;
  drawn("quantize_blocks/whole-fp4-rounded");
}

// Blocks of 128 over several tiles of the library's, partial at the end of every side.
void add_partial_cases(std::vector<OpCase>& all) {
  const auto fp8 = [](Shape shape) { return CaseInput{shape, DType::kE4M3}; };
  const auto f32 = [](Shape shape) { return CaseInput{shape, DType::kF32, Fill::kPositive}; };
  all.push_back({"gemm_blocks/partial-wide",
                 &kGemmBlocks,
                 {fp8({400, 1360}), fp8({720, 1360}), f32({400, 11}), f32({6, 11})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  all.push_back({"gemm_blocks/partial-wide-wgrad",
                 &kGemmBlocks,
                 {fp8({720, 400}), fp8({1360, 400}), f32({720, 4}), f32({1360, 4})},
                 GemmBlocksAttrs{.out = DType::kF32},
                 false});
  all.push_back({"gemm_blocks/twelve-rows",  // the library does not take them
                 &kGemmBlocks,
                 {fp8({12, 336}), fp8({64, 336}), f32({12, 3}), f32({1, 3})},
                 GemmBlocksAttrs{.b_square = true},
                 false});
  const CaseInput segments{{2, 5}, DType::kI32, Fill::kSegments, 700};
  GroupedQuantizedAttrs grouped;
  grouped.grouped.useful_rows = 700, grouped.local_experts = 5;
  grouped.block = 128, grouped.b_square = true;
  all.push_back({"grouped_gemm_quantized/partial-wide",
                 &kGroupedGemmQuantized,
                 {fp8({700, 336}), fp8({5, 208, 336}), f32({700, 3}), f32({10, 3}), segments},
                 grouped,
                 false});
}

// More than a block's span of elements; tensors that begin and end anywhere, and padding between them.
void add_optimizer_cases(std::vector<OpCase>& all) {
  using Form = mbb::trainer::MasterForm;
  constexpr int64_t kCount = 70000;
  AdamAttrs a;
  a.scaled = true;
  a.bucket.ranges = {{"w", 0, 40001, true, false}, {"b", 40016, 13, false, false}, {"e", 40032, 29968, true, false}};
  const auto add = [&](const char* name, Form master, DType first, DType second, std::vector<CaseInput> more) {
    a.master = master;
    std::vector<CaseInput> in{{{kCount}},
                              {{kCount}, DType::kBf16},
                              {{kCount}, first},
                              {{kCount}, second, Fill::kPositive},
                              {{4}, DType::kF32, Fill::kPositive},
                              {{3}, DType::kF32, Fill::kUniform}};
    in.insert(in.end(), more.begin(), more.end());
    all.push_back({name, &kAdamW, in, a, false});
  };
  const auto inverses = [](int64_t rows) { return CaseInput{{rows, 3}, DType::kF32, Fill::kPositive}; };
  add("adamw/fp8-moments-long", Form::kState, DType::kE4M3, DType::kE5M2, {{{kCount}}, inverses(2)});
  add("adamw/fp16-states-long", Form::kScaled, DType::kF16, DType::kF16, {{{kCount}, DType::kF16}, inverses(3)});
  a.scaled = false;
  add("adamw/all-bf16-long", Form::kStochastic, DType::kBf16, DType::kBf16, {});
}

// One token in rows of whole vectors and tiles: in attention the fused kernels' turn, elsewhere the libraries'.
void add_one_token_attention(std::vector<OpCase>& all) {
  const auto add = [&](const char* name, Shape qkv, AttentionAttrs attrs, std::vector<CaseInput> more = {}) {
    std::vector<CaseInput> in{{qkv}};
    in.insert(in.end(), more.begin(), more.end());
    for (const auto& [suffix, backend] :
         {std::pair{"", AttentionBackend::kAuto}, {"-flash", AttentionBackend::kFlash}}) {
      attrs.backend = backend;
      all.push_back({std::string("attention/one-token-") + name + suffix, &kAttention, in, attrs});
    }
  };
  AttentionAttrs d64{4, 2, 64, true, 0.125F};
  add("d64", {1, 1, 512}, d64);
  add("d64-batch", {1, 3, 512}, d64);
  add("d128", {1, 1, 768}, {4, 1, 128, true, 0.0884F});
  AttentionAttrs latent{3, 3, 192, true, 0.0722F};
  latent.v_head_dim = 128;
  add("d192-values-128", {1, 1, 3 * (192 + 192 + 128)}, latent);
  d64.causal = false;
  add("d64-both-ways", {1, 1, 512}, d64);
  AttentionAttrs biased{4, 4, 64, true, 1.0F};
  biased.relative_buckets = 32;
  add("d64-biased", {1, 1, 768}, biased, {weight({4, 32})});
  d64.causal = d64.sinks = true;
  d64.window = 50;
  add("d64-window-sinks", {1, 1, 512}, d64, {weight({4})});
  d64.window = 0;
  d64.sinks = false;
  d64.packed = true;
  add("d64-packed", {1, 1, 512}, d64, {integers({2}, 1, Fill::kStarts)});
  // A pack of many tokens whose sequences may be of one.
  add("d64-packed-among-many", {40, 1, 512}, d64, {integers({39}, 39, Fill::kStarts)});
  const AttentionAttrs apart{4, 1, 128, false, 0.0884F};
  all.push_back({"cross_attention/one-query", &kCrossAttention, {{{1, 2, 512}}, {{260, 2, 256}}}, apart});
  all.push_back({"cross_attention/one-key", &kCrossAttention, {{{260, 2, 512}}, {{1, 2, 256}}}, apart});
}

void add_one_token_cases(std::vector<OpCase>& all) {
  add_one_token_attention(all);
  const GemmAttrs linear{false, true, false}, logits{false, true, false, true};
  all.push_back({"gemm/one-token-wide", &kGemm, {{{1, 1, 4096}}, weight({1024, 4096})}, linear});
  all.push_back({"gemm_add/one-token-wide", &kGemmAdd, {{{1, 1, 256}}, {{512, 256}}, {{1, 1, 512}}}, linear, false});
  all.push_back({"gemm_swiglu/one-token-wide", &kGemmSwiglu, {{{1, 1, 256}}, {{512, 256}}}, linear, false});
  all.push_back({"gemm_swiglu_grad/one-token-wide",
                 &kGemmSwigluGrad,
                 {{{1, 1, 256}}, {{256, 320}}, {{1, 1, 640}}},
                 GemmAttrs{},
                 false});
  all.push_back({"router_gemm/one-token-few", &kRouterGemm, {{{1, 1, 2312}}, weight({5, 2312})}, logits});
  all.push_back({"router_gemm/one-token-many", &kRouterGemm, {{{1, 1, 264}}, weight({24, 264})}, logits});
  for (const int64_t cols : {264, 1600, 4096, 6144, 16384}) {
    const std::string name = "/one-token-" + std::to_string(cols);
    all.push_back({"rmsnorm" + name, &kRmsNorm, {{{1, 1, cols}}, weight({cols})}, NormAttrs{}});
    all.push_back({"layernorm" + name, &kLayerNorm, {{{1, 1, cols}}, weight({cols}), weight({cols})}, NormAttrs{}});
  }
  all.push_back(
      {"qk_norm/one-token-wide", &kQkNorm, {{{1, 1, 512}}, weight({64}), weight({64})}, QkNormAttrs{4, 2, 64}});
  all.push_back({"rope/one-token-wide", &kRope, {{{1, 1, 512}}}, RopeAttrs{4, 2, 64}});
  all.push_back(turned_packing_case("one-token-d192", 1, 1, {7, 128, 64, 128}, {.interleaved = true}));
  all.push_back({"embedding/one-token-wide", &kEmbedding, {integers({1, 1}, 70), weight({70, 264})}, EmbeddingAttrs{}});
  all.push_back({"swiglu/one-token-wide", &kSwiglu, {{{1, 1, 512}}}, NoAttrs{}});
  all.push_back({"bias_add/one-token-wide", &kBiasAdd, {{{1, 1, 264}}, weight({264})}, BiasAttrs{}});
  all.push_back({"dropout/one-token-long",
                 &kDropout,
                 {{{1, 1, 1032}}, integers({1}, 100), record()},
                 DropoutAttrs{0.3, 77, false}});
  all.push_back({"cross_entropy_fused/one-token-wide",
                 &kCrossEntropyFused,
                 {{{1, 1, 16408}, DType::kBf16}, integers({1, 1}, 16408)},
                 NoAttrs{},
                 false});
  all.push_back({"cross_entropy_fused/one-token-held",
                 &kCrossEntropyFused,
                 {{{1, 1, 131072}, DType::kBf16}, integers({1, 1}, 131072)},
                 NoAttrs{},
                 false});
  const CaseInput places = integers({1, 2}, 2, Fill::kDistinct);
  all.push_back({"permute/one-token-wide", &kPermute, {{{1, 1, 4360}}, places}, DispatchAttrs{.rows = 9}});
  all.push_back({"combine/one-token-wide", &kCombine, {{{2, 4360}}, places, {{1, 2}}}, DispatchAttrs{.rows = 2}});
  all.push_back({"weighted_sum/one-token-wide", &kWeightedSum, {{{2, 4360}}, {{1, 2}}}, NoAttrs{}});
  const CaseInput segments = integers({2, 5}, 1, Fill::kSegments);
  all.push_back(
      {"grouped_gemm/one-row-wide", &kGroupedGemm, {{{1, 136}}, weight({5, 200, 136}), segments}, GroupedGemmAttrs{1}});
  all.push_back({"grouped_bias/one-row-wide",
                 &kGroupedBias,
                 {{{1, 4360}}, weight({5, 4360}), segments},
                 GroupedBiasAttrs{.scale = 0.5F, .gradient = 0.5F}});
}

// One row of codes: the library wants more, so that their values are multiplied.
void add_one_row_of_codes(std::vector<OpCase>& all) {
  const CaseInput pair = positive({2}), segments = integers({2, 3}, 1, Fill::kSegments);
  const auto fp4 = [](Shape shape) { return codes(shape, DType::kE2M1); };
  all.push_back({"gemm_scaled/one-row-wide",
                 &kGemmScaled,
                 {codes({1, 1, 1024}), codes({512, 1024}), pair, pair},
                 ScaledGemmAttrs{false, true, DType::kBf16},
                 false});
  all.push_back({"gemm_blocks/one-row-mxfp8",
                 &kGemmBlocks,
                 {codes({1, 256}), codes({144, 256}), codes({1, 8}, DType::kE8M0), codes({144, 8}, DType::kE8M0)},
                 GemmBlocksAttrs{.block = 32},
                 false});
  const auto scales = [](int64_t lines) { return CaseInput{{lines, 16}, DType::kE4M3, Fill::kPositive}; };
  all.push_back({"gemm_blocks/one-row-nvfp4",
                 &kGemmBlocks,
                 {fp4({1, 256}), fp4({144, 256}), scales(1), scales(144), positive({1}), positive({1})},
                 GemmBlocksAttrs{.block = 16},
                 false});
  GroupedQuantizedAttrs a;
  a.local_experts = 3, a.grouped.useful_rows = 1;
  for (const int block : {0, 128}) {
    a.block = block, a.b_square = block > 0;
    const auto of = [&](Shape shape) { return block > 0 ? positive(shape) : positive({2}); };
    const std::string name =
        block > 0 ? "grouped_gemm_quantized/one-row-blocks" : "grouped_gemm_quantized/one-row-wide";
    all.push_back({name,
                   &kGroupedGemmQuantized,
                   {codes({1, 848}), codes({3, 336, 848}), of({1, 7}), of({3 * 3, 7}), segments},
                   a,
                   false});
    all.push_back({name + "-dgrad",
                   &kGroupedGemmQuantizedDgrad,
                   {codes({1, 336}), codes({272, 3 * 336}), of({1, 3}), of({3, 3 * 3}), segments},
                   a,
                   false});
    a.b_square = false;
    GroupedQuantizedAttrs wgrad = a;
    wgrad.out = DType::kF32;
    all.push_back({name + "-wgrad",
                   &kGroupedGemmQuantizedWgrad,
                   {codes({336, 1}), codes({272, 1}), of({336, 1}), of({272, 1}), segments},
                   wgrad,
                   false});
  }
}

}  // namespace

std::vector<OpCase> device_cases() {
  auto cases = op_cases();
  const auto one_token = one_token_cases();
  cases.insert(cases.end(), one_token.begin(), one_token.end());
  add_wide_cases(cases);
  add_block_cases(cases);
  add_matrix_cases(cases);
  add_latent_cases(cases);
  add_piece_cases(cases);
  add_expert_cases(cases);
  add_empty_expert_cases(cases);
  add_narrow_cases(cases);
  add_row_cases(cases);
  add_partial_cases(cases);
  add_block_tile_cases(cases);
  add_optimizer_cases(cases);
  add_one_token_cases(cases);
  add_one_row_of_codes(cases);
  return cases;
}

// FP8 tiles have 16 rows, and two E2M1 codes share a byte of a column's copy too.
std::vector<RefusedCase> refused_cases() {
  constexpr const char* kSixteen = "rows must be a multiple of 16";
  const CaseInput row{{1, 1, 64}, DType::kBf16}, wide{{1, 1, 128}, DType::kBf16};
  const auto of = [](const char* name, const OpKind& kind, std::vector<CaseInput> in, Attrs attrs) {
    return OpCase{name, &kind, std::move(in), std::move(attrs), false};
  };
  const QuantizeBlocksAttrs fp4{.to = DType::kE2M1, .scale = BlockScale::kE4M3, .block = 16};
  return {{of("quantize/one-token", kQuantize, {row}, QuantizeAttrs{}), kSixteen},
          {of("quantize_delayed/one-token", kQuantizeDelayed, {row, positive({1})}, QuantizeAttrs{}), kSixteen},
          {of("rmsnorm_quantize/one-token", kRmsNormQuantize, {row, {{64}, DType::kBf16}}, NormAttrs{}), kSixteen},
          {of("swiglu_quantize/one-token", kSwigluQuantize, {wide}, NoAttrs{}), kSixteen},
          {of("swiglu_grad_quantize/one-token", kSwigluGradQuantize, {row, wide}, NoAttrs{}), kSixteen},
          {of("quantize_blocks/one-token-fp4", kQuantizeBlocks, {row}, fp4), "an odd number of rows"}};
}

}  // namespace mbb::trainer::cuda
