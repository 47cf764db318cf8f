// What every block of a model is built from: weights with their cuts, linear layers with the tensor-parallel
// collectives around them, norms, dropout, step sums.
//
// Hidden states are [s, b, h]; with sequence parallelism norms and residuals work on [s/t, b, h], and a column-parallel
// layer's input is all-gathered, a row-parallel layer's output reduce-scattered along s.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/models/model.h"
#include "trainer/ops/table.h"
#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

struct WeightOptions {
  std::vector<Cut> cuts;
  Init init;
  bool decay = true;             // vectors never decay
  Sharing sharing = {};          // with other stages or the other mesh
  bool partial_over_tp = false;  // (expert) TP ranks hold the whole weight but each sees part of its gradient
  bool expert = false;           // of routed experts
};

class BlockBuilder {
 public:
  BlockBuilder(Builder& builder, const Layout& layout) : b_(builder), l_(layout) {}

  Builder& builder() { return b_; }
  const Layout& layout() const { return l_; }
  const ModelShape& model() const { return l_.model; }

  // A trained weight, or the one declared before under this path (tied and shared weights).
  TensorId weight(const std::string& path, Shape full, WeightOptions options);
  // A table of a row a token, cut over TP; the embedding's is also the LM head's where they are tied, and is needed
  // again by multi-token prediction and by the encoder.
  TensorId vocabulary_table(const std::string& path);
  // How stages share a weight that each of them has (`all_stages`) or that the first and the last one have.
  Sharing shared_by_stages(bool all_stages) const;
  // A value that the host writes before each micro-batch; declared once.
  TensorId input(TensorId& port, const std::string& path, Shape shape);
  // A sum over the step's micro-batches that gradient sync adds up over data-parallel ranks.
  TensorId step_sum(const std::string& path, DType dtype, Shape shape);

  // The model's norm over the last dimension, with weights of its own under `path`.
  TensorId norm(const std::string& path, TensorId x);
  // RMS norm of any width.
  TensorId rms_norm(const std::string& path, TensorId x);
  // x·Wᵀ.
  TensorId linear(const std::string& path, TensorId x, TensorId w);
  TensorId bias(const std::string& path, TensorId x, WeightOptions options);
  // Output features divided over TP (part by part), x whole in its sequence.
  TensorId column_linear(const std::string& path, TensorId x, std::vector<int64_t> parts, bool with_bias);
  // Input features divided over TP; the sum over TP is scattered along the sequence, then the bias is added.
  TensorId row_linear(const std::string& path, TensorId x, int64_t in_features, bool with_bias);
  // The same weight on every TP rank, x as it is sharded.
  TensorId replicated_linear(const std::string& path, TensorId x, int64_t out_features);
  // y + (alpha / rank)·(x·Aᵀ)·Bᵀ of a low-rank adapter where memory.lora_targets names this layer, else y. The cuts are
  // those of the layer's inputs (dimension 1 of A) and outputs (dimension 0 of B).
  TensorId adapted(const std::string& path, TensorId x, TensorId y, const std::vector<Cut>& in_cuts,
                   const std::vector<Cut>& out_cuts);
  bool adapts(const std::string& path) const;
  // y + (alpha / rank)·low.
  TensorId add_adapter(const std::string& path, TensorId y, TensorId low);
  TensorId gather(const std::string& path, TensorId x);   // into a column-parallel layer
  TensorId scatter(const std::string& path, TensorId x);  // out of a row-parallel layer
  TensorId activation(const std::string& path, TensorId x);
  TensorId dropout(const std::string& path, TensorId x);  // hidden_dropout; x itself when that is 0
  // T5 drops after its final norms too.
  TensorId dropout_after(const std::string& path, TensorId x) {
    return model().is_encoder_decoder() ? dropout(path, x) : x;
  }
  TensorId residual(const std::string& path, TensorId x, TensorId branch);

  // Operands and attributes dropout reads.
  TensorId samples();
  // Where a pack's sequences begin, and those of the encoder's tokens.
  TensorId starts();
  TensorId encoder_starts();
  // Which of the micro-batch's sequences the tokens are of, and which are padding; kNoTensor where no row has any.
  TensorId sequences();
  int64_t random_stream(const std::string& path) const;

  // Adds a router's losses f32 [2] to what the step reports.
  void report_router_losses(const std::string& path, TensorId losses);

  // Layers whose router steers by load: the optimizer segment updates their bias.
  struct ExpertState {
    std::string path;
    TensorId load, bias;
    double rate;
  };
  std::vector<ExpertState>& expert_states() { return expert_states_; }

  // What is built from here on reads the encoder's tokens, or no more.
  void set_encoder(bool encoder) { encoder_ = encoder; }
  // The sequence that is read: its tokens over all context-parallel ranks, and where this rank class's lie in it.
  int64_t sequence() const { return encoder_ ? l_.encoder_sequence : l_.sequence; }
  Positions positions() const {
    const int at = b_.program().rank_class.cp;
    return encoder_ ? l_.encoder_positions(at) : l_.positions(at);
  }

  CommAttrs tp_comm() const { return {.group = GroupKind::kTp, .group_size = l_.tp}; }
  Init normal() const { return {Init::Kind::kNormal, l_.config.optimizer.init_method_std}; }
  // Layers that write into the residual start smaller by the depth of the network.
  Init scaled_normal() const;

 private:
  bool frozen(const std::string& path) const;
  int ways(Axis axis) const;  // ranks a cut over the axis divides among

  Builder& b_;
  const Layout& l_;
  bool encoder_ = false;
  std::map<std::string, TensorId> weights_;
  std::vector<ExpertState> expert_states_;
};

}  // namespace mbb::trainer
