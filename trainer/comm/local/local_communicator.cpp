// The collectives and messages of rank threads.
#include "trainer/comm/local/local_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>

#include "profiler/base/clock.h"
#include "trainer/comm/rank_edge.h"
#include "trainer/comm/rank_memory.h"

namespace mbb::trainer {
namespace {

bool same_call(const CommCall& a, const CommCall& b) {
  return a.op == b.op && a.count == b.count && a.dtype == b.dtype && a.reduce == b.reduce && a.root == b.root;
}

// Waits until all members of a group have posted their call.
class ArrivalWait final : public Wait {
 public:
  ArrivalWait(const LocalGroup& group, size_t own) : group_(group), own_(own) {}
  bool ready() const override { return group_.arrived == group_.members.size(); }
  std::vector<int> missing() const override {
    std::vector<int> ranks;
    for (size_t m = 0; m < group_.members.size(); ++m)
      if (!group_.posted[m]) ranks.push_back(group_.members[m]);
    return ranks;
  }
  std::string text() const override { return describe(group_.calls[own_]) + " on " + group_.text(); }

 private:
  const LocalGroup& group_;
  size_t own_;
};

// Waits until all members have done their share of a round.
class DepartureWait final : public Wait {
 public:
  DepartureWait(const LocalGroup& group, uint64_t round) : group_(group), round_(round) {}
  bool ready() const override { return group_.round != round_; }
  std::vector<int> missing() const override { return {}; }
  std::string text() const override { return "the end of a collective on " + group_.text(); }

 private:
  const LocalGroup& group_;
  uint64_t round_;
};

class MailboxWait final : public Wait {
 public:
  MailboxWait(const LocalGroup& group, const Mailbox& box, const P2p& part, size_t capacity)
      : group_(group), box_(box), part_(part), capacity_(capacity) {}
  bool ready() const override { return part_.kind == P2p::Kind::kSend ? box_.unread < capacity_ : box_.unread > 0; }
  std::vector<int> missing() const override { return {group_.members[static_cast<size_t>(part_.peer)]}; }
  std::string text() const override {
    const bool sends = part_.kind == P2p::Kind::kSend;
    return fmt::format("{}({} {}, {}) {} rank {} on {}{}", sends ? "send" : "recv", part_.count, name(part_.dtype),
                       name(part_.direction), sends ? "to" : "from", missing()[0], group_.text(),
                       sends ? fmt::format(", whose mailbox holds {} unread messages", box_.unread) : "");
  }

 private:
  const LocalGroup& group_;
  const Mailbox& box_;
  const P2p& part_;
  size_t capacity_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(Hub& hub, std::shared_ptr<LocalGroup> group, int member, size_t mailbox_messages,
                    RankMemory& memory)
      : Communicator(group->kind, member, group->members),
        hub_(hub),
        group_(std::move(group)),
        member_(static_cast<size_t>(member)),
        world_rank_(group_->members[member_]),
        mailbox_messages_(mailbox_messages),
        memory_(memory) {}

 protected:
  Status do_collective(const CommCall& call) override;
  Status do_send(const P2p& part) override;
  Status do_recv(const P2p& part) override;
  Status do_copy(void* to, const void* from, size_t bytes) override;

 private:
  const CommCall& call_of(size_t member) const { return group_->calls[member]; }
  Status post(const CommCall& call);
  Status own_share(const CommCall& call);
  Status copy_part(const CommCall& call, size_t to, const CommCall& source, size_t from, size_t count);
  Status reduce_share(const CommCall& call);
  Status copy_varying(const CommCall& call);
  // Ends the world for this rank's fault and returns the error as this rank sees it.
  Status end(ErrorCode code, std::string what, std::string hint);

  Hub& hub_;
  std::shared_ptr<LocalGroup> group_;
  size_t member_;
  int world_rank_;
  size_t mailbox_messages_;
  RankMemory& memory_;
};

Status LocalCommunicator::end(ErrorCode code, std::string what, std::string hint) {
  hub_.fail(world_rank_, Error{code, std::move(what), std::move(hint)});
  return hub_.check(world_rank_);
}

Status LocalCommunicator::do_collective(const CommCall& call) {
  hub_.alive(world_rank_);
  MB_TRY(memory_.settle());
  HubLock lock = hub_.lock();
  MB_TRY(post(call));
  MB_TRY(hub_.wait(lock, world_rank_, ArrivalWait(*group_, member_)));
  lock.unlock();

  // All have arrived, so all go through both meetings even if the world ends meanwhile: nobody may return, and free its
  // buffers, while another still copies.
  Status share;
  if (call.op != CommOp::kBarrier) {
    const int64_t start_ns = thread_cpu_ns();
    try {
      share = own_share(call);
      const Status settled = memory_.settle();
      if (share) share = settled;
    } catch (const std::bad_alloc&) {
      // Leaving without the second meeting would keep the other members waiting for ever.
      share = fail(ErrorCode::kOutOfMemory, {});
    }
    add_own_ns(static_cast<uint64_t>(thread_cpu_ns() - start_ns));
  }

  lock.lock();
  if (!share.has_value()) share = end(share.error().code, share.error().what, share.error().hint);
  const uint64_t round = group_->round;
  if (++group_->done == group_->members.size()) {
    group_->arrived = 0;
    group_->done = 0;
    std::fill(group_->posted.begin(), group_->posted.end(), false);
    ++group_->round;
    hub_.wake(group_->members, world_rank_);
  } else {
    hub_.wait_through(lock, world_rank_, DepartureWait(*group_, round));
  }
  return share;
}

Status LocalCommunicator::post(const CommCall& call) {
  MB_TRY(hub_.check(world_rank_));
  for (size_t m = 0; m < group_->members.size(); ++m) {
    if (!group_->posted[m]) continue;
    if (same_call(group_->calls[m], call)) break;  // those already posted agree among themselves
    return end(ErrorCode::kMismatch,
               fmt::format("calls {} on {} where {} calls {}", describe(call), group_->text(),
                           hub_.place(group_->members[m]), describe(group_->calls[m])),
               "all members of a group call the same collectives, in one order, with one count, dtype and root");
  }
  group_->calls[member_] = call;
  group_->posted[member_] = true;
  if (++group_->arrived == group_->members.size()) hub_.wake(group_->members, world_rank_);
  return {};
}

// Runs without the lock: between the two meetings calls are constant, and every byte has one writer.
Status LocalCommunicator::own_share(const CommCall& call) {
  const size_t n = group_->members.size();
  switch (call.op) {
    case CommOp::kAllGather:
      for (size_t m = 0; m < n; ++m) MB_TRY(copy_part(call, m * call.count, call_of(m), 0, call.count));
      return {};
    case CommOp::kAllToAll:
      for (size_t m = 0; m < n; ++m)
        MB_TRY(copy_part(call, m * call.count, call_of(m), member_ * call.count, call.count));
      return {};
    case CommOp::kBroadcast: return copy_part(call, 0, call_of(static_cast<size_t>(call.root)), 0, call.count);
    case CommOp::kAllReduce:
    case CommOp::kReduceScatter: return reduce_share(call);
    case CommOp::kAllToAllV: return copy_varying(call);
    default: return {};
  }
}

// Offsets and counts in elements.
Status LocalCommunicator::copy_part(const CommCall& call, size_t to, const CommCall& source, size_t from,
                                    size_t count) {
  std::byte* target = static_cast<std::byte*>(call.recv) + bytes_of(call.dtype, to);
  const std::byte* origin = static_cast<const std::byte*>(source.send) + bytes_of(call.dtype, from);
  if (count == 0 || target == origin) return {};
  return memory_.copy(target, origin, bytes_of(call.dtype, count));
}

// reduce_scatter: own part of all inputs. all_reduce: own slice of all inputs into that slice of all outputs, so that
// in-place buffers have one reader and writer per element, and the work is shared.
Status LocalCommunicator::reduce_share(const CommCall& call) {
  const size_t n = group_->members.size();
  const bool scatter = call.op == CommOp::kReduceScatter;
  const size_t offset = scatter ? bytes_of(call.dtype, member_ * call.count) : 0;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t m = 0; m < n; ++m) {
    inputs.push_back(static_cast<const std::byte*>(call_of(m).send) + offset);
    if (!scatter) outputs.push_back(call_of(m).recv);
  }
  if (scatter) outputs.push_back(call.recv);
  const size_t begin = scatter ? 0 : call.count * member_ / n;
  const size_t stop = scatter ? call.count : call.count * (member_ + 1) / n;
  if (begin == stop) return {};
  return memory_.reduce(call.dtype, call.reduce, inputs, outputs, begin, stop);
}

Status LocalCommunicator::copy_varying(const CommCall& call) {
  size_t to = 0;
  for (size_t m = 0; m < group_->members.size(); ++m) {
    const CommCall& peer = call_of(m);
    if (peer.send_counts[member_] != call.recv_counts[m])
      return fail(ErrorCode::kMismatch,
                  fmt::format("all_to_all_v on {} expects {} elements from rank {}, which sends {}", group_->text(),
                              call.recv_counts[m], group_->members[m], peer.send_counts[member_]),
                  "exchange the counts before the data");
    const size_t from = std::accumulate(peer.send_counts.begin(), peer.send_counts.begin() + rank(), size_t{0});
    MB_TRY(copy_part(call, to, peer, from, call.recv_counts[m]));
    to += call.recv_counts[m];
  }
  return {};
}

Status LocalCommunicator::do_send(const P2p& part) {
  hub_.alive(world_rank_);
  HubLock lock = hub_.lock();
  MB_TRY(hub_.check(world_rank_));
  Mailbox& box = group_->mailbox(rank(), part.peer, part.direction);
  MB_TRY(hub_.wait(lock, world_rank_, MailboxWait(*group_, box, part, mailbox_messages_)));
  // The slot behind the last unread message is this thread's until it is counted.
  if (box.unread == box.ring.size()) {
    std::rotate(box.ring.begin(), box.ring.begin() + static_cast<std::ptrdiff_t>(box.first), box.ring.end());
    box.first = 0;
    box.ring.emplace_back();
  }
  Mailbox::Message message = std::move(box.ring[(box.first + box.unread) % box.ring.size()]);
  lock.unlock();

  const int64_t start_ns = thread_cpu_ns();
  message.dtype = part.dtype;
  message.count = part.count;
  const size_t bytes = bytes_of(part.dtype, part.count);
  if (message.bytes.size() < bytes) message.bytes.resize(bytes);
  Status moved = bytes > 0 ? memory_.copy(message.bytes.data(), part.buffer, bytes) : Status{};
  if (moved) moved = memory_.settle();
  add_own_ns(static_cast<uint64_t>(thread_cpu_ns() - start_ns));

  lock.lock();
  if (!moved) return end(moved.error().code, moved.error().what, moved.error().hint);
  box.ring[(box.first + box.unread) % box.ring.size()] = std::move(message);
  ++box.unread;
  hub_.wake(group_->members[static_cast<size_t>(part.peer)]);
  return {};
}

Status LocalCommunicator::do_recv(const P2p& part) {
  hub_.alive(world_rank_);
  HubLock lock = hub_.lock();
  MB_TRY(hub_.check(world_rank_));
  Mailbox& box = group_->mailbox(part.peer, rank(), part.direction);
  MB_TRY(hub_.wait(lock, world_rank_, MailboxWait(*group_, box, part, mailbox_messages_)));
  const int sender = group_->members[static_cast<size_t>(part.peer)];
  Mailbox::Message& front = box.ring[box.first];
  if (front.count != part.count || front.dtype != part.dtype)
    return end(ErrorCode::kMismatch,
               fmt::format("receives {} {} {} from rank {} on {}, which sent {} {}", part.count, name(part.dtype),
                           name(part.direction), sender, group_->text(), front.count, name(front.dtype)),
               "messages of one channel arrive in the order they were sent; both sides must agree on each");
  Mailbox::Message message = std::move(front);
  lock.unlock();

  const int64_t start_ns = thread_cpu_ns();
  const size_t bytes = bytes_of(part.dtype, part.count);
  Status moved = bytes > 0 ? memory_.copy(part.buffer, message.bytes.data(), bytes) : Status{};
  if (moved) moved = memory_.settle();
  add_own_ns(static_cast<uint64_t>(thread_cpu_ns() - start_ns));

  lock.lock();
  if (!moved) return end(moved.error().code, moved.error().what, moved.error().hint);
  box.ring[box.first] = std::move(message);
  box.first = (box.first + 1) % box.ring.size();
  --box.unread;
  hub_.wake(sender);
  return {};
}

Status LocalCommunicator::do_copy(void* to, const void* from, size_t bytes) {
  return memory_.copy(to, from, bytes);
}

}  // namespace

Mailbox& LocalGroup::mailbox(int source, int destination, PipeDirection direction) {
  const size_t n = members.size();
  const size_t index = (static_cast<size_t>(source) * n + static_cast<size_t>(destination)) * 2 +
                       (direction == PipeDirection::kBackward ? 1 : 0);
  if (mailboxes.empty()) mailboxes.resize(n * n * 2);
  if (!mailboxes[index]) mailboxes[index] = std::make_unique<Mailbox>();
  return *mailboxes[index];
}

std::string LocalGroup::text() const {
  return describe_group(kind, members);
}

std::shared_ptr<LocalGroup> LocalGroups::join(int rank, GroupKind kind, const std::vector<int>& members) {
  const Key key = {kind, members};
  const size_t occurrence = joined_[static_cast<size_t>(rank)][key]++;
  std::vector<std::shared_ptr<LocalGroup>>& made = groups_[key];
  if (occurrence == made.size()) {
    auto group = std::make_shared<LocalGroup>();
    group->kind = kind;
    group->members = members;
    group->calls.resize(members.size());
    group->posted.resize(members.size(), false);
    made.push_back(std::move(group));
  }
  return made[occurrence];
}

Status LocalGroups::check_all_received() const {
  for (const auto& [key, made] : groups_)
    for (const std::shared_ptr<LocalGroup>& group : made)
      for (size_t index = 0; index < group->mailboxes.size(); ++index) {
        const Mailbox* box = group->mailboxes[index].get();
        if (box == nullptr || box->unread == 0) continue;
        const size_t n = group->members.size();
        const auto direction = index % 2 == 1 ? PipeDirection::kBackward : PipeDirection::kForward;
        return fail(ErrorCode::kMismatch,
                    fmt::format("rank {} never received {} of the {} messages that rank {} sent on {}",
                                group->members[index / 2 % n], box->unread, name(direction),
                                group->members[index / 2 / n], group->text()),
                    "every send needs its recv: compare the two ranks' schedules");
      }
  return {};
}

Result<std::unique_ptr<Communicator>> LocalWorld::group(GroupKind kind, const std::vector<int>& members) {
  return group(kind, members, host_memory());
}

Status LocalWorld::check() {
  const HubLock lock = hub_.lock();
  return hub_.check(rank_);
}

Result<std::unique_ptr<Communicator>> LocalWorld::group(GroupKind kind, const std::vector<int>& members,
                                                        RankMemory& memory) {
  MB_ASSIGN(const int member, member_of(rank_, size(), kind, members));
  HubLock lock = hub_.lock();
  MB_TRY(hub_.check(rank_));
  return std::make_unique<LocalCommunicator>(hub_, groups_.join(rank_, kind, members), member, mailbox_messages_,
                                             memory);
}

}  // namespace mbb::trainer
