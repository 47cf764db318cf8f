// Ranks as mixed-radix numbers: a group is the set of ranks that differ in some digits and agree in the others.
#include "trainer/program/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "profiler/base/check.h"

namespace mbb::trainer {
namespace {

// Digits of a rank inside its block, fastest first. Dense and expert views read the same number differently.
enum Digit : uint32_t {
  kDigitTp = 1 << 0,
  kDigitCpA2a = 1 << 1,
  kDigitCpP2p = 1 << 2,
  kDigitDpShard = 1 << 3,
  kDigitDpReplica = 1 << 4,
  kDigitPp = 1 << 5,
  kDigitEtp = 1 << 6,
  kDigitEp = 1 << 7,
  kDigitEdpShard = 1 << 8,
  kDigitEdpReplica = 1 << 9,
};
constexpr uint32_t kDigitCp = kDigitCpA2a | kDigitCpP2p;
constexpr uint32_t kDigitDp = kDigitDpShard | kDigitDpReplica;
constexpr uint32_t kDigitEdp = kDigitEdpShard | kDigitEdpReplica;
constexpr uint32_t kExpertDigits = kDigitEtp | kDigitEp | kDigitEdp;
constexpr uint32_t kDenseDigits = kDigitTp | kDigitCp | kDigitDp;

struct Radix {
  uint32_t digit;
  int size;
};

std::vector<Radix> radices(const ParallelSizes& s, MeshRole role, bool expert) {
  const bool encoder = role == MeshRole::kEncoder;
  const int tp = encoder ? s.encoder_tp : s.tp;
  const int pp = encoder ? s.encoder_pp : s.pp;
  if (expert) {
    const int edp = tp * s.cp * s.dp / (s.etp * s.ep);
    return {{kDigitEtp, s.etp},
            {kDigitEp, s.ep},
            {kDigitEdpShard, edp / s.dp_instances},
            {kDigitEdpReplica, s.dp_instances},
            {kDigitPp, pp}};
  }
  return {{kDigitTp, tp},
          {kDigitCpA2a, s.cp_a2a},
          {kDigitCpP2p, s.cp / s.cp_a2a},
          {kDigitDpShard, s.dp / s.dp_instances},
          {kDigitDpReplica, s.dp_instances},
          {kDigitPp, pp}};
}

// Value of the (adjacent) digits in `mask`, read as one number.
int read_digits(const std::vector<Radix>& radix, uint32_t mask, int local_rank) {
  int value = 0;
  int weight = 1;
  for (const Radix& r : radix) {
    if (r.digit & mask) {
      value += local_rank % r.size * weight;
      weight *= r.size;
    }
    local_rank /= r.size;
  }
  return value;
}

// Ranks of a block that agree with `local_rank` outside `mask`, ascending.
std::vector<int> span_digits(const std::vector<Radix>& radix, uint32_t mask, int local_rank) {
  std::vector<int> members = {0};
  int stride = 1;
  for (const Radix& r : radix) {
    const int own = local_rank / stride % r.size;
    std::vector<int> next;
    next.reserve(members.size() * static_cast<size_t>(r.digit & mask ? r.size : 1));
    for (int value = 0; value < r.size; ++value) {
      if (!(r.digit & mask) && value != own) continue;
      for (const int member : members) next.push_back(member + value * stride);
    }
    members = std::move(next);
    stride *= r.size;
  }
  return members;
}

int span_size(const std::vector<Radix>& radix, uint32_t mask) {
  int size = 1;
  for (const Radix& r : radix)
    if (r.digit & mask) size *= r.size;
  return size;
}

uint32_t digits(Axis axis) {
  switch (axis) {
    case Axis::kTp: return kDigitTp;
    case Axis::kCp: return kDigitCp;
    case Axis::kDp: return kDigitDp;
    case Axis::kPp: return kDigitPp;
    case Axis::kEtp: return kDigitEtp;
    case Axis::kEp: return kDigitEp;
    case Axis::kEdp: return kDigitEdp;
  }
  return 0;
}

// Digits that vary inside a group of the kind; kModel, kEmbedding and kWorld are more than digits and come apart.
uint32_t digits(GroupKind kind) {
  switch (kind) {
    case GroupKind::kTp: return kDigitTp;
    case GroupKind::kCp: return kDigitCp;
    case GroupKind::kDp: return kDigitDp;
    case GroupKind::kPp:
    case GroupKind::kEmbedding: return kDigitPp;
    case GroupKind::kDpCp: return kDigitDp | kDigitCp;
    case GroupKind::kTpCp: return kDigitTp | kDigitCp;
    case GroupKind::kTpDp: return kDigitTp | kDigitDp;
    case GroupKind::kTpDpCp: return kDenseDigits;
    case GroupKind::kModel: return kDigitTp | kDigitPp;
    case GroupKind::kEp: return kDigitEp;
    case GroupKind::kEtp: return kDigitEtp;
    case GroupKind::kEdp: return kDigitEdp;
    case GroupKind::kEtpEp: return kDigitEtp | kDigitEp;
    case GroupKind::kExpertModel: return kDigitEtp | kDigitEp | kDigitPp;
    case GroupKind::kDpCpShard: return kDigitCp | kDigitDpShard;
    case GroupKind::kDpCpReplica: return kDigitDpReplica;
    case GroupKind::kEdpShard: return kDigitEdpShard;
    case GroupKind::kEdpReplica: return kDigitEdpReplica;
    case GroupKind::kCpA2a: return kDigitCpA2a;
    case GroupKind::kCpP2p: return kDigitCpP2p;
    case GroupKind::kWorld: return kDenseDigits | kDigitPp;
  }
  return 0;
}

Status check_positive(const char* what, int value) {
  if (value >= 1) return {};
  return fail(ErrorCode::kBadArgument, fmt::format("{} is {}", what, value), "give a size of 1 or more");
}

}  // namespace

const std::array<GroupKindRecord, 22> kGroupKinds = {{
    {GroupKind::kTp, "tp", "tensor parallel"},
    {GroupKind::kCp, "cp", "context parallel"},
    {GroupKind::kDp, "dp", "data parallel"},
    {GroupKind::kPp, "pp", "pipeline stages"},
    {GroupKind::kDpCp, "dp_cp", "data × context parallel: gradients of dense parameters"},
    {GroupKind::kTpCp, "tp_cp", "tensor × context parallel"},
    {GroupKind::kTpDp, "tp_dp", "tensor × data parallel"},
    {GroupKind::kTpDpCp, "tp_dp_cp", "all ranks of one pipeline stage"},
    {GroupKind::kModel, "model", "tensor × pipeline parallel: one replica"},
    {GroupKind::kEp, "ep", "expert parallel"},
    {GroupKind::kEtp, "etp", "expert tensor parallel"},
    {GroupKind::kEdp, "edp", "expert data parallel: gradients of expert parameters"},
    {GroupKind::kEtpEp, "etp_ep", "expert tensor × expert parallel: token dispatch"},
    {GroupKind::kExpertModel, "expert_model", "expert tensor × expert × pipeline parallel"},
    {GroupKind::kDpCpShard, "dp_cp_shard", "dp_cp inside one distributed-optimizer instance"},
    {GroupKind::kDpCpReplica, "dp_cp_replica", "one shard across distributed-optimizer instances"},
    {GroupKind::kEdpShard, "edp_shard", "edp inside one distributed-optimizer instance"},
    {GroupKind::kEdpReplica, "edp_replica", "one expert shard across distributed-optimizer instances"},
    {GroupKind::kCpA2a, "cp_a2a", "inner context-parallel group of a2a+p2p"},
    {GroupKind::kCpP2p, "cp_p2p", "outer context-parallel group of a2a+p2p"},
    {GroupKind::kEmbedding, "embedding", "first and last pipeline stage"},
    {GroupKind::kWorld, "world", "all ranks"},
}};

const char* name(Axis axis) {
  switch (axis) {
    case Axis::kTp: return "tp";
    case Axis::kCp: return "cp";
    case Axis::kDp: return "dp";
    case Axis::kPp: return "pp";
    case Axis::kEtp: return "etp";
    case Axis::kEp: return "ep";
    case Axis::kEdp: return "edp";
  }
  return "unknown";
}

const char* name(MeshRole role) {
  return role == MeshRole::kEncoder ? "encoder" : "decoder";
}

const char* name(GroupKind kind) {
  return kGroupKinds[static_cast<size_t>(kind)].name;
}

std::optional<GroupKind> group_kind_named(std::string_view text) {
  for (const GroupKindRecord& record : kGroupKinds)
    if (text == record.name) return record.kind;
  return std::nullopt;
}

Mesh::Mesh(const ParallelSizes& sizes)
    : sizes_(sizes),
      encoder_ranks_(sizes.encoder_tp * sizes.encoder_pp * sizes.cp * sizes.dp),
      decoder_ranks_(sizes.tp * sizes.pp * sizes.cp * sizes.dp) {}

Result<Mesh> Mesh::make(const ParallelSizes& given) {
  ParallelSizes s = given;
  MB_TRY(check_positive("tensor_model_parallel_size", s.tp));
  MB_TRY(check_positive("context_parallel_size", s.cp));
  MB_TRY(check_positive("pipeline_model_parallel_size", s.pp));
  MB_TRY(check_positive("data parallel size", s.dp));
  MB_TRY(check_positive("expert_model_parallel_size", s.ep));
  MB_TRY(check_positive("expert_tensor_parallel_size", s.etp));
  MB_TRY(check_positive("num_distributed_optimizer_instances", s.dp_instances));
  MB_TRY(check_positive("inner size of a2a+p2p", s.cp_a2a));
  if (s.encoder_pp < 0 || s.encoder_tp < 0)
    return fail(ErrorCode::kBadArgument, "an encoder parallel size is negative", "give 0 for no encoder block");
  if (s.encoder_pp == 0 && s.encoder_tp != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("encoder_tensor_model_parallel_size is {} without an encoder stage", s.encoder_tp),
                "set encoder_pipeline_model_parallel_size to 1, or leave the encoder's tensor size 0");
  if (s.encoder_pp > 0 && s.encoder_tp == 0) s.encoder_tp = s.tp;
  if (s.encoder_tp > s.tp)
    return fail(ErrorCode::kBadArgument,
                fmt::format("encoder_tensor_model_parallel_size {} is above the decoder's {}", s.encoder_tp, s.tp),
                "the encoder's tensor size is at most the decoder's");
  if (s.encoder_pp > 0 && (s.ep > 1 || s.etp > 1))
    return fail(ErrorCode::kBadArgument, "expert parallelism together with an encoder block",
                "set expert_model_parallel_size and expert_tensor_parallel_size to 1");

  constexpr int64_t kMostRanks = 1 << 24;
  int64_t world = 1;
  for (const int size : {s.cp, s.dp, s.tp, s.pp}) {
    world *= size;
    if (world > kMostRanks)
      return fail(ErrorCode::kBadArgument, fmt::format("{} is more than {} ranks", describe(s), kMostRanks));
  }
  world += static_cast<int64_t>(s.cp) * s.dp * s.encoder_tp * s.encoder_pp;
  if (s.encoder_pp > kMostRanks || world > kMostRanks)
    return fail(ErrorCode::kBadArgument, fmt::format("{} is more than {} ranks", describe(s), kMostRanks));

  const int64_t stage = static_cast<int64_t>(s.tp) * s.cp * s.dp;
  const int64_t expert = static_cast<int64_t>(s.etp) * s.ep;
  if (stage % expert != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("experts need etp {} × ep {} = {} ranks, which does not divide the {} ranks of a stage "
                            "(tp {} × cp {} × dp {})",
                            s.etp, s.ep, expert, stage, s.tp, s.cp, s.dp),
                "choose ep and etp whose product divides tp × cp × dp");
  if (s.dp % s.dp_instances != 0 || stage / expert % s.dp_instances != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("num_distributed_optimizer_instances {} does not divide the data parallel size {} and the "
                            "expert data parallel size {}",
                            s.dp_instances, s.dp, stage / expert),
                "choose a number of instances that divides both");
  if (s.cp % s.cp_a2a != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("the inner size {} of a2a+p2p does not divide context_parallel_size {}", s.cp_a2a, s.cp),
                "choose a divisor of context_parallel_size");
  return Mesh(s);
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::kTp: return sizes_.tp;
    case Axis::kCp: return sizes_.cp;
    case Axis::kDp: return sizes_.dp;
    case Axis::kPp: return sizes_.pp;
    case Axis::kEtp: return sizes_.etp;
    case Axis::kEp: return sizes_.ep;
    case Axis::kEdp: return edp();
  }
  return 1;
}

MeshCoordinates Mesh::coordinates(int world_rank) const {
  MB_CHECK(world_rank >= 0 && world_rank < world_size(), fmt::format("rank {} of {}", world_rank, world_size()));
  MeshCoordinates at;
  at.role = world_rank < encoder_ranks_ ? MeshRole::kEncoder : MeshRole::kDecoder;
  const int local = at.role == MeshRole::kEncoder ? world_rank : world_rank - encoder_ranks_;
  const std::vector<Radix> dense = radices(sizes_, at.role, false);
  const std::vector<Radix> expert = radices(sizes_, at.role, true);
  at.tp = read_digits(dense, kDigitTp, local);
  at.cp = read_digits(dense, kDigitCp, local);
  at.dp = read_digits(dense, kDigitDp, local);
  at.pp = read_digits(dense, kDigitPp, local);
  at.etp = read_digits(expert, kDigitEtp, local);
  at.ep = read_digits(expert, kDigitEp, local);
  at.edp = read_digits(expert, kDigitEdp, local);
  return at;
}

int Mesh::coordinate(Axis axis, int world_rank) const {
  const MeshCoordinates at = coordinates(world_rank);
  switch (axis) {
    case Axis::kTp: return at.tp;
    case Axis::kCp: return at.cp;
    case Axis::kDp: return at.dp;
    case Axis::kPp: return at.pp;
    case Axis::kEtp: return at.etp;
    case Axis::kEp: return at.ep;
    case Axis::kEdp: return at.edp;
  }
  return 0;
}

int Mesh::rank(const MeshCoordinates& c) const {
  const int block = c.role == MeshRole::kEncoder ? 0 : encoder_ranks_;
  MB_CHECK(c.tp >= 0 && c.tp < tp(c.role) && c.cp >= 0 && c.cp < sizes_.cp && c.dp >= 0 && c.dp < sizes_.dp &&
               c.pp >= 0 && c.pp < pp(c.role),
           fmt::format("{} coordinates tp {} cp {} dp {} pp {} in mesh {}", name(c.role), c.tp, c.cp, c.dp, c.pp,
                       describe(sizes_)));
  return block + c.tp + tp(c.role) * (c.cp + sizes_.cp * (c.dp + sizes_.dp * c.pp));
}

int Mesh::expert_rank(const MeshCoordinates& c) const {
  const int block = c.role == MeshRole::kEncoder ? 0 : encoder_ranks_;
  const int copies = tp(c.role) * sizes_.cp * sizes_.dp / (sizes_.etp * sizes_.ep);
  MB_CHECK(c.etp >= 0 && c.etp < sizes_.etp && c.ep >= 0 && c.ep < sizes_.ep && c.edp >= 0 && c.edp < copies &&
               c.pp >= 0 && c.pp < pp(c.role),
           fmt::format("{} coordinates etp {} ep {} edp {} pp {} in mesh {}", name(c.role), c.etp, c.ep, c.edp, c.pp,
                       describe(sizes_)));
  return block + c.etp + sizes_.etp * (c.ep + sizes_.ep * (c.edp + copies * c.pp));
}

std::vector<int> Mesh::group(GroupKind kind, int world_rank) const {
  const MeshCoordinates at = coordinates(world_rank);
  if (kind == GroupKind::kWorld) {
    std::vector<int> all(static_cast<size_t>(world_size()));
    for (int r = 0; r < world_size(); ++r) all[static_cast<size_t>(r)] = r;
    return all;
  }
  if (kind == GroupKind::kEmbedding && at.pp != 0 && at.pp != pp(at.role) - 1) return {world_rank};

  const auto members_in = [&](MeshRole role, int member) {
    const int block = role == MeshRole::kEncoder ? 0 : encoder_ranks_;
    std::vector<int> members =
        span_digits(radices(sizes_, role, digits(kind) & kExpertDigits), digits(kind), member - block);
    for (int& m : members) m += block;
    return members;
  };
  if (kind == GroupKind::kModel && encoder_ranks_ > 0) {
    const auto first_of = [&](MeshRole role) { return rank({.role = role, .cp = at.cp, .dp = at.dp}); };
    std::vector<int> members = members_in(MeshRole::kEncoder, first_of(MeshRole::kEncoder));
    const std::vector<int> decoder = members_in(MeshRole::kDecoder, first_of(MeshRole::kDecoder));
    members.insert(members.end(), decoder.begin(), decoder.end());
    return members;
  }
  std::vector<int> members = members_in(at.role, world_rank);
  if (kind == GroupKind::kEmbedding && members.size() > 2) members = {members.front(), members.back()};
  return members;
}

std::vector<int> Mesh::group(std::initializer_list<Axis> axes, int world_rank) const {
  uint32_t mask = 0;
  for (const Axis axis : axes) mask |= digits(axis);
  MB_CHECK(!(mask & kExpertDigits) || !(mask & kDenseDigits), "a group over dense and expert axes at once");
  const MeshRole role = coordinates(world_rank).role;
  const int block = role == MeshRole::kEncoder ? 0 : encoder_ranks_;
  std::vector<int> members = span_digits(radices(sizes_, role, mask & kExpertDigits), mask, world_rank - block);
  for (int& m : members) m += block;
  return members;
}

int Mesh::group_size(GroupKind kind, int world_rank) const {
  if (kind == GroupKind::kWorld) return world_size();
  const MeshCoordinates at = coordinates(world_rank);
  if (kind == GroupKind::kEmbedding) {
    const int last = pp(at.role) - 1;
    return last > 0 && (at.pp == 0 || at.pp == last) ? 2 : 1;
  }
  if (kind == GroupKind::kModel) return sizes_.tp * sizes_.pp + sizes_.encoder_tp * sizes_.encoder_pp;
  return span_size(radices(sizes_, at.role, digits(kind) & kExpertDigits), digits(kind));
}

int Mesh::group_index(GroupKind kind, int world_rank) const {
  const std::vector<int> members = group(kind, world_rank);
  return static_cast<int>(std::lower_bound(members.begin(), members.end(), world_rank) - members.begin());
}

std::vector<std::vector<int>> Mesh::groups(GroupKind kind) const {
  std::vector<std::vector<int>> all;
  std::vector<bool> seen(static_cast<size_t>(world_size()), false);
  for (int r = 0; r < world_size(); ++r) {
    if (seen[static_cast<size_t>(r)]) continue;
    all.push_back(group(kind, r));
    for (const int member : all.back()) seen[static_cast<size_t>(member)] = true;
  }
  return all;
}

RankClass Mesh::rank_class(int world_rank) const {
  const MeshCoordinates at = coordinates(world_rank);
  return {at.role, at.pp, at.cp};
}

int Mesh::rank_class_index(int world_rank) const {
  const RankClass c = rank_class(world_rank);
  const int stage = c.role == MeshRole::kEncoder ? c.pp : sizes_.encoder_pp + c.pp;
  return stage * sizes_.cp + c.cp;
}

int Mesh::representative(int index) const {
  MB_CHECK(index >= 0 && index < rank_class_count(), fmt::format("rank class {} of {}", index, rank_class_count()));
  const int stage = index / sizes_.cp;
  const bool encoder = stage < sizes_.encoder_pp;
  return rank({.role = encoder ? MeshRole::kEncoder : MeshRole::kDecoder,
               .cp = index % sizes_.cp,
               .pp = encoder ? stage : stage - sizes_.encoder_pp});
}

Status Mesh::check_inside_domain(GroupKind kind, int domain_size) const {
  MB_TRY(check_positive("nvlink_domain_size", domain_size));
  for (const std::vector<int>& members : groups(kind)) {
    if (members.front() / domain_size == members.back() / domain_size) continue;
    const int span = members.back() - members.front() + 1;
    const int in_use = domain_size / span * span;
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} group of ranks {}..{} ({} members) straddles NVLink domains of {} ranks", name(kind),
                            members.front(), members.back(), members.size(), domain_size),
                in_use > 0
                    ? fmt::format("use {} of the {} GPUs of a domain and leave {} idle: such a group spans {} ranks",
                                  in_use, domain_size, domain_size - in_use, span)
                    : fmt::format("such a group spans {} ranks, more than a domain has: make it smaller", span));
  }
  return {};
}

std::string describe(const ParallelSizes& s) {
  std::string text = fmt::format("tp{} cp{} pp{} dp{}", s.tp, s.cp, s.pp, s.dp);
  if (s.ep > 1 || s.etp > 1) text += fmt::format(" ep{} etp{}", s.ep, s.etp);
  if (s.encoder_pp > 0) text += fmt::format(" encoder tp{} pp{}", s.encoder_tp, s.encoder_pp);
  if (s.dp_instances > 1) text += fmt::format(" instances{}", s.dp_instances);
  if (s.cp_a2a > 1) text += fmt::format(" a2a{}", s.cp_a2a);
  return text;
}

}  // namespace mbb::trainer
