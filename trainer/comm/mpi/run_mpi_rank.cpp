// From the launcher's environment to a world of processes.
#include "trainer/comm/mpi/run_mpi_rank.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "profiler/base/clock.h"
#include "trainer/comm/mpi/mpi_communicator.h"
#include "trainer/comm/rank_edge.h"
#include "trainer/comm/socket/socket_mesh.h"

namespace mbb::trainer {
namespace {

constexpr int kAddressTag = 1;
using Address = std::array<char, 512>;

class MpiWorld final : public World {
 public:
  MpiWorld(MpiProcess& process, int rank, int size) : process_(process), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  using World::group;
  Result<std::unique_ptr<Communicator>> group(GroupKind kind, const std::vector<int>& members) override {
    MB_ASSIGN(const int member, member_of(rank_, size_, kind, members));
    MB_TRY(process_.control.check());
    process_.control.waits(fmt::format("the opening of {}", describe_group(kind, members)));
    void* group = nullptr;
    MpiText error{};
    const bool good = process_.mpi.group_open(members.data(), static_cast<int32_t>(members.size()),
                                              static_cast<int32_t>(kind), &group, &error);
    process_.control.waits({});
    MB_TRY(mpi_answer(good, error));
    return std::make_unique<MpiCommunicator>(process_, group, kind, member, members);
  }
  void at(std::string_view path, uint64_t call) override { process_.control.at(path, call); }
  Status check() override { return process_.control.check(); }
  void waits_for_device(bool waits) override { process_.control.waits(waits ? Control::kDevice : ""); }

 private:
  MpiProcess& process_;
  int rank_, size_;
};

// The side channel that would tell of rank 0's end is not there yet.
Status wait_for_first(MpiTransfers& transfers) {
  for (const int64_t until = monotonic_ns() + kMeetingMs * 1'000'000;;) {
    MB_ASSIGN(const bool came, transfers.test());
    if (came) return {};
    if (monotonic_ns() >= until)
      return fail(ErrorCode::kTimeout, fmt::format("rank 0 met the others and fell silent for {} s", kMeetingMs / 1000),
                  "look at what rank 0 says, or how its process ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Rank 0's address goes through MPI, where everybody is already.
Status meet(const MpiTable& mpi, Control& control, int rank, int size, bool one_host) {
  MpiProcess process(mpi, control);
  MpiTransfers transfers(process, nullptr);
  Address address{};
  if (rank != 0) {
    MB_TRY(transfers.receive(address.data(), address.size(), 0, kAddressTag));
    MB_TRY(wait_for_first(transfers));
    return control.connect(address.data());
  }
  MB_ASSIGN(const std::string own, control.open_door(one_host));
  if (own.size() >= address.size()) return fail(ErrorCode::kIo, "rank 0's address is too long: " + own);
  own.copy(address.data(), own.size());
  for (int other = 1; other < size; ++other) MB_TRY(transfers.send(address.data(), address.size(), other, kAddressTag));
  MB_TRY(transfers.wait([] { return std::string("the others to take rank 0's address"); }, {}));
  return control.await_all();
}

}  // namespace

Status run_mpi_rank(const std::function<Status(World&)>& rank_main, const ControlOptions& options) {
  MB_ASSIGN(const auto place, process_place());
  if (!place) return fail(ErrorCode::kBadArgument, "no launcher started this process", "run ranks as threads");
  const bool sockets = place->launcher != Launcher::kMpi;
  MB_ASSIGN(const MpiTable* const mpi, sockets ? socket_table(*place, kMeetingMs, options.meanwhile) : mpi_table());
  int32_t rank = 0, size = 0;
  MpiText version{}, error{};
  MB_TRY(mpi_answer(mpi->start(&rank, &size, &version, &error), error));
  if (place->size != size)
    return fail(ErrorCode::kMismatch,
                fmt::format("the launcher started {} processes, and MPI sees {} ({})", place->size, size,
                            std::string_view(version.text).substr(0, std::string_view(version.text).find(','))),
                "start with the mpirun of the MPI that mbbench was built with");
  MB_ASSIGN(std::unique_ptr<Control> control, Control::create(rank, size, options));
  MB_TRY(meet(*mpi, *control, rank, size, place->one_host));
  control->start();
  {
    MpiProcess process(*mpi, *control);
    MpiWorld world(process, rank, size);
    Status status = guarded(rank_main, world);
    if (status) status = process.drain();
    MB_TRY(control->finish(std::move(status)));
    process.close_groups();
  }
  control.reset();
  mpi->finish();
  return {};
}

}  // namespace mbb::trainer
