// resolve(): from what the user asked for to what will be built, or the rule that forbids it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/models/model.h"
#include "trainer/ops/attrs.h"
#include "trainer/passes/tp_overlap.h"
#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"
#include "trainer/program/positions.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// A piece of the model that one pipeline stage holds: layers [first_layer, first_layer + num_layers).
struct Chunk {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool embedding = false;  // begins with the token embedding
  bool head = false;       // ends with final norm, LM head, loss and multi-token prediction
  bool encoder = false;    // the encoder's layers come before
};

// How attention under context parallelism sees the keys and values of the other ranks.
enum class CpComm : uint8_t { kP2p, kGather, kA2a, kA2aP2p };
const char* name(CpComm comm);

// A knob that was given and does nothing in this layout, with what it would need (knob_needs.h).
struct IdleKnob {
  std::string key;
  std::string value;
  std::string needs;  // "pp > 1"
};
// "overlap.overlap_p2p_comm = true (needs pp > 1)"
std::string describe(const IdleKnob& knob);

// A resolved configuration: every number a builder needs, all rules checked.
struct Layout {
  Config config;               // with defaults for knobs that do nothing here
  std::vector<IdleKnob> idle;  // those of them that were given
  ModelShape model;
  Mesh mesh;
  MeshRole role = MeshRole::kDecoder;  // whose sizes these are; of_role() gives the other's
  int tp = 1;
  int cp = 1;
  int pp = 1;
  int dp = 1;
  int ep = 1;
  int etp = 1;
  bool sequence_parallel = false;
  int64_t micro_batch = 1;       // sequences
  int64_t sequence = 64;         // tokens of a row (a pack's when packed), over all context-parallel ranks
  int64_t encoder_sequence = 0;  // tokens of an encoder-decoder's encoder; 0: there is none
  int64_t global_batch = 1;      // sequences
  int micro_batches = 1;         // per step and data-parallel rank
  int64_t vocab = 0;             // rows of the embedding table, over all TP ranks: the model's vocabulary padded
  DType compute = DType::kF32;   // activations and weights
  // Chunks of each stage; with several the pipeline is interleaved, and chunk c of stage s is piece c·pp + s of the
  // model.
  std::vector<std::vector<Chunk>> stages;
  int vpp = 1;                // chunks a stage
  int micro_batch_group = 1;  // interleaved: micro-batches that pass a chunk before the next has its turn
  MessageForm message_form = MessageForm::kOverlapped;

  bool records_routing = false;  // keeps what routers chose for whoever replays it
  bool replays_routing = false;  // routers take their choices from TrainOptions::replay

  // The same as the programs of a role are built with: the encoder's own TP, and its one stage.
  Layout of_role(MeshRole other) const;
  bool has_encoder_mesh() const { return mesh.sizes().encoder_pp > 0; }
  // Ranks that hold the model once.
  int model_ranks() const { return mesh.group_size(GroupKind::kModel, 0); }
  // Stages a micro-batch passes, and which of them this one is.
  int pipeline_depth() const { return mesh.sizes().encoder_pp + mesh.sizes().pp; }
  int pipeline_place(const RankClass& of) const {
    return of.role == MeshRole::kEncoder ? of.pp : mesh.sizes().encoder_pp + of.pp;
  }
  // The encoder's output travels in parts of its sequence, one a TP rank, and is gathered where it is read.
  bool memory_is_sharded() const { return tp > 1 && (sequence_parallel || has_encoder_mesh()); }
  std::vector<TpOverlapSite> tp_overlap;  // empty: none
  std::vector<CpComm> cp_comm;            // by layer; empty without context parallelism

  // Tokens of a sequence that one context-parallel rank holds, and where they lie.
  int64_t local_sequence() const { return sequence / cp; }
  Positions positions(int cp_coordinate) const { return context_positions(sequence, cp, cp_coordinate); }
  // The same of the encoder's tokens, where there are any.
  int64_t local_encoder_sequence() const { return encoder_sequence / cp; }
  Positions encoder_positions(int cp_coordinate) const {
    return encoder_sequence == 0 ? Positions{} : context_positions(encoder_sequence, cp, cp_coordinate);
  }
  // The model with its vocabulary as it is padded: what FLOPs are counted by (NUMERICS, section 2).
  ModelShape padded_model() const {
    ModelShape padded = model;
    padded.vocab_size = vocab;
    return padded;
  }
  // Tokens of one sample: the encoder's, the decoder's and one label more.
  int64_t sample_tokens() const { return encoder_sequence + sequence + 1; }
  int64_t tokens_per_step() const { return global_batch * sequence; }
  // Rows hold sequences of many lengths, one each or packed; else windows of the stream.
  bool has_sequences() const { return config.packing.sequences != SequenceLengths::kStream; }
  bool packed() const { return config.packing.packed_sequence_size > 0; }
  // Whether attention reads where the sequences of a row begin: of packs, and of an encoder, which causality does not
  // keep from the padding of its row.
  bool reads_starts() const { return packed() || (has_sequences() && model.is_encoder_decoder()); }
  int64_t sequences_of_row() const { return packed() ? config.packing.max_sequences : 1; }  // at most
  int64_t sequences_of_micro_batch() const { return micro_batch * sequences_of_row(); }     // at most
  // Context-parallel ranks divide each sequence whose start is read: multiples of this are what sequences are padded
  // to, and where an encoder's part is cut, whose tokens would see padding.
  int64_t sequence_unit() const { return reads_starts() && cp > 1 ? 2 * cp : 1; }
  // Tokens of an encoder's part of a sequence, at most; 0: there is no encoder.
  int64_t longest_encoder_part() const {
    if (!model.is_encoder_decoder()) return 0;
    return config.train.encoder_seq_length > 0 ? config.train.encoder_seq_length : config.train.seq_length;
  }
  // Whether tokens go to experts of other ranks, or to experts that are cut otherwise than over TP.
  bool exchanges_tokens() const { return model.is_moe() && (ep > 1 || etp != tp); }
  ShardingStrategy sharding() const { return config.data_parallel.data_parallel_sharding_strategy; }  // never auto
  bool shards_states() const { return sharding() != ShardingStrategy::kNoShard; }
  bool shards_gradients() const { return shards_states() && sharding() != ShardingStrategy::kOptim; }
  bool shards_parameters() const { return sharding() == ShardingStrategy::kOptimGradsParams; }
  DType main_grad_type() const { return config.data_parallel.grad_reduce_in_fp32 ? DType::kF32 : compute; }
  // A bucket is cut once it holds as many elements.
  int64_t bucket_elements() const;
};

// Errors (kBadArgument) name the knob and the rule: a knob of a part that the model lacks; TP that does not divide
// heads, groups, widths, vocabulary or sequence; CP that does not divide the sequence into chunks; a pipeline that the
// layers do not fill; a world that is no multiple of TP·CP·PP; a batch that does not divide.
Result<Layout> resolve(const Config& config);

}  // namespace mbb::trainer
