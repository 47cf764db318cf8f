// Final norm, LM head and vocabulary-parallel loss.
#include "trainer/models/blocks/blocks.h"

namespace mbb::trainer {

void loss_block(BlockBuilder& k, const std::string& prefix, TensorId normed, TensorId labels, TensorId total,
                double weight) {
  Builder& b = k.builder();
  const ModelShape& m = k.model();
  const TensorId w = k.vocabulary_table(m.tied_embeddings ? "embedding.weight" : "lm_head.weight");
  const std::string head = prefix + "lm_head";
  TensorId x = normed;
  if (m.logit_scale != 1.0) x = b.emit1(kScaleBy, head + ".scale.fwd", {x}, ScaleByAttrs{m.logit_scale, m.logit_scale});
  TensorId logits = b.emit1(kGemm, head + ".fwd", {k.gather(head, x), w}, GemmAttrs{false, true, false},
                            {.role = Role::kFprop, .category = Category::kLogits, .out_path = head + ".out"});
  if (k.layout().vocab != m.vocab_size)
    logits = b.emit1(kMaskVocabulary, head + ".mask.fwd", {logits}, VocabularyAttrs{m.vocab_size},
                     {.category = Category::kLogits, .out_path = head + ".mask.out"});
  if (weight != 1.0)
    logits = b.emit1(kScaleBy, head + ".weight.fwd", {logits}, ScaleByAttrs{1.0, weight},
                     {.category = Category::kLogits, .out_path = head + ".weight.out"});
  const std::string loss = prefix + "loss";
  TensorId maxima = b.emit1(kCrossEntropyMax, loss + ".max.fwd", {logits}, NoAttrs{});
  CommAttrs reduce_max = k.tp_comm();
  reduce_max.reduce = ReduceKind::kMax;
  if (k.layout().tp > 1)
    maxima = b.emit1(kAllReduce, loss + ".max.all_reduce.fwd", {maxima}, reduce_max, {.stream = Stream::kTp});
  TensorId sums = b.emit1(kCrossEntropySum, loss + ".sum.fwd", {logits, maxima, labels}, EmbeddingAttrs{});
  if (k.layout().tp > 1)
    sums = b.emit1(kAllReduce, loss + ".sum.all_reduce.fwd", {sums}, k.tp_comm(), {.stream = Stream::kTp});
  b.emit(kCrossEntropyLoss, loss + ".fwd", {logits, maxima, sums, labels}, EmbeddingAttrs{false},
         {.when = When::kFirst, .out = {total}});
  b.emit(kCrossEntropyLoss, loss + ".fwd", {logits, maxima, sums, labels, total}, EmbeddingAttrs{true},
         {.when = When::kNotFirst, .out = {total}});
}

void head_block(BlockBuilder& k, TensorId x) {
  Ports& ports = k.builder().program().ports;
  const TensorId labels = k.input(ports.labels, "labels", Shape{k.layout().local_sequence(), k.layout().micro_batch});
  loss_block(k, "", k.dropout_after("final_norm", k.norm("final_norm", x)), labels,
             k.builder().program().ports.loss_sum);
  if (k.model().num_mtp_layers > 0) mtp_block(k, x);
}

}  // namespace mbb::trainer
