// The world's communicator, and those that are split from it.
#include "trainer/comm/nccl/nccl_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// Inboxes of reduce-scatters by copy engines, on a member. Each piece waits for products to leave SMs to its sum: the
// gradients of a layer of 8B should be one.
constexpr size_t kMostOfInboxes = size_t{1} << 30U;

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// All ranks have one NCCL, or an error names two that have not.
Status same_version(const NcclApi& api, Communicator& everyone) {
  int32_t mine = 0;
  MB_TRY(api.good(api.version(&mine), "asking its version"));
  std::vector<int32_t> all(static_cast<size_t>(everyone.size()));
  MB_TRY(everyone.all_gather(&mine, all.data(), 1, DType::kI32));
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      return fail(ErrorCode::kMismatch,
                  fmt::format("rank {} has NCCL {} where rank 0 has {}", r, version_text(all[r]), version_text(all[0])),
                  "give every rank the same libnccl.so.2 (LD_LIBRARY_PATH)");
  return {};
}

class Groups final : public NcclGroups {
 public:
  Groups(const NcclApi& api, World& world, std::function<cudaStream_t()> stream)
      : world_of_ranks_(world), rank_(world.rank()), process_(api, world, std::move(stream)) {}

  Status join(World& world) {
    const NcclApi& api = process_.api;
    std::vector<int> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    MB_ASSIGN(auto everyone, world.group(GroupKind::kWorld, all));
    MB_TRY(same_version(api, *everyone));
    ncclUniqueId id{};
    if (world.rank() == 0) MB_TRY(api.good(api.unique_id(&id), "making the world's id"));
    MB_TRY(everyone->broadcast(&id, &id, sizeof id, DType::kU8, 0));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = api.init(&world_, world.size(), id, world.rank(), &config);
    if (world_ != nullptr) process_.keep(world_);
    return process_.finish(begun, world_, "meeting all ranks");
  }

  Result<std::unique_ptr<Communicator>> group(GroupKind kind, const Mesh& mesh, const NcclLimits& limits) override {
    const std::vector<int> members = mesh.group(kind, rank_);
    const int index = mesh.group_index(kind, rank_), size = static_cast<int>(members.size());
    NcclComms comms;
    MB_ASSIGN(comms.main, split(size > 1 ? members.front() : -1, index, limits, kind));
    if (comms.main != nullptr) opened_.push_back({comms.main, members, kind});
    comms.pipeline = kind == GroupKind::kPp;
    const bool between_meshes = kind == GroupKind::kModel && mesh.pp(MeshRole::kEncoder) > 0;
    for (auto& of_direction : comms.messages) {
      for (int colour = 0; comms.pipeline && colour < kEdgeColours; ++colour) {
        const Edge edge = edges_of(index, size)[static_cast<size_t>(colour)];
        const int pair = edge.index < 0 ? -1 : members[static_cast<size_t>(edge.index)];
        MB_ASSIGN(of_direction[static_cast<size_t>(colour)], split(pair, edge.source ? 0 : 1, {}, kind));
        if (pair >= 0) MB_TRY(connect(of_direction[static_cast<size_t>(colour)], 2));
      }
      if (between_meshes) {
        MB_ASSIGN(of_direction[0], split(size > 1 ? members.front() : -1, index, {}, kind));
        if (size > 1) MB_TRY(connect(of_direction[0], size));
      }
    }
    MB_ASSIGN(comms.copies, copies(kind, mesh, size > 1 ? limits.copied : 0));
    const size_t piece = size > 1 ? std::min(limits.scattered, kMostOfInboxes / static_cast<size_t>(size - 1)) : 0;
    MB_ASSIGN(comms.scatters, copies(kind, mesh, piece));
    return std::unique_ptr<Communicator>(std::make_unique<NcclCommunicator>(process_, comms, kind, index, members));
  }

  // A window is opened by all members together, so all of them must choose it.
  Result<NcclRegistered> register_memory(std::span<const NcclMemory> memory,
                                         const std::function<bool(std::span<const int>)>& alike) override {
    NcclRegistered done;
    for (const Opened& group : opened_) {
      const bool symmetric = alike(group.members);
      bool windows = symmetric;
      for (const NcclMemory& piece : memory) {
        MB_ASSIGN(const bool window, process_.register_memory(group.comm, piece, symmetric, name(group.kind)));
        windows = windows && window;
      }
      ++done.communicators;
      done.windows += windows ? 1 : 0;
    }
    return done;
  }
  void forget_memory() override { process_.forget_memory(); }

  Status begin_batch() override {
    process_.batching = true;
    return process_.api.good(process_.api.group_start(), "beginning a batch");
  }
  Status end_batch() override {
    process_.batching = false;
    const ncclResult_t ended = process_.api.group_end();
    if (ended != ncclInProgress) return process_.settle(ended, world_, "a batch of messages");
    return process_.settle_all("a batch of messages");
  }
  Status check() override { return process_.check(); }
  void abort(const std::function<void()>& meanwhile) override {
    const auto aborting = process_.abort();
    for (const auto& copies : copies_) copies->release(process_.stream());
    meanwhile();
  }
  int64_t inbox_bytes() const override {
    return std::accumulate(copies_.begin(), copies_.end(), int64_t{0},
                           [](int64_t sum, const auto& copies) { return sum + copies->bytes(); });
  }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  // Null where nobody asked, and where SMs must do.
  Result<CopyExchange*> copies(GroupKind kind, const Mesh& mesh, size_t largest) {
    if (largest == 0) return nullptr;
    MB_ASSIGN(auto members, world_of_ranks_.group(kind, mesh));
    std::string why;
    MB_ASSIGN(auto opened, CopyExchange::open(std::move(members), largest, &why));
    if (opened == nullptr) {
      notes_.push_back(fmt::format("{}: what copy engines were to move takes SMs ({})", name(kind), why));
      return nullptr;
    }
    copies_.push_back(std::move(opened));
    return copies_.back().get();
  }

  // Every rank calls it; -1: this one has no part.
  Result<ncclComm_t> split(int colour, int key, const NcclLimits& limits, GroupKind kind) {
    // Meeting the others must not block, or nobody sees that one is gone; a communicator whose calls do not block would
    // start a thread for each of them.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (limits.max_ctas > 0) config.minCTAs = 1, config.maxCTAs = limits.max_ctas;
    if (limits.cga_size > 0) config.cgaClusterSize = limits.cga_size;
    ncclComm_t made = nullptr;
    const std::string doing = fmt::format("splitting off {}", name(kind));
    const ncclResult_t begun =
        process_.api.split(world_, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key, &made, &config);
    MB_TRY(process_.finish(begun, world_, doing));
    if (colour < 0) return ncclComm_t{nullptr};
    if (made == nullptr) return fail(ErrorCode::kRankFailed, fmt::format("NCCL, {}: no communicator came", doing));
    process_.keep(made);
    MB_TRY(process_.finish(ncclSuccess, made, doing));
    return made;
  }

  // A byte to and from every member.
  Status connect(ncclComm_t comm, int members) {
    const NcclApi& api = process_.api;
    const auto each = static_cast<size_t>(members);
    std::byte* bytes = nullptr;
    MB_TRY(ok(cudaMalloc(reinterpret_cast<void**>(&bytes), 2 * each), "connecting to neighbours"));
    const std::unique_ptr<std::byte, void (*)(std::byte*)> freed(bytes, [](std::byte* p) { cudaFree(p); });
    MB_TRY(api.good(api.group_start(), "connecting"));
    for (int peer = 0; peer < members; ++peer) {
      const auto at = static_cast<size_t>(peer);
      MB_TRY(api.good(api.send(bytes + at, 1, ncclInt8, peer, comm, process_.stream()), "connecting", comm));
      MB_TRY(api.good(api.receive(bytes + each + at, 1, ncclInt8, peer, comm, process_.stream()), "connecting", comm));
    }
    Status done = process_.settle(api.group_end(), comm, "connecting to neighbours");
    while (done) {
      const cudaError_t state = cudaStreamQuery(process_.stream());
      if (state != cudaErrorNotReady) {
        done = ok(state, "connecting to neighbours");
        break;
      }
      done = process_.check();
    }
    if (!done) (void)process_.abort();
    return done;
  }

  struct Opened {
    ncclComm_t comm = nullptr;
    std::vector<int> members;
    GroupKind kind{};
  };

  World& world_of_ranks_;
  const int rank_;
  NcclProcess process_;
  std::vector<std::unique_ptr<CopyExchange>> copies_;  // gone before what NCCL waits for
  std::vector<std::string> notes_;
  ncclComm_t world_ = nullptr;
  std::vector<Opened> opened_;  // groups of more than one
};

}  // namespace

Result<std::unique_ptr<NcclGroups>> NcclGroups::open(World& world, std::function<cudaStream_t()> stream) {
  MB_ASSIGN(const NcclApi* const api, nccl_api());
  auto groups = std::make_unique<Groups>(*api, world, std::move(stream));
  MB_TRY(groups->join(world));
  return std::unique_ptr<NcclGroups>(std::move(groups));
}

}  // namespace mbb::trainer::cuda
