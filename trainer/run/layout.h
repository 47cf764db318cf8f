// resolve(): from what the user asked for to what will be built, or the rule that forbids it.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/models/model.h"
#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// Layers [first_layer, first_layer + num_layers) of one pipeline stage.
struct Chunk {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool embedding = false;  // begins with the token embedding
  bool head = false;       // ends with final norm, LM head and loss
};

// A resolved configuration: every number a builder needs, all rules checked.
struct Layout {
  Config config;
  ModelShape model;
  Mesh mesh;
  int tp = 1;
  int pp = 1;
  int dp = 1;
  bool sequence_parallel = false;
  int64_t micro_batch = 1;       // sequences
  int64_t sequence = 64;         // tokens of a row: a pack's when packed
  int64_t encoder_sequence = 0;  // tokens of an encoder-decoder's encoder; 0: there is none
  int64_t global_batch = 1;      // sequences
  int micro_batches = 1;         // per step and data-parallel rank
  int64_t vocab = 0;             // rows of the embedding table, over all TP ranks
  DType compute = DType::kF32;   // activations and weights
  std::vector<Chunk> stages;     // one chunk a stage

  // Tokens of one sample: the encoder's, the decoder's and one label more.
  int64_t sample_tokens() const { return encoder_sequence + sequence + 1; }
  int64_t tokens_per_step() const { return global_batch * sequence; }
  // Rows hold sequences of many lengths, one each or packed; else windows of the stream.
  bool has_sequences() const { return config.packing.sequences != SequenceLengths::kStream; }
  bool packed() const { return config.packing.packed_sequence_size > 0; }
  ShardingStrategy sharding() const { return config.data_parallel.data_parallel_sharding_strategy; }  // never auto
  bool shards_states() const { return sharding() != ShardingStrategy::kNoShard; }
  bool shards_gradients() const { return shards_states() && sharding() != ShardingStrategy::kOptim; }
  bool shards_parameters() const { return sharding() == ShardingStrategy::kOptimGradsParams; }
  DType main_grad_type() const { return config.data_parallel.grad_reduce_in_fp32 ? DType::kF32 : compute; }
  // A bucket is cut once it holds as many elements.
  int64_t bucket_elements() const;
};

// Errors (kBadArgument) name the knob and the rule: TP that does not divide heads, groups, widths, vocabulary or
// sequence; PP that does not divide the layers; a world that is no multiple of TP·PP; a batch that does not divide.
Result<Layout> resolve(const Config& config);

}  // namespace mbb::trainer
