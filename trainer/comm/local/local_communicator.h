// Groups of rank threads: a meeting point for collectives and mailboxes for messages.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/local/hub.h"

namespace mbb::trainer {

// One message channel; one thread sends, one receives.
struct Mailbox {
  struct Message {
    DType dtype = DType::kU8;
    size_t count = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<Message> ring;  // as many as the mailbox holds, grown on demand; buffers are reused
  size_t first = 0;
  size_t unread = 0;
};

// What the members of one group share; fields are guarded by the hub's lock. A collective has two meetings: all have
// posted their call (then each does its share of copying or reducing without the lock, reading and writing the others'
// buffers), and all are done (then buffers may be reused).
struct LocalGroup {
  GroupKind kind = GroupKind::kWorld;
  std::vector<int> members;
  std::vector<CommCall> calls;  // by member; valid while `posted`
  std::vector<bool> posted;
  size_t arrived = 0;
  size_t done = 0;
  uint64_t round = 0;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;  // (source·n + destination)·2 + direction; made on first use

  Mailbox& mailbox(int source, int destination, PipeDirection direction);
  std::string text() const;  // "tp {0,1}"
};

// Finds or makes the group of the n-th call with the same kind and members.
class LocalGroups {
 public:
  explicit LocalGroups(int ranks) : joined_(static_cast<size_t>(ranks)) {}

  // Under the hub's lock.
  std::shared_ptr<LocalGroup> join(int rank, GroupKind kind, const std::vector<int>& members);
  // kMismatch when a mailbox still holds messages.
  Status check_all_received() const;

 private:
  using Key = std::pair<GroupKind, std::vector<int>>;
  std::vector<std::map<Key, size_t>> joined_;  // by rank: calls so far
  std::map<Key, std::vector<std::shared_ptr<LocalGroup>>> groups_;
};

// One rank thread's door.
class LocalWorld final : public World {
 public:
  LocalWorld(Hub& hub, LocalGroups& groups, int rank, size_t mailbox_messages)
      : hub_(hub), groups_(groups), rank_(rank), mailbox_messages_(mailbox_messages) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  using World::group;
  Result<std::unique_ptr<Communicator>> group(GroupKind kind, const std::vector<int>& members) override;
  Result<std::unique_ptr<Communicator>> group(GroupKind kind, const std::vector<int>& members,
                                              RankMemory& memory) override;
  bool one_process() const override { return true; }
  Status check() override;
  void at(std::string_view path, uint64_t call) override { hub_.at(rank_, path, call); }

 private:
  Hub& hub_;
  LocalGroups& groups_;
  int rank_;
  size_t mailbox_messages_;
};

}  // namespace mbb::trainer
