// All op kinds: one record each, defined in the file of its family, listed in op_table().
#pragma once

#include <span>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

extern const OpKind kGemm;
extern const OpKind kGemmRows, kGemmScaledRows, kPackFp8, kUnpackFp8;
extern const OpKind kEmbedding, kEmbeddingGrad;
extern const OpKind kPositionEmbedding, kPositionEmbeddingGrad;
extern const OpKind kRmsNorm, kRmsNormGrad;
extern const OpKind kLayerNorm, kLayerNormGrad;
extern const OpKind kQkNorm, kQkNormGrad;
extern const OpKind kRope;
extern const OpKind kAttention, kAttentionGrad;
extern const OpKind kCrossAttention, kCrossAttentionGrad;
extern const OpKind kBiasAdd, kBiasAddGrad;
extern const OpKind kActivation, kActivationGrad;
extern const OpKind kDropout, kScaleBy;
extern const OpKind kLatentPack, kLatentPackGrad;
extern const OpKind kRouterGemm, kRouter, kRouterSelect, kRouterWeights, kRouterWeightsGrad, kRouterLoss,
    kRouterLossGrad;
extern const OpKind kLossSum, kExpertCounts, kExpertLoad, kExpertBias;
extern const OpKind kDispatchPlan, kKeptExperts, kSegmentCounts, kReceivePlan, kMergePieces, kPermute, kPermuteGrad,
    kCombine, kCombineGrad;
extern const OpKind kUnpermute, kWeightedSum, kWeightedSumGrad, kQuantizeTokens, kDequantizeTokens;
extern const OpKind kGroupedGemm, kGroupedGemmDgrad, kGroupedGemmWgrad, kGroupedBias, kGroupedBiasGrad;
extern const OpKind kShiftTokens;
extern const OpKind kSplitColumns, kJoinColumns, kColumnsToRows, kRowsToColumns, kReorderRuns;
extern const OpKind kRingShift, kMergeAttention, kAddParts;
// Stand for their steps until expand_ring_attention(); no executor runs them, so op_table() does not list them.
extern const OpKind kRingAttention, kRingAttentionGrad;
extern const OpKind kAttentionScores, kAttentionScoresGrad, kScaleMask, kScaleMaskGrad, kSoftmax, kSoftmaxGrad;
extern const OpKind kMaskedSoftmax, kMaskedSoftmaxGrad, kAttentionContext, kAttentionContextGrad;
extern const OpKind kBiasActivation, kBiasActivationGrad, kBiasDropoutAdd;
extern const OpKind kSwiglu, kSwigluGrad;
extern const OpKind kAdd, kFill, kCast, kCopy;
extern const OpKind kGemmAdd, kGemmScaledAdd, kRmsNormGradAdd, kCrossEntropyFused;
extern const OpKind kGemmSwiglu, kGemmSwigluGrad;
extern const OpKind kAmax, kQuantize, kRmsNormQuantize, kSwigluQuantize, kSwigluGradQuantize, kGemmScaled;
extern const OpKind kQuantizeDelayed, kAmaxRecord, kScaleUpdate;
extern const OpKind kQuantizeBlocks, kGemmBlocks;
extern const OpKind kGroupedGemmQuantized, kGroupedGemmQuantizedDgrad, kGroupedGemmQuantizedWgrad;
extern const OpKind kTransposeQuantized, kBucketAmax, kBucketQuantize;
extern const OpKind kMaskVocabulary;
extern const OpKind kCrossEntropyMax, kCrossEntropySum, kCrossEntropyLoss, kCrossEntropyGrad;
extern const OpKind kAllGather, kReduceScatter, kAllReduce, kAllToAll, kAllToAllRows, kGroupIdentity, kSend, kRecv;
extern const OpKind kReshardSend, kReshardRecv;
extern const OpKind kGradSquareSum, kScalarSum, kGradScale, kAdamW;
extern const OpKind kDelay;

std::span<const OpKind* const> op_table();
const OpKind* find_op_kind(std::string_view name);

}  // namespace mbb::trainer
