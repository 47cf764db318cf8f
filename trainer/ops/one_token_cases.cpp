// Op cases of one token: the least batch that there is.
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

CaseInput weight(Shape shape) {
  return {shape, DType::kF32, Fill::kNormal, 0, true};
}
CaseInput integers(Shape shape, int64_t bound, Fill fill = Fill::kInts) {
  return {shape, DType::kI32, fill, bound};
}
CaseInput positive(Shape shape) {
  return {shape, DType::kF32, Fill::kPositive};
}
CaseInput codes(Shape shape, DType dtype = DType::kE4M3) {
  return {shape, dtype};
}
CaseInput record() {
  return {{StepRecord::kFields}, DType::kF32, Fill::kZeros, 0, false, true};
}

class Cases {
 public:
  void add(const OpKind& kind, std::vector<CaseInput> in, Attrs attrs = NoAttrs{}, const char* suffix = "") {
    all.push_back({std::string(kind.name) + "/one-token" + suffix, &kind, std::move(in), std::move(attrs)});
  }
  // Of an op that has no gradient of its own.
  void add_plain(const OpKind& kind, std::vector<CaseInput> in, Attrs attrs = NoAttrs{}, const char* suffix = "") {
    add(kind, std::move(in), std::move(attrs), suffix);
    all.back().differentiable = false;
  }
  std::vector<OpCase> all;
};

void products(Cases& c) {
  const GemmAttrs linear{false, true, false};
  c.add(kGemm, {{{1, 1, 24}}, weight({40, 24})}, linear);
  c.add(kGemm, {{{1, 1, 13}}, weight({11, 13})}, linear, "-odd");
  c.add(kRouterGemm, {{{1, 1, 24}}, weight({5, 24})}, GemmAttrs{false, true, false, true});
  c.add_plain(kGemmAdd, {{{1, 1, 24}}, {{40, 24}}, {{1, 1, 40}}}, linear);
  c.add_plain(kGemmSwiglu, {{{1, 1, 24}}, {{40, 24}}}, linear);
  c.add_plain(kGemmSwigluGrad, {{{1, 1, 24}}, {{24, 20}}, {{1, 1, 40}}}, GemmAttrs{});
  RowBlocks row{.whole_rows = 1, .rows = 1, .stride = 1}, of_result = row;
  of_result.of_result = true;
  const GemmAttrs rows{false, true};
  c.add_plain(kGemmRows, {{{1, 1, 24}}, {{40, 24}}}, GemmRowsAttrs{rows, row}, "-of-a");
  c.add_plain(kGemmRows, {{{1, 1, 24}}, {{40, 24}}, {{1, 1, 40}}}, GemmRowsAttrs{rows, of_result}, "-of-result");
  const CaseInput pair = positive({2});
  const ScaledGemmAttrs scaled{false, true, DType::kBf16};
  c.add_plain(kGemmScaled, {codes({1, 1, 64}), codes({80, 64}), pair, pair}, scaled);
  c.add_plain(kGemmScaledRows, {codes({1, 1, 64}), codes({80, 64}), pair, pair}, ScaledRowsAttrs{scaled, 0, row},
              "-of-a");
  c.add_plain(kGemmScaledRows, {codes({1, 1, 64}), codes({80, 64}), pair, pair, {{1, 1, 80}, DType::kBf16}},
              ScaledRowsAttrs{scaled, 0, of_result}, "-of-result");
  c.add_plain(kGemmScaled, {codes({64, 1}, DType::kE5M2), codes({80, 1}), pair, pair, {{64, 80}}},
              ScaledGemmAttrs{true, false, DType::kF32}, "-wgrad");
  c.add_plain(kGemmScaledAdd, {codes({1, 1, 64}), codes({80, 64}), pair, pair, {{1, 1, 80}, DType::kBf16}}, scaled);
  c.add_plain(kGemmBlocks, {codes({1, 1, 256}), codes({144, 256}), positive({1, 2}), positive({2, 2})},
              GemmBlocksAttrs{.b_square = true});
  c.add_plain(kGemmBlocks, {codes({144, 1}), codes({256, 1}), positive({144, 1}), positive({256, 1})},
              GemmBlocksAttrs{.out = DType::kF32}, "-wgrad");
}

void layers(Cases& c) {
  c.add(kEmbedding, {integers({1, 1}, 10), weight({10, 8})}, EmbeddingAttrs{});
  c.add(kPositionEmbedding, {{{1, 1, 8}}, weight({7, 8})}, PositionAttrs{});
  c.add(kRmsNorm, {{{1, 1, 16}}, weight({16})}, NormAttrs{});
  c.add(kRmsNorm, {{{1, 1, 37}}, weight({37})}, NormAttrs{}, "-odd");
  c.add(kLayerNorm, {{{1, 1, 16}}, weight({16}), weight({16})}, NormAttrs{});
  c.add(kLayerNorm, {{{1, 1, 37}}, weight({37}), weight({37})}, NormAttrs{}, "-odd");
  c.add_plain(kRmsNormGradAdd, {{{1, 1, 16}}, {{1, 1, 16}}, {{16}}, positive({1}), {{1, 1, 16}}}, NormAttrs{});
  c.add(kQkNorm, {{{1, 1, 64}}, weight({8}), weight({8})}, QkNormAttrs{4, 2, 8});
  c.add(kRope, {{{1, 1, 64}}}, RopeAttrs{4, 2, 8});
  c.add(kBiasAdd, {{{1, 1, 13}}, weight({13})}, BiasAttrs{});
  c.add(kSwiglu, {{{1, 1, 14}}});
  for (const Pointwise f : {Pointwise::kGelu, Pointwise::kGeglu})
    c.add(kActivation, {{{1, 1, 14}, DType::kF32, Fill::kApart}}, ActivationAttrs{f},
          f == Pointwise::kGelu ? "-gelu" : "-geglu");
  const ActivationAttrs gelu{Pointwise::kGelu};
  c.add_plain(kBiasActivation, {{{1, 1, 14}}, {{14}}}, gelu);
  c.add_plain(kBiasActivationGrad, {{{1, 1, 14}}, {{1, 1, 14}}, {{14}}}, gelu);
  const CaseInput samples = integers({1}, 100);
  const DropoutAttrs half{0.5, 77, false};
  c.add(kDropout, {{{1, 1, 8}}, samples, record()}, half);
  c.add_plain(kBiasDropoutAdd, {{{1, 1, 8}}, {{1, 1, 8}}, {{8}}, samples, record()}, half);
  c.add(kScaleBy, {{{1, 1, 9}}}, ScaleByAttrs{0.25, 0.25});
  c.add(kAdd, {{{1, 1, 9}}, {{1, 1, 9}}});
  c.add_plain(kFill, {{{1, 1, 13}}});
  c.add_plain(kCopy, {{{1, 1, 9}}});
  for (const DType from : {DType::kF32, DType::kBf16})
    c.add_plain(kCast, {{{1, 1, 13}, from}}, NoAttrs{}, from == DType::kF32 ? "-f32" : "-bf16");
  c.add(kLatentPack, {{{1, 1, 18}}, {{1, 1, 2}}, {{1, 1, 21}}}, LatentAttrs{3, 4, 2, 3});
  c.all.push_back(turned_packing_case("one-token-turned", 1, 1, {3, 5, 6, 4}, {.interleaved = true}));
}

void attentions(Cases& c) {
  const AttentionAttrs base{4, 2, 8, true, 0.35F};
  const CaseInput qkv{{1, 1, 64}}, matrix{{1, 4, 1, 1}}, start = integers({3}, 1, Fill::kStarts);
  c.add(kAttention, {qkv}, base);
  AttentionAttrs a = base;
  a.window = 3;
  a.sinks = true;
  c.add(kAttention, {qkv, weight({4})}, a, "-window-sinks");
  a = base;
  a.relative_buckets = 8;
  a.relative_max_distance = 16;
  c.add(kAttention, {qkv, weight({4, 8})}, a, "-relative");
  a = base;
  a.dropout = 0.3;
  a.dropout_stream = 5;
  c.add(kAttention, {qkv, integers({1}, 100), record()}, a, "-dropout");
  c.add(kAttentionContext, {matrix, qkv, integers({1}, 100), record()}, a, "-dropout");
  a = base;
  a.packed = true;
  c.add(kAttention, {qkv, start}, a, "-packed");
  c.add(kMaskedSoftmax, {matrix, start}, a, "-packed");
  c.add(kMaskedSoftmax, {matrix}, base);
  a = base;
  a.causal = false;
  c.add(kCrossAttention, {{{1, 1, 32}}, {{1, 1, 32}}}, a);
  c.add(kCrossAttention, {{{1, 1, 32}}, {{7, 1, 32}}}, a, "-to-seven");
  c.add(kCrossAttention, {{{7, 1, 32}}, {{1, 1, 32}}}, a, "-of-seven");
  c.add(kAttentionScores, {qkv}, base);
  c.add_plain(kScaleMask, {matrix}, base);
  c.add_plain(kScaleMaskGrad, {matrix}, base);
  c.add(kSoftmax, {matrix}, base);
  c.add(kAttentionContext, {matrix, qkv}, base);
  const CaseInput out{{1, 1, 8}}, lse{{1, 2, 1}};
  c.add_plain(kMergeAttention, {out, lse, out, lse}, PartAttrs{1, {0, 0}});
  c.add_plain(kAddParts, {out, out}, PartAttrs{1, {0, 0}});
  const ColumnAttrs columns{{8, 4}, 2};
  c.add_plain(kSplitColumns, {{{1, 1, 9}}}, ColumnAttrs{{4, 2, 3}});
  c.add(kJoinColumns, {{{1, 1, 4}}, {{1, 1, 5}}}, ColumnAttrs{{4, 5}});
  c.add(kColumnsToRows, {{{1, 1, 12}}}, columns);
  c.add(kRowsToColumns, {{{2, 1, 6}}}, columns);
  c.add(kReorderRuns, {{{1, 1, 3}}}, RunAttrs{1, {0}});
  c.add_plain(kShiftTokens, {integers({1, 1}, 9)}, ShiftAttrs{1, 1});
}

void losses(Cases& c) {
  const CaseInput logits{{1, 1, 11}}, label = integers({1, 1}, 11), sums = positive({2, 1});
  c.add_plain(kCrossEntropyFused, {logits, label});
  c.add_plain(kMaskVocabulary, {logits}, VocabularyAttrs{7});
  c.add_plain(kCrossEntropyMax, {logits});
  c.add_plain(kCrossEntropySum, {logits, positive({1}), label}, EmbeddingAttrs{});
  c.add_plain(kCrossEntropyLoss, {logits, positive({1}), sums, label}, EmbeddingAttrs{});
  c.add_plain(kCrossEntropyLoss, {logits, positive({1}), sums, integers({1, 1}, 1, Fill::kDropped)}, EmbeddingAttrs{},
              "-dropped");
  c.add_plain(kCrossEntropyGrad, {logits, positive({1}), sums, label}, EmbeddingAttrs{});
}

void routers(Cases& c) {
  RouterAttrs a;
  a.top_k = 2;
  const CaseInput logits{{1, 1, 8}}, chosen = integers({1, 2}, 8);
  c.add_plain(kRouterSelect, {logits}, a);
  c.add(kRouterWeights, {logits, chosen}, a);
  a.normalize = a.biased = a.sigmoid = true;
  a.groups = 4;
  a.top_k_groups = 2;
  c.add_plain(kRouter, {logits, {{8}}}, a);
  c.add_plain(kRouterSelect, {logits, {{8}}}, a, "-grouped");
  c.add(kRouterLoss, {logits, {.shape = {1, 8}, .fill = Fill::kPositive, .fixed = true}},
        MoeLossAttrs{.aux = 0.5, .z = 0.1});
  c.add_plain(kExpertCounts, {chosen}, CountAttrs{.experts = 8});
  c.add_plain(kDispatchPlan, {chosen, positive({1, 2})}, DispatchAttrs{.experts = 8, .rows = 2});
  c.add_plain(kDispatchPlan, {chosen, positive({1, 2})}, DispatchAttrs{.experts = 8, .rows = 8, .capacity = 1},
              "-capacity");
  c.add_plain(kKeptExperts, {chosen, integers({1, 2}, 2, Fill::kDropped)});
}

void experts(Cases& c) {
  const CaseInput places = integers({1, 2}, 2, Fill::kDistinct), pair = positive({2});
  const CaseInput segments = integers({2, 3}, 1, Fill::kSegments);
  const DispatchAttrs two{.experts = 2, .rows = 2};
  c.add(kPermute, {{{1, 1, 5}}, places}, two);
  c.add(kUnpermute, {{{2, 5}}, places}, two);
  c.add(kCombine, {{{2, 5}}, places, {{1, 2}}}, two);
  c.add(kWeightedSum, {{{2, 5}}, {{1, 2}}});
  c.add_plain(kSegmentCounts, {segments});
  c.add_plain(kReceivePlan, {integers({3}, 2)}, ReceiveAttrs{.experts = 3, .member_rows = 3});
  c.add_plain(kMergePieces, {integers({2, 6}, 1, Fill::kSegments)}, DispatchAttrs{.experts = 3, .rows = 1});
  c.add(kGroupedGemm, {{{1, 7}}, weight({3, 5, 7}), segments}, GroupedGemmAttrs{.useful_rows = 1});
  c.add(kGroupedBias, {{{1, 7}}, weight({3, 7}), segments}, GroupedBiasAttrs{});
  GroupedQuantizedAttrs a;
  a.local_experts = 3, a.grouped.useful_rows = 1;
  c.add_plain(kGroupedGemmQuantized, {codes({1, 48}), codes({3, 16, 48}), pair, pair, segments}, a);
  c.add_plain(kGroupedGemmQuantizedDgrad, {codes({1, 16}), codes({48, 48}), pair, pair, segments}, a);
  a.out = DType::kF32;
  c.add_plain(kGroupedGemmQuantizedWgrad, {codes({16, 1}), codes({48, 1}), pair, pair, segments}, a);
}

void quantizations(Cases& c) {
  const CaseInput row{{1, 1, 144}, DType::kBf16};
  const auto blocks = [](BlockScale scale, int block, bool square) {
    return QuantizeBlocksAttrs{.scale = scale, .block = block, .square = square};
  };
  c.add_plain(kQuantizeBlocks, {row}, blocks(BlockScale::kPowerOfTwo, 128, false));
  c.add_plain(kQuantizeBlocks, {row}, blocks(BlockScale::kF32, 128, true), "-square");
  c.add_plain(kQuantizeBlocks, {row}, blocks(BlockScale::kE8M0, 32, false), "-mx");
  c.add_plain(kQuantizeTokens, {{{1, 200}}}, QuantizeAttrs{});
  c.add_plain(kDequantizeTokens, {codes({1, 200}), positive({1, 2})}, QuantizeAttrs{DType::kBf16});
  c.add_plain(kAmax, {row});
  c.add_plain(kTransposeQuantized, {codes({1, 40})});
  c.add_plain(kPackFp8, {{{1, 1, 8}}});
  c.add_plain(kUnpackFp8, {{{12}, DType::kE4M3, Fill::kPositive}}, PackAttrs{Shape{1, 1, 8}, DType::kBf16});
}

}  // namespace

std::vector<OpCase> one_token_cases() {
  Cases c;
  products(c);
  layers(c);
  attentions(c);
  losses(c);
  routers(c);
  experts(c);
  quantizations(c);
  return std::move(c.all);
}

}  // namespace mbb::trainer
