// The visible list of op kinds, and the cost rules that hold for every op.
#include "trainer/ops/table.h"

#include <fmt/core.h>

#include <array>

#include "trainer/ops/op_case.h"

namespace mbb::trainer {
namespace {

constexpr std::array kTable{
    &kGemm,
    &kGemmRows,
    &kGemmScaledRows,
    &kPackFp8,
    &kUnpackFp8,
    &kEmbedding,
    &kEmbeddingGrad,
    &kPositionEmbedding,
    &kPositionEmbeddingGrad,
    &kRmsNorm,
    &kRmsNormGrad,
    &kLayerNorm,
    &kLayerNormGrad,
    &kQkNorm,
    &kQkNormGrad,
    &kRope,
    &kAttention,
    &kAttentionGrad,
    &kCrossAttention,
    &kCrossAttentionGrad,
    &kBiasAdd,
    &kBiasAddGrad,
    &kActivation,
    &kActivationGrad,
    &kDropout,
    &kScaleBy,
    &kRouterGemm,
    &kLatentPack,
    &kLatentPackGrad,
    &kRouter,
    &kRouterSelect,
    &kRouterWeights,
    &kRouterWeightsGrad,
    &kRouterLoss,
    &kRouterLossGrad,
    &kLossSum,
    &kExpertCounts,
    &kExpertLoad,
    &kExpertBias,
    &kDispatchPlan,
    &kKeptExperts,
    &kSegmentCounts,
    &kReceivePlan,
    &kMergePieces,
    &kPermute,
    &kPermuteGrad,
    &kGroupedGemm,
    &kGroupedGemmDgrad,
    &kGroupedGemmWgrad,
    &kGroupedBias,
    &kGroupedBiasGrad,
    &kCombine,
    &kCombineGrad,
    &kUnpermute,
    &kWeightedSum,
    &kWeightedSumGrad,
    &kQuantizeTokens,
    &kDequantizeTokens,
    &kShiftTokens,
    &kSplitColumns,
    &kJoinColumns,
    &kColumnsToRows,
    &kRowsToColumns,
    &kReorderRuns,
    &kRingShift,
    &kMergeAttention,
    &kAddParts,
    &kSwiglu,
    &kSwigluGrad,
    &kAdd,
    &kFill,
    &kCast,
    &kCopy,
    &kAttentionScores,
    &kAttentionScoresGrad,
    &kScaleMask,
    &kScaleMaskGrad,
    &kSoftmax,
    &kSoftmaxGrad,
    &kMaskedSoftmax,
    &kMaskedSoftmaxGrad,
    &kAttentionContext,
    &kAttentionContextGrad,
    &kBiasActivation,
    &kBiasActivationGrad,
    &kBiasDropoutAdd,
    &kAmax,
    &kQuantize,
    &kRmsNormQuantize,
    &kSwigluQuantize,
    &kSwigluGradQuantize,
    &kGemmScaled,
    &kQuantizeDelayed,
    &kAmaxRecord,
    &kScaleUpdate,
    &kQuantizeBlocks,
    &kGemmBlocks,
    &kGroupedGemmQuantized,
    &kGroupedGemmQuantizedDgrad,
    &kGroupedGemmQuantizedWgrad,
    &kTransposeQuantized,
    &kBucketAmax,
    &kBucketQuantize,
    &kGemmAdd,
    &kGemmSwiglu,
    &kGemmSwigluGrad,
    &kGemmScaledAdd,
    &kRmsNormGradAdd,
    &kCrossEntropyFused,
    &kMaskVocabulary,
    &kCrossEntropyMax,
    &kCrossEntropySum,
    &kCrossEntropyLoss,
    &kCrossEntropyGrad,
    &kAllGather,
    &kReduceScatter,
    &kAllReduce,
    &kAllToAll,
    &kAllToAllRows,
    &kSend,
    &kRecv,
    &kReshardSend,
    &kReshardRecv,
    &kGradSquareSum,
    &kScalarSum,
    &kGradScale,
    &kAdamW,
    &kGroupIdentity,
    &kDelay,
};

}  // namespace

std::span<const OpKind* const> op_table() {
  return kTable;
}

const OpKind* find_op_kind(std::string_view name) {
  for (const OpKind* kind : kTable)
    if (kind->name == name) return kind;
  return nullptr;
}

double op_flops(const OpView& op) {
  return op.op.kind->flops ? op.op.kind->flops(op) : 0.0;
}

double op_bytes(const OpView& op) {
  if (op.op.kind->bytes) return op.op.kind->bytes(op);
  double bytes = 0;
  for (TensorId id : op.op.in) bytes += static_cast<double>(op.program.tensor(id).bytes());
  for (TensorId id : op.op.out) bytes += static_cast<double>(op.program.tensor(id).bytes());
  return bytes;
}

std::string cost_key(const OpView& op) {
  std::string key(op.op.kind->name);
  if (op.op.role != Role::kNone) key += fmt::format(":{}", name(op.op.role));
  for (TensorId id : op.op.in)
    key += fmt::format(":{}/{}", name(op.program.tensor(id).dtype), op.program.tensor(id).shape.str());
  for (size_t i = 0; i < op.op.out.size(); ++i)
    if (op.out(i).left_out) key += fmt::format(":without{}", i);
  return key;
}

std::vector<OpCase> op_cases() {
  std::vector<OpCase> all;
  for (const OpKind* kind : kTable)
    if (kind->cases) kind->cases(all);
  return all;
}

}  // namespace mbb::trainer
