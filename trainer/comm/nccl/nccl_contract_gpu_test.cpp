// The communicator contract on NCCL, a process a GPU: every collective and message from host values through device
// buffers, enqueued and as replayed graphs; batches over several groups, and windows on registered memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "trainer/comm/communicator_contract.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/comm/nccl/nccl_api.h"
#include "trainer/comm/nccl/nccl_groups.h"
#include "trainer/comm/socket/rank_of_this_program_test.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// Bytes of the host and their place on the device.
struct Mirror {
  std::byte* host;
  std::byte* device;
  size_t bytes;

  std::byte* of(const void* data) const { return device + (static_cast<const std::byte*>(data) - host); }
  void send() const {
    if (bytes == 0) return;
    EXPECT_EQ(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  void fetch(void* to, size_t size) const {
    if (size == 0) return;
    EXPECT_EQ(cudaMemcpy(to, of(to), size, cudaMemcpyDeviceToHost), cudaSuccess);
  }
};

// A rank with its device, its stream and its door to the others. Its memory stays as long as the communicators do:
// NCCL lets go of what a graph had registered some time after the graph is gone.
struct GpuRank {
  World& world;
  cudaStream_t stream = nullptr;
  std::unique_ptr<NcclGroups> groups;
  std::unique_ptr<Communicator> everyone;  // of the host
  static constexpr size_t kMemory = 1 << 30, kAligned = 256;
  std::unique_ptr<DeviceBytes> memory;
  size_t used = 0;
  uint64_t calls = 0;

  explicit GpuRank(World& w) : world(w) {}
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;
  ~GpuRank() {
    groups.reset();
    if (stream != nullptr) cudaStreamDestroy(stream);
  }

  Status open() {
    MB_TRY(ok(cudaSetDevice(world.rank()), "the rank's device"));
    MB_TRY(ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
    memory = std::make_unique<DeviceBytes>(kMemory);
    MB_ASSIGN(groups, NcclGroups::open(world, [this] { return stream; }));
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    MB_ASSIGN(everyone, world.group(GroupKind::kWorld, all));
    return {};
  }
  // `first`: the places of all others are free again.
  Mirror mirror(const void* data, size_t bytes, bool first) {
    if (first) used = 0;
    auto* const at = static_cast<std::byte*>(memory->get()) + used;
    used += (bytes + kAligned) / kAligned * kAligned;
    EXPECT_LE(used, kMemory);
    return {static_cast<std::byte*>(const_cast<void*>(data)), at, bytes};
  }
  // A peer that is gone ends the wait, and what the device waits for.
  Status wait() {
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream);
      if (state != cudaErrorNotReady) return ok(state, "communicating");
      if (const Status well = groups->check(); !well) {
        groups->abort([] {});
        return well;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }
  // Enqueues `work` after `fill`, or captures it and replays it twice: on what lay there, then on what `fill` brings.
  Status run(bool replayed, const std::function<Status()>& fill, const std::function<Status()>& work) {
    world.at("contract", ++calls);
    if (!replayed) {
      MB_TRY(fill());
      MB_TRY(work());
      return wait();
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    MB_TRY(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing"));
    Status done = work();
    const cudaError_t captured = cudaStreamEndCapture(stream, &graph);
    if (done) done = ok(captured, "capturing");
    if (done) done = ok(cudaGraphInstantiate(&instance, graph, 0), "a graph");
    for (const bool filled : {false, true}) {
      if (done && filled) done = fill();
      if (done) done = ok(cudaGraphLaunch(instance, stream), "a replay");
      if (done) done = wait();
    }
    if (instance != nullptr) cudaGraphExecDestroy(instance);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return done;
  }
};

// Values of the host through a communicator of devices.
class OverDevice final : public Communicator {
 public:
  OverDevice(GpuRank& rank, Communicator& inner, bool replayed)
      : Communicator(inner.kind(), inner.rank(), inner.members()), gpu_(rank), inner_(inner), replayed_(replayed) {}

 protected:
  Status do_collective(const CommCall& call) override {
    if (call.op == CommOp::kBarrier) return barrier_of_host();
    const auto n = static_cast<size_t>(size());
    const auto total = [](std::span<const size_t> counts) {
      size_t sum = 0;
      for (const size_t count : counts) sum += count;
      return sum;
    };
    const bool varying = call.op == CommOp::kAllToAllV, exchanges = call.op == CommOp::kAllToAll;
    const size_t sends = varying ? total(call.send_counts)
                                 : call.count * (exchanges || call.op == CommOp::kReduceScatter ? n : 1),
                 receives = varying ? total(call.recv_counts)
                                    : call.count * (exchanges || call.op == CommOp::kAllGather ? n : 1);
    const size_t send_bytes = bytes_of(call.dtype, sends), recv_bytes = bytes_of(call.dtype, receives);
    // In place, one side holds the other.
    const auto* const send = static_cast<const std::byte*>(call.send);
    const auto* const recv = static_cast<const std::byte*>(call.recv);
    const bool in_send = recv >= send && recv < send + send_bytes, in_recv = send >= recv && send < recv + recv_bytes;
    const Mirror out = gpu_.mirror(in_send ? call.send : call.recv, in_send ? send_bytes : recv_bytes, true);
    const Mirror in = gpu_.mirror(call.send, in_send || in_recv ? 0 : send_bytes, false);
    CommCall on_device = call;
    on_device.send = in_send || in_recv ? out.of(call.send) : in.of(call.send);
    on_device.recv = out.of(call.recv);
    MB_TRY(gpu_.run(
        replayed_,
        [&]() -> Status {
          out.send();
          in.send();
          return {};
        },
        [&] { return as_called(on_device); }));
    out.fetch(call.recv, recv_bytes);
    return {};
  }
  Status do_send(const P2p& part) override { return messages({&part, 1}); }
  Status do_recv(const P2p& part) override { return messages({&part, 1}); }
  Status do_exchange(std::span<const P2p> parts) override { return messages(parts); }

 private:
  Status as_called(const CommCall& c) {
    switch (c.op) {
      case CommOp::kAllGather: return inner_.all_gather(c.send, c.recv, c.count, c.dtype);
      case CommOp::kReduceScatter: return inner_.reduce_scatter(c.send, c.recv, c.count, c.dtype, c.reduce);
      case CommOp::kAllReduce: return inner_.all_reduce(c.send, c.recv, c.count, c.dtype, c.reduce);
      case CommOp::kBroadcast: return inner_.broadcast(c.send, c.recv, c.count, c.dtype, c.root);
      case CommOp::kAllToAll: return inner_.all_to_all(c.send, c.recv, c.count, c.dtype);
      default: return inner_.all_to_all_v(c.send, c.send_counts, c.recv, c.recv_counts, c.dtype);
    }
  }
  // Streams have none: the host waits through its own.
  Status barrier_of_host() {
    const Status refused = inner_.barrier();
    if (refused || refused.error().code != ErrorCode::kUnavailable)
      return fail(ErrorCode::kNumerics, "a barrier of devices was not refused");
    return gpu_.everyone->barrier();
  }
  Status messages(std::span<const P2p> parts) {
    std::vector<Mirror> mirrors;
    std::vector<P2p> on_device(parts.begin(), parts.end());
    for (P2p& part : on_device) {
      mirrors.push_back(gpu_.mirror(part.buffer, bytes_of(part.dtype, part.count), mirrors.empty()));
      part.buffer = mirrors.back().device;
    }
    MB_TRY(gpu_.run(
        replayed_,
        [&]() -> Status {
          for (const Mirror& mirror : mirrors) mirror.send();
          return {};
        },
        [&]() -> Status {
          if (parts.size() > 1) return inner_.exchange(on_device);
          const P2p& p = on_device[0];
          return p.kind == P2p::Kind::kSend ? inner_.send(p.buffer, p.count, p.dtype, p.peer, p.direction)
                                            : inner_.recv(p.buffer, p.count, p.dtype, p.peer, p.direction);
        }));
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].kind == P2p::Kind::kRecv) mirrors[i].fetch(parts[i].buffer, mirrors[i].bytes);
    return {};
  }

  GpuRank& gpu_;
  Communicator& inner_;
  bool replayed_;
};

struct Group {
  GroupKind kind;
  ParallelSizes sizes;
  NcclLimits limits = {};
};

// Each kind of communicator that a run opens, over all ranks and over halves of them; one whose reduce-scatters go by
// copy engines, in several pieces.
std::vector<Group> groups_of(int ranks) {
  std::vector<Group> all{{GroupKind::kTp, {.tp = ranks}},
                         {GroupKind::kTp, {.tp = ranks}, {.max_ctas = 4, .cga_size = 2}},
                         {GroupKind::kCp, {.cp = ranks}},
                         {GroupKind::kPp, {.pp = ranks}},
                         {GroupKind::kDpCp, {.dp = ranks}},
                         {GroupKind::kDpCp, {.dp = ranks}, {.scattered = 100'000}},
                         {GroupKind::kEp, {.dp = ranks, .ep = ranks}}};
  if (ranks % 2 == 0) all.push_back({GroupKind::kModel, {.dp = ranks / 2, .encoder_pp = 1}});
  if (ranks > 2 && ranks % 2 == 0) {
    all.push_back({GroupKind::kTp, {.tp = 2, .dp = ranks / 2}});
    all.push_back({GroupKind::kDp, {.tp = 2, .dp = ranks / 2}});
  }
  return all;
}

// Everything on one group, then more than NCCL's buffers hold.
Status check_group(GpuRank& rank, Communicator& group, bool replayed) {
  OverDevice comm(rank, group, replayed);
  const auto floats = group.size() > 2 ? contract::Floats::kWhole : contract::Floats::kWide;
  MB_TRY(contract::check_contract(comm, replayed ? 52 : 51, floats));
  constexpr size_t kMany = 2'000'002;
  MB_TRY(contract::check_reductions(comm, DType::kBf16, kMany / 8, 53, floats));
  MB_TRY(contract::check_movement(comm, DType::kE4M3, kMany, 54));
  MB_TRY(contract::check_varying(comm, DType::kBf16, kMany, 55));
  return contract::check_messages(comm, DType::kBf16, kMany, 56);
}

Status keeps_the_contract(World& world) {
  GpuRank rank(world);
  MB_TRY(rank.open());
  for (const Group& group : groups_of(world.size())) {
    MB_ASSIGN(const Mesh mesh, Mesh::make(group.sizes));
    MB_ASSIGN(const auto comm, rank.groups->group(group.kind, mesh, group.limits));
    for (const bool replayed : {false, true})
      if (const Status kept = check_group(rank, *comm, replayed); !kept)
        return tl::unexpected<Error>(Error(kept.error())
                                         .during(fmt::format("{} of {}, {}", name(group.kind), describe(group.sizes),
                                                             replayed ? "replayed" : "enqueued")));
  }
  return {};
}

// Both directions of a pipeline and a ring of another group, each rank sending before it receives.
Status batches_progress_together(World& world) {
  GpuRank rank(world);
  MB_TRY(rank.open());
  const int n = world.size(), next = (world.rank() + 1) % n, before = (world.rank() + n - 1) % n;
  MB_ASSIGN(const Mesh stages, Mesh::make({.pp = n}));
  MB_ASSIGN(const Mesh ring, Mesh::make({.cp = n}));
  MB_ASSIGN(const auto pp, rank.groups->group(GroupKind::kPp, stages, {}));
  MB_ASSIGN(const auto cp, rank.groups->group(GroupKind::kCp, ring, {}));
  struct Message {
    Communicator* comm;
    int to, from;
    PipeDirection direction;
  };
  const std::array<Message, 3> messages{Message{pp.get(), next, before, PipeDirection::kForward},
                                        Message{pp.get(), before, next, PipeDirection::kBackward},
                                        Message{cp.get(), next, before, PipeDirection::kForward}};
  constexpr size_t kBytes = 12'000'000;
  std::vector<Mirror> out, in;
  std::vector<contract::Bytes> sent, got(messages.size(), contract::Bytes(kBytes));
  for (size_t m = 0; m < messages.size(); ++m) sent.push_back(contract::random_bytes(60 + m, world.rank(), kBytes));
  for (size_t m = 0; m < messages.size(); ++m) {
    out.push_back(rank.mirror(sent[m].data(), kBytes, m == 0));
    in.push_back(rank.mirror(got[m].data(), kBytes, false));
  }
  const auto fill = [&]() -> Status {
    for (const Mirror& mirror : out) mirror.send();
    return {};
  };
  const auto batch = [&]() -> Status {
    MB_TRY(rank.groups->begin_batch());
    for (size_t m = 0; m < messages.size(); ++m) {
      const Message& message = messages[m];
      MB_TRY(message.comm->send(out[m].device, kBytes, DType::kU8, message.to, message.direction));
      MB_TRY(message.comm->recv(in[m].device, kBytes, DType::kU8, message.from, message.direction));
    }
    return rank.groups->end_batch();
  };
  for (const bool replayed : {false, true}) {
    MB_TRY(rank.run(replayed, fill, batch));
    for (size_t m = 0; m < messages.size(); ++m) {
      in[m].fetch(got[m].data(), kBytes);
      MB_TRY(contract::expect_equal(got[m], contract::random_bytes(60 + m, messages[m].from, kBytes),
                                    fmt::format("message {} of a batch", m)));
      std::fill(got[m].begin(), got[m].end(), std::byte{0});
      in[m].send();
    }
  }
  return {};
}

// A ring's messages by copy engines, of any size up to the largest, several in a row.
Status rings_turn(World& world) {
  GpuRank rank(world);
  MB_TRY(rank.open());
  const int n = world.size(), next = (world.rank() + 1) % n, before = (world.rank() + n - 1) % n;
  MB_ASSIGN(const Mesh mesh, Mesh::make({.cp = n}));
  constexpr size_t kLargest = 3'000'000;
  MB_ASSIGN(const auto ring, rank.groups->group(GroupKind::kCp, mesh, {.copied = kLargest}));
  if (!rank.groups->notes().empty()) return fail(ErrorCode::kUnavailable, rank.groups->notes()[0]);
  uint64_t seed = 80;
  for (const size_t bytes : {size_t{1}, size_t{777}, kLargest})
    for (const bool replayed : {false, true}) {
      ++seed;
      const contract::Bytes sent = contract::random_bytes(seed, world.rank(), bytes);
      contract::Bytes got(bytes);
      const Mirror out = rank.mirror(sent.data(), bytes, true), in = rank.mirror(got.data(), bytes, false);
      const std::array<P2p, 2> parts{
          P2p{P2p::Kind::kSend, next, PipeDirection::kForward, out.device, bytes, DType::kU8, true},
          P2p{P2p::Kind::kRecv, before, PipeDirection::kForward, in.device, bytes, DType::kU8, true}};
      const auto fill = [&]() -> Status {
        out.send();
        return {};
      };
      const auto turn = [&]() -> Status {
        for (int times = 0; times < 3; ++times) MB_TRY(ring->exchange(parts));
        return {};
      };
      MB_TRY(rank.run(replayed, fill, turn));
      in.fetch(got.data(), bytes);
      MB_TRY(contract::expect_equal(got, contract::random_bytes(seed, before, bytes),
                                    fmt::format("{} bytes of a ring", bytes)));
    }
  return {};
}

// Memory that every group opens a window on: collectives work on it, also in place, and as a replay.
Status windows_open(World& world) {
  GpuRank rank(world);
  MB_TRY(rank.open());
  MB_ASSIGN(const NcclApi* const api, nccl_api());
  const int n = world.size();
  const auto size = static_cast<size_t>(n);
  MB_ASSIGN(const Mesh mesh, Mesh::make({.tp = n}));
  MB_ASSIGN(const auto wide, rank.groups->group(GroupKind::kTp, mesh, {}));
  MB_ASSIGN(const auto narrow, rank.groups->group(GroupKind::kTp, mesh, {.max_ctas = 2}));
  constexpr size_t kBytes = 4 << 20;
  void* data = nullptr;
  MB_TRY(api->good(api->allocate(&data, size * kBytes), "memory for windows"));
  const std::array<NcclMemory, 1> memory{NcclMemory{data, size * kBytes}};
  MB_ASSIGN(const NcclRegistered done, rank.groups->register_memory(memory, [](std::span<const int>) { return true; }));
  if (done.communicators != 2 || done.windows != 2)
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} windows on {} communicators, 2 on 2 expected", done.windows, done.communicators));
  auto* const bytes = static_cast<std::byte*>(data);
  std::byte* const own = bytes + static_cast<size_t>(world.rank()) * kBytes;
  contract::Bytes got(size * kBytes), expected;
  for (int m = 0; m < n; ++m) {
    const contract::Bytes part = contract::random_bytes(70, m, kBytes);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const auto fill = [&]() -> Status {
    MB_TRY(ok(cudaMemset(data, 0, size * kBytes), "clearing"));
    MB_TRY(ok(cudaMemcpy(own, expected.data() + (own - bytes), kBytes, cudaMemcpyHostToDevice), "a part"));
    return ok(cudaStreamSynchronize(nullptr), "a part");
  };
  for (Communicator* const group : {wide.get(), narrow.get()})
    for (const bool replayed : {false, true}) {
      MB_TRY(rank.run(replayed, fill, [&] { return group->all_gather(own, data, kBytes, DType::kU8); }));
      MB_TRY(ok(cudaMemcpy(got.data(), data, got.size(), cudaMemcpyDeviceToHost), "what was gathered"));
      MB_TRY(contract::expect_equal(got, expected, "all_gather through a window"));
    }
  rank.groups->forget_memory();
  return api->good(api->free(data), "memory of windows");
}

// What a rank's process does, as a test of its own; DISABLED_ keeps it out of a plain run.
void as_rank(Status (*rank_main)(World&)) {
  const auto place = place_if_any();
  if (!place) GTEST_SKIP() << "not started as a rank";
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // as runs do
  const Status status = run_mpi_rank(rank_main, {.no_progress_ms = 60'000});
  if (!status || testing::Test::HasFailure())
    fmt::print("UNEXPECTED rank {}: '{}'\n", place->rank, status ? "" : format(status.error()));
  else
    fmt::print("EXPECTED of rank {}\n", place->rank);
  std::fflush(stdout);
  _exit(0);
}
TEST(NcclContractRank, DISABLED_KeepsTheContract) {
  as_rank(keeps_the_contract);
}
TEST(NcclContractRank, DISABLED_Batches) {
  as_rank(batches_progress_together);
}
TEST(NcclContractRank, DISABLED_Rings) {
  as_rank(rings_turn);
}
TEST(NcclContractRank, DISABLED_Windows) {
  as_rank(windows_open);
}

void on_all_gpus(const char* name) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
  if (gpus < 2) GTEST_SKIP() << "two GPUs are needed, " << gpus << " found";
  if (const auto api = nccl_api(); !api) GTEST_SKIP() << api.error().what;
  const int ranks = std::min(gpus, 8);
  const std::string said = in_processes(ranks, fmt::format("NcclContractRank.DISABLED_{}", name));
  EXPECT_EQ(said.find("UNEXPECTED"), std::string::npos) << said;
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_NE(said.find(fmt::format("EXPECTED of rank {}\n", rank)), std::string::npos) << said;
}
TEST(NcclContract, EveryGroupOfGpusKeepsIt) {
  on_all_gpus("KeepsTheContract");
}
TEST(NcclContract, BatchesProgressTogether) {
  on_all_gpus("Batches");
}
TEST(NcclContract, RingsTurnByCopyEngines) {
  on_all_gpus("Rings");
}
TEST(NcclContract, RegisteredMemoryOpensAWindowInEveryGroup) {
  on_all_gpus("Windows");
}

}  // namespace
}  // namespace mbb::trainer::cuda
