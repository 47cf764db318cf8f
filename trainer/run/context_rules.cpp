// The rules of context parallelism.
#include "trainer/run/context_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

constexpr const char* kCp = "parallel.context_parallel_size";
constexpr const char* kComm = "parallel.cp_comm_type";
constexpr const char* kSizes = "parallel.hierarchical_context_parallel_sizes";

struct CommName {
  CpComm comm;
  const char* name;
};
constexpr std::array kNames{CommName{CpComm::kP2p, "p2p"}, CommName{CpComm::kGather, "all_gather"},
                            CommName{CpComm::kA2a, "a2a"}, CommName{CpComm::kA2aP2p, "a2a+p2p"}};

Result<CpComm> comm_named(std::string_view text) {
  for (const CommName& known : kNames)
    if (text == known.name) return known.comm;
  return fail(ErrorCode::kBadArgument, fmt::format("{} has no type '{}'", kComm, text),
              "give p2p, all_gather, a2a or a2a+p2p, or one of them for each layer, separated by commas");
}

Result<std::vector<CpComm>> comm_by_layer(std::string_view text, int64_t layers) {
  std::vector<CpComm> all;
  while (true) {
    const size_t comma = text.find(',');
    MB_ASSIGN(const CpComm comm, comm_named(text.substr(0, comma)));
    all.push_back(comm);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (all.size() == 1) return std::vector<CpComm>(static_cast<size_t>(layers), all[0]);
  if (static_cast<int64_t>(all.size()) != layers)
    return fail(ErrorCode::kBadArgument, fmt::format("{} lists {} types for {} layers", kComm, all.size(), layers),
                "give one type, or one for each layer");
  return all;
}

Status check_model(const Layout& l) {
  const auto refuse = [&](const char* part, const char* hint) {
    return fail(ErrorCode::kUnavailable, fmt::format("model {}: {} = {} with {}", l.model.name, kCp, l.cp, part), hint);
  };
  if (l.packed() && l.config.parallel.moe_router_force_load_balancing)
    return refuse(
        "packs and parallel.moe_router_force_load_balancing",
        "which expert's turn it is would depend on the ranks that hold a token: set packing.sequences = stream");
  if (l.config.fusion.attention_backend == AttentionBackend::kUnfused)
    return refuse("fusion.attention_backend = unfused", "its scores are not cut: give auto, flash or fused");
  if (l.model.is_moe() && l.config.parallel.moe_expert_capacity_factor > 0)
    return refuse("parallel.moe_expert_capacity_factor",
                  "which tokens an expert drops would depend on the ranks that hold them: drop none (0)");
  return {};
}

// Inner and outer size of a2a+p2p.
Result<int> inner_size(const std::vector<int64_t>& sizes, int cp) {
  if (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0 && sizes[0] * sizes[1] == cp) return static_cast<int>(sizes[0]);
  return fail(ErrorCode::kBadArgument, fmt::format("{} are not two sizes whose product is {} = {}", kSizes, kCp, cp),
              "give the sizes of the a2a and of the p2p groups, as in 2,4 for 8 ranks");
}

// An all-to-all over `ranks` gives each a part of the heads.
Status check_heads(const Layout& l, CpComm comm, int ranks) {
  const auto divides = [&](int64_t heads, const char* knob) -> Status {
    if (heads % (int64_t{ranks} * l.tp) == 0) return {};
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} over {} ranks needs {} = {} to be a multiple of {} × tensor parallel {} = {}",
                            kComm, name(comm), ranks, knob, heads, ranks, l.tp, ranks * l.tp),
                "use p2p or all_gather, which do not cut heads, or a smaller inner group of a2a+p2p");
  };
  MB_TRY(divides(l.model.num_attention_heads, "model.num_attention_heads"));
  return divides(l.model.num_query_groups, "model.num_query_groups");
}

// Each context-parallel coordinate has programs of its own, and the steps of a ring are ops there: as many as this take
// minutes, and ten gigabytes, to plan.
Status check_programs(const Layout& l, int inner) {
  constexpr double kMostOps = 16e6;
  constexpr double kLayer = 64, kStep = 12;  // about what a layer has of ops, and for a step of its ring
  double ops = 0;
  for (const CpComm comm : l.cp_comm) {
    const int steps = comm == CpComm::kA2a ? 0 : comm == CpComm::kA2aP2p ? l.cp / inner : l.cp;
    ops += l.cp * (kLayer + kStep * steps);
  }
  if (ops <= kMostOps) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("{} = {} makes a program for each coordinate, with {} ops in all and {} {}: more than the {} "
                  "that are planned",
                  kCp, l.cp, format_count(ops, ""), kComm, l.config.parallel.cp_comm_type, format_count(kMostOps, "")),
      fmt::format("lower {}, or model.num_layers, to look at fewer ranks", kCp));
}

}  // namespace

const char* name(CpComm comm) {
  return kNames[static_cast<size_t>(comm)].name;
}

Status resolve_context_parallel(Layout& l, ParallelSizes& sizes) {
  sizes.cp = l.cp;
  const ParallelConfig& p = l.config.parallel;
  if (l.cp == 1) {
    if (p.hierarchical_context_parallel_sizes.empty()) return {};
    return fail(ErrorCode::kBadArgument, fmt::format("{} with {} = 1", kSizes, kCp), "leave it empty");
  }
  MB_TRY(check_model(l));
  if (l.sequence % (2 * l.cp) != 0)
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("{} = {} is no multiple of 2 × {} = {}",
                    l.packed() ? "packing.packed_sequence_size" : "train.seq_length", l.sequence, kCp, 2 * l.cp),
        "each rank holds two chunks of the sequence, an early and a late one");
  for (const int64_t encoder : {l.encoder_sequence, l.has_sequences() ? l.longest_encoder_part() : 0})
    if (encoder % (2 * l.cp) != 0)
      return fail(
          ErrorCode::kBadArgument,
          fmt::format("train.encoder_seq_length = {} is no multiple of 2 × {} = {}", encoder, kCp, 2 * l.cp),
          l.config.train.encoder_seq_length > 0
              ? "each rank holds two chunks of the encoder's sequence too"
              : "each rank holds two chunks of the encoder's sequence too, which is train.seq_length where it is left "
                "out: give train.encoder_seq_length");
  MB_ASSIGN(l.cp_comm, comm_by_layer(p.cp_comm_type, l.model.num_layers));
  for (const CpComm comm : l.cp_comm) {
    if (comm == CpComm::kA2aP2p && sizes.cp_a2a == 1) {
      MB_ASSIGN(sizes.cp_a2a, inner_size(p.hierarchical_context_parallel_sizes, l.cp));
    }
    if (comm == CpComm::kA2a) MB_TRY(check_heads(l, comm, l.cp));
    if (comm == CpComm::kA2aP2p) MB_TRY(check_heads(l, comm, sizes.cp_a2a));
  }
  if (!p.hierarchical_context_parallel_sizes.empty() &&
      std::count(l.cp_comm.begin(), l.cp_comm.end(), CpComm::kA2aP2p) == 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} without a layer of {} = a2a+p2p", kSizes, kComm),
                "leave it empty");
  return check_programs(l, sizes.cp_a2a);
}

}  // namespace mbb::trainer
