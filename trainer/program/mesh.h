// Rank arithmetic: which ranks share a tensor, pipeline, context, data or expert group. Pure, no threads.
//
// Dense order, fastest first: tp-cp-dp-pp. Experts fold over the same ranks of a pipeline stage: etp-ep-edp-pp, with
// etp·ep·edp = tp·cp·dp. (Both are Megatron-Core's default order tp-cp-ep-dp-pp.) An encoder with its own tensor and
// pipeline size is a block of ranks of its own before the decoder's: world = dp·cp·(encoder tp·pp + tp·pp).
// Only groups() and the world group list every rank: a mesh of 16,384 ranks costs as little as one of two.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer {

struct ParallelSizes {
  int tp = 1;
  int cp = 1;
  int pp = 1;
  int dp = 1;
  int ep = 1;
  int etp = 1;
  int encoder_pp = 0;    // 0: no encoder block
  int encoder_tp = 0;    // 0: as tp; needs encoder_pp > 0
  int dp_instances = 1;  // num_distributed_optimizer_instances: shard inside dp/instances, replicate across
  int cp_a2a = 1;        // inner size of cp_comm_type a2a+p2p: cp = cp_a2a · cp_p2p, the a2a ranks adjacent

  friend bool operator==(const ParallelSizes&, const ParallelSizes&) = default;
};

enum class Axis : uint8_t { kTp, kCp, kDp, kPp, kEtp, kEp, kEdp };
const char* name(Axis axis);

enum class MeshRole : uint8_t { kDecoder, kEncoder };
const char* name(MeshRole role);

// Every kind partitions the world: each rank is in exactly one group of each kind (a group may be that rank alone).
enum class GroupKind : uint8_t {
  kTp,
  kCp,
  kDp,
  kPp,
  kDpCp,  // gradients and distributed optimizer of dense parameters
  kTpCp,  // amax of tensors that are sequence-sharded
  kTpDp,
  kTpDpCp,  // one pipeline stage
  kModel,   // tp × pp, with the encoder's ranks where there is one: one replica's norm and overflow
  kEp,
  kEtp,
  kEdp,          // gradients and distributed optimizer of expert parameters
  kEtpEp,        // token dispatch with expert tensor parallelism
  kExpertModel,  // etp × ep × pp
  kDpCpShard,    // the part of dp_cp inside one distributed-optimizer instance
  kDpCpReplica,  // the same shard across instances
  kEdpShard,
  kEdpReplica,
  kCpA2a,      // inner part of a2a+p2p
  kCpP2p,      // outer part of a2a+p2p
  kEmbedding,  // first and last pipeline stage (tied embeddings); a middle stage is alone
  kWorld,
};

struct GroupKindRecord {
  GroupKind kind;
  const char* name;  // stable: stored, printed, accepted by group_kind_named
  const char* meaning;
};

// One record per kind, in the order of the enum.
extern const std::array<GroupKindRecord, 22> kGroupKinds;
const char* name(GroupKind kind);
std::optional<GroupKind> group_kind_named(std::string_view text);

// Where a rank stands. Dense and expert coordinates name the same rank twice.
struct MeshCoordinates {
  MeshRole role = MeshRole::kDecoder;
  int tp = 0;
  int cp = 0;
  int dp = 0;
  int pp = 0;
  int etp = 0;
  int ep = 0;
  int edp = 0;

  friend bool operator==(const MeshCoordinates&, const MeshCoordinates&) = default;
};

// What a step program is built for: mesh role × pipeline stage × CP coordinate.
struct RankClass {
  MeshRole role = MeshRole::kDecoder;
  int pp = 0;
  int cp = 0;

  friend bool operator==(const RankClass&, const RankClass&) = default;
};

class Mesh {
 public:
  // One rank.
  Mesh() = default;
  // Refuses sizes below 1, sizes that do not divide, and worlds above 2^24 ranks, naming the rule.
  static Result<Mesh> make(const ParallelSizes& sizes);

  const ParallelSizes& sizes() const { return sizes_; }
  int world_size() const { return encoder_ranks_ + decoder_ranks_; }
  int tp(MeshRole role) const { return role == MeshRole::kEncoder ? sizes_.encoder_tp : sizes_.tp; }
  int pp(MeshRole role) const { return role == MeshRole::kEncoder ? sizes_.encoder_pp : sizes_.pp; }
  // Expert data-parallel size of the decoder: tp·cp·dp / (etp·ep).
  int edp() const { return sizes_.tp * sizes_.cp * sizes_.dp / (sizes_.etp * sizes_.ep); }
  int size(Axis axis) const;

  MeshCoordinates coordinates(int rank) const;
  int coordinate(Axis axis, int rank) const;
  // From role, tp, cp, dp, pp; the expert coordinates are not read.
  int rank(const MeshCoordinates& dense) const;
  // From role, etp, ep, edp, pp; the dense coordinates are not read.
  int expert_rank(const MeshCoordinates& expert) const;

  // Members of the group of `kind` that holds `rank`, in group order (which ascends in world rank).
  std::vector<int> group(GroupKind kind, int rank) const;
  // The same over any set of axes of one kind (all dense, or all expert; pp goes with both), inside the rank's role.
  std::vector<int> group(std::initializer_list<Axis> axes, int rank) const;
  int group_size(GroupKind kind, int rank) const;
  // Place of `rank` in its group.
  int group_index(GroupKind kind, int rank) const;
  // Every group of a kind, by lowest member.
  std::vector<std::vector<int>> groups(GroupKind kind) const;

  // Rank classes are numbered 0..rank_class_count()-1: encoder first, then stage, then CP coordinate.
  int rank_class_count() const { return sizes_.cp * (sizes_.encoder_pp + sizes_.pp); }
  RankClass rank_class(int rank) const;
  int rank_class_index(int rank) const;
  // The lowest rank of a class.
  int representative(int rank_class_index) const;

  // Refused when a group of `kind` has members in two domains of `domain_size` consecutive ranks; names that group.
  Status check_inside_domain(GroupKind kind, int domain_size) const;

 private:
  explicit Mesh(const ParallelSizes& sizes);

  ParallelSizes sizes_;
  int encoder_ranks_ = 0;
  int decoder_ranks_ = 1;
};

// "tp2 cp1 pp4 dp2" and, where they differ from the default, ep, etp, encoder and the inner sizes.
std::string describe(const ParallelSizes& sizes);

}  // namespace mbb::trainer
