// One group's NCCL communicators, as one communicator of the trainer.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "trainer/comm/nccl/copy_exchange.h"
#include "trainer/comm/nccl/nccl_api.h"
#include "trainer/comm/nccl/nccl_groups.h"
#include "trainer/comm/pipeline_edges.h"

namespace mbb::trainer::cuda {

// What the communicators of a rank share.
class NcclProcess {
 public:
  NcclProcess(const NcclApi& functions, World& world, std::function<cudaStream_t()> stream)
      : api(functions), world_(world), stream_(std::move(stream)) {}
  ~NcclProcess();
  NcclProcess(const NcclProcess&) = delete;
  NcclProcess& operator=(const NcclProcess&) = delete;

  const NcclApi& api;
  cudaStream_t stream() const { return stream_(); }
  // Until a call has been taken; an error when it failed, or as soon as the world is ending.
  Status settle(ncclResult_t result, ncclComm_t comm, const std::string& doing);
  // The same of a call that goes on in the background whatever it returned: making communicators.
  Status finish(ncclResult_t result, ncclComm_t comm, const std::string& doing);
  // The same for every communicator, after a batch.
  Status settle_all(const std::string& doing);
  // Keeps it, for check() and the end.
  void keep(ncclComm_t comm) { all_.push_back(comm); }
  // True: as a symmetric window, which all members open together; false: for this rank's calls alone.
  Result<bool> register_memory(ncclComm_t comm, const NcclMemory& memory, bool symmetric, const char* group);
  // Before the memory goes, and before the communicators do.
  void forget_memory();
  Status check();
  // Each communicator on a thread of its own, joined when the result goes: aborting frees memory, which waits for all
  // that the device runs, so all must be told before any is waited for.
  std::vector<std::jthread> abort();
  bool batching = false;

 private:
  World& world_;
  std::function<cudaStream_t()> stream_;
  struct Registered {
    ncclComm_t comm = nullptr;
    ncclWindow_t window = nullptr;
    void* handle = nullptr;  // without a window
  };
  std::vector<ncclComm_t> all_;
  std::vector<Registered> registered_;
  bool aborted_ = false;
};

// Null where the rank is alone.
struct NcclComms {
  ncclComm_t main = nullptr;
  // [direction][colour]: neighbours along a pipeline; [direction][0]: all members, for messages between meshes.
  std::array<std::array<ncclComm_t, kEdgeColours>, 2> messages{};
  bool pipeline = false;
  CopyExchange* copies = nullptr;    // null: all messages are NCCL's
  CopyExchange* scatters = nullptr;  // null: reduce-scatters are
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclProcess& process, const NcclComms& comms, GroupKind kind, int rank, std::vector<int> members)
      : Communicator(kind, rank, std::move(members)), process_(process), comms_(comms) {}

  // do_collective() of a group of any size.
  Status run(const CommCall& call) { return do_collective(call); }

 protected:
  Status do_collective(const CommCall& call) override;
  Status do_send(const P2p& part) override { return do_exchange({&part, 1}); }
  Status do_recv(const P2p& part) override { return do_exchange({&part, 1}); }
  Status do_exchange(std::span<const P2p> parts) override;
  Status do_copy(void* to, const void* from, size_t bytes) override;

 private:
  struct End {
    ncclComm_t comm;
    int peer;
  };
  End end_of(const P2p& part) const;
  Status exchange_parts(const CommCall& call);

  NcclProcess& process_;
  NcclComms comms_;
};

}  // namespace mbb::trainer::cuda
