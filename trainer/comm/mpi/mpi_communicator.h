// One process's place in a group: collectives built from messages, summed as rank threads sum.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/mpi/control.h"
#include "trainer/comm/mpi/mpi_table.h"

namespace mbb::trainer {

struct MpiMessage;

// What the communicators of a process share.
class MpiProcess {
 public:
  MpiProcess(const MpiTable& table, Control& side_channel);
  ~MpiProcess();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  const MpiTable& mpi;
  Control& control;
  // A communicator that is gone leaves its group and the messages that are still on their way.
  void leave(void* group, std::deque<std::unique_ptr<MpiMessage>> messages);
  // Until the messages left behind have gone.
  Status drain();
  // When all ranks have returned well.
  void close_groups();

 private:
  std::deque<std::unique_ptr<MpiMessage>> messages_;
  std::vector<void*> groups_;
};

// Parts on their way. Buffers must outlive them, or the world must have ended: then MPI is not called any more.
class MpiTransfers {
 public:
  MpiTransfers(MpiProcess& process, void* group) : process_(process), group_(group) {}

  Status send(const void* data, size_t bytes, int peer, int tag);
  Status receive(void* data, size_t bytes, int peer, int tag);
  // Makes progress and says whether all are done; an error once the world has ended.
  Result<bool> test();
  // Sleeps until all are done, or the world ends. `text` says what the rank waits for; world ranks in `from` must send
  // something, and the world ends when one of them has returned.
  Status wait(const std::function<std::string()>& text, const std::vector<int>& from);

 private:
  MpiProcess& process_;
  void* group_;
  std::vector<MpiRequest> requests_;
};

// A copy of a sent message, until it has gone.
struct MpiMessage {
  std::vector<std::byte> header, payload;
  MpiTransfers transfers;
  int to;            // world rank
  std::string text;  // for reports
  Status wait();
};

class MpiCommunicator final : public Communicator {
 public:
  // Takes `group`, an open group of these members.
  MpiCommunicator(MpiProcess& process, void* group, GroupKind kind, int member, std::vector<int> members);
  ~MpiCommunicator() override;

 protected:
  Status do_collective(const CommCall& call) override;
  Status do_send(const P2p& part) override;
  Status do_recv(const P2p& part) override;

 private:
  size_t members_count() const { return members().size(); }
  std::string text() const;
  Status meet(const CommCall& call);
  Status move(const CommCall& call);
  Status reduce_scatter_share(const CommCall& call);
  Status all_reduce_shares(const CommCall& call);
  Status reduce_own(const CommCall& call, size_t first, size_t end, void* result);
  Status end(ErrorCode code, std::string what, std::string hint);
  Status let_leave(size_t most);

  MpiProcess& process_;
  void* group_;
  std::deque<std::unique_ptr<MpiMessage>> outgoing_;
};

}  // namespace mbb::trainer
