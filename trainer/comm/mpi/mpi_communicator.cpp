// The collectives and messages of processes.
#include "trainer/comm/mpi/mpi_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "profiler/base/clock.h"
#include "trainer/comm/local/reduce.h"
#include "trainer/comm/rank_edge.h"

namespace mbb::trainer {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of one MPI message
constexpr size_t kMostOutgoing = 256;           // as a mailbox of rank threads

constexpr int kHeaderTag = 1;
constexpr int kDataTag = 2;
constexpr int kMessageTag = 3;  // + 2·direction: its header; + 1: its payload

// What members of a collective, and both sides of a message, must agree on.
struct Header {
  uint32_t op = 0, dtype = 0, reduce = 0;
  int32_t root = 0;
  uint64_t count = 0;
};

Header header_of(const CommCall& call, size_t peer) {
  const bool varying = call.op == CommOp::kAllToAllV;
  return {static_cast<uint32_t>(call.op), static_cast<uint32_t>(call.dtype), static_cast<uint32_t>(call.reduce),
          call.root, varying ? call.send_counts[peer] : call.count};
}

CommCall call_of(const Header& header) {
  CommCall call;
  call.op = static_cast<CommOp>(std::min<uint32_t>(header.op, kCommOpCount - 1));
  call.dtype = static_cast<DType>(header.dtype);
  call.reduce = static_cast<ReduceOp>(header.reduce);
  call.root = header.root;
  call.count = call.op == CommOp::kAllToAllV ? 0 : header.count;
  return call;
}

int message_tag(const P2p& part) {
  return kMessageTag + (part.direction == PipeDirection::kBackward ? 2 : 0);
}

}  // namespace

MpiProcess::MpiProcess(const MpiTable& table, Control& side_channel) : mpi(table), control(side_channel) {}
MpiProcess::~MpiProcess() = default;

void MpiProcess::leave(void* group, std::deque<std::unique_ptr<MpiMessage>> messages) {
  groups_.push_back(group);
  for (auto& message : messages) messages_.push_back(std::move(message));
}

Status MpiProcess::drain() {
  for (const auto& message : messages_) MB_TRY(message->wait());
  messages_.clear();
  return {};
}

void MpiProcess::close_groups() {
  for (void* const group : groups_) mpi.group_close(group);
  groups_.clear();
}

Status MpiMessage::wait() {
  return transfers.wait([&] { return text; }, {to});
}

Status MpiTransfers::send(const void* data, size_t bytes, int peer, int tag) {
  for (size_t at = 0; at < bytes; at += kMostBytes) {
    MpiText error{};
    const void* const part = static_cast<const std::byte*>(data) + at;
    MB_TRY(mpi_answer(
        process_.mpi.send(group_, part, std::min(kMostBytes, bytes - at), peer, tag, &requests_.emplace_back(), &error),
        error));
  }
  return {};
}

Status MpiTransfers::receive(void* data, size_t bytes, int peer, int tag) {
  for (size_t at = 0; at < bytes; at += kMostBytes) {
    MpiText error{};
    void* const part = static_cast<std::byte*>(data) + at;
    MB_TRY(mpi_answer(process_.mpi.receive(group_, part, std::min(kMostBytes, bytes - at), peer, tag,
                                           &requests_.emplace_back(), &error),
                      error));
  }
  return {};
}

Result<bool> MpiTransfers::test() {
  MB_TRY(process_.control.check());
  bool all = true;
  MpiText error{};
  if (Status made = mpi_answer(process_.mpi.test(requests_.data(), requests_.size(), &all, &error), error); !made) {
    process_.control.fail(process_.control.rank(), made.error());
    return tl::unexpected<Error>(made.error());
  }
  if (all) requests_.clear();
  return all;
}

Status MpiTransfers::wait(const std::function<std::string()>& text, const std::vector<int>& from) {
  constexpr int kYields = 64;                     // a peer on another core answers within these
  constexpr int64_t kTellNs = 20'000'000;         // a wait that reports may see
  constexpr int64_t kReturnedNs = 1'000'000'000;  // what a rank sent before it returned has arrived by then
  constexpr auto kShortest = std::chrono::microseconds(20), kLongest = std::chrono::microseconds(500);
  const int64_t start_ns = monotonic_ns();
  int64_t returned_ns = 0;
  bool told = false;
  Status status;
  auto pause = kShortest;
  for (int round = 0;; ++round) {
    const auto all = test();
    if (!all) status = tl::unexpected<Error>(all.error());
    if (!all || *all) break;
    const int64_t now = monotonic_ns();
    if (!told && now - start_ns > kTellNs) process_.control.waits(text()), told = true;
    const auto gone = std::find_if(from.begin(), from.end(), [&](int rank) { return process_.control.returned(rank); });
    if (gone != from.end() && returned_ns == 0) returned_ns = now;
    if (gone != from.end() && now - returned_ns > kReturnedNs) {
      process_.control.fail(
          *gone,
          Error{ErrorCode::kRankFailed, fmt::format("the rank returned while another waits for it in {}", text()),
                "every member of a group makes the same calls; look for a branch that one rank skips"});
    }
    if (round < kYields) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongest);
  }
  if (told) process_.control.waits({});
  return status;
}

MpiCommunicator::MpiCommunicator(MpiProcess& process, void* group, GroupKind kind, int member, std::vector<int> members)
    : Communicator(kind, member, std::move(members)), process_(process), group_(group) {}

MpiCommunicator::~MpiCommunicator() {
  process_.leave(group_, std::move(outgoing_));
}

std::string MpiCommunicator::text() const {
  return describe_group(kind(), members());
}

Status MpiCommunicator::end(ErrorCode code, std::string what, std::string hint) {
  process_.control.fail(members()[static_cast<size_t>(rank())], Error{code, std::move(what), std::move(hint)});
  return process_.control.check();
}

Status MpiCommunicator::let_leave(size_t most) {
  while (!outgoing_.empty()) {
    MB_ASSIGN(const bool gone, outgoing_.front()->transfers.test());
    if (!gone && outgoing_.size() <= most) break;
    if (!gone) MB_TRY(outgoing_.front()->wait());
    outgoing_.pop_front();
  }
  return {};
}

Status MpiCommunicator::do_collective(const CommCall& call) {
  process_.control.alive();
  MB_TRY(process_.control.check());
  MB_TRY(meet(call));
  switch (call.op) {
    case CommOp::kBarrier: return {};
    case CommOp::kAllReduce: return all_reduce_shares(call);
    case CommOp::kReduceScatter: return reduce_scatter_share(call);
    default: return move(call);
  }
}

// Every member tells every other what it calls, so that a disagreement is named before anything moves.
Status MpiCommunicator::meet(const CommCall& call) {
  std::vector<Header> mine(members_count()), theirs(members_count());
  MpiTransfers transfers(process_, group_);
  std::vector<int> others;
  for (int m = 0; m < size(); ++m) {
    if (m == rank()) continue;
    const auto at = static_cast<size_t>(m);
    mine[at] = header_of(call, at);
    others.push_back(members()[at]);
    MB_TRY(transfers.receive(&theirs[at], sizeof(Header), m, kHeaderTag));
    MB_TRY(transfers.send(&mine[at], sizeof(Header), m, kHeaderTag));
  }
  MB_TRY(transfers.wait([&] { return describe(call) + " on " + text(); }, others));
  for (int m = 0; m < size(); ++m) {
    if (m == rank()) continue;
    const auto at = static_cast<size_t>(m);
    const Header& header = theirs[at];
    const bool varying = call.op == CommOp::kAllToAllV;
    const Header& own = mine[at];
    if (header.op != own.op || header.dtype != own.dtype || header.reduce != own.reduce || header.root != own.root ||
        (!varying && header.count != own.count))
      return end(ErrorCode::kMismatch,
                 fmt::format("calls {} on {} where rank {} calls {}", describe(call), text(), members()[at],
                             describe(call_of(header))),
                 "all members of a group call the same collectives, in one order, with one count, dtype and root");
    if (varying && header.count != call.recv_counts[at])
      return end(ErrorCode::kMismatch,
                 fmt::format("all_to_all_v on {} expects {} elements from rank {}, which sends {}", text(),
                             call.recv_counts[at], members()[at], header.count),
                 "exchange the counts before the data");
  }
  return {};
}

// Collectives that only move: member m's part goes straight to whom it is for.
Status MpiCommunicator::move(const CommCall& call) {
  const auto* const out = static_cast<const std::byte*>(call.send);
  auto* const in = static_cast<std::byte*>(call.recv);
  MpiTransfers transfers(process_, group_);
  size_t sent = 0, received = 0;  // elements before member m's part, of all_to_all_v
  for (int m = 0; m < size(); ++m) {
    const auto at = static_cast<size_t>(m);
    size_t from = 0, to = 0, give = call.count, get = call.count;  // elements
    switch (call.op) {
      case CommOp::kAllGather: to = at * call.count; break;
      case CommOp::kAllToAll: from = to = at * call.count; break;
      case CommOp::kAllToAllV:
        from = sent, to = received;
        give = call.send_counts[at], get = call.recv_counts[at];
        sent += give, received += get;
        break;
      default:  // a broadcast: the root gives to all
        give = rank() == call.root ? call.count : 0;
        get = m == call.root ? call.count : 0;
    }
    const std::byte* const source = out == nullptr ? nullptr : out + bytes_of(call.dtype, from);
    std::byte* const target = in == nullptr ? nullptr : in + bytes_of(call.dtype, to);
    if (m == rank()) {
      if (get > 0 && source != target) std::memcpy(target, source, bytes_of(call.dtype, get));
      continue;
    }
    MB_TRY(transfers.receive(target, bytes_of(call.dtype, get), m, kDataTag));
    MB_TRY(transfers.send(source, bytes_of(call.dtype, give), m, kDataTag));
  }
  return transfers.wait([&] { return describe(call) + " on " + text(); }, {});
}

// Elements [first, end) of every member's input, reduced in member order into `result`; every member gets the slice
// that is its own, so each sends the others theirs.
Status MpiCommunicator::reduce_own(const CommCall& call, size_t first, size_t end, void* result) {
  const bool scatter = call.op == CommOp::kReduceScatter;
  const auto* const own = static_cast<const std::byte*>(call.send);
  const size_t n = members_count(), bytes = bytes_of(call.dtype, end - first);
  std::vector<std::byte> received(bytes * n);
  std::vector<const void*> inputs;
  MpiTransfers transfers(process_, group_);
  for (int m = 0; m < size(); ++m) {
    const auto at = static_cast<size_t>(m);
    const bool mine = m == rank();
    inputs.push_back(mine ? own + bytes_of(call.dtype, first) : received.data() + at * bytes);
    if (mine) continue;
    const size_t theirs = scatter ? at * call.count : call.count * at / n;
    const size_t theirs_end = scatter ? theirs + call.count : call.count * (at + 1) / n;
    MB_TRY(transfers.receive(received.data() + at * bytes, bytes, m, kDataTag));
    MB_TRY(transfers.send(own + bytes_of(call.dtype, theirs), bytes_of(call.dtype, theirs_end - theirs), m, kDataTag));
  }
  MB_TRY(transfers.wait([&] { return describe(call) + " on " + text(); }, {}));
  const int64_t start_ns = thread_cpu_ns();
  void* const results[1] = {result};
  reduce_elements(call.dtype, call.reduce, inputs, results, 0, end - first);
  add_own_ns(static_cast<uint64_t>(thread_cpu_ns() - start_ns));
  return {};
}

Status MpiCommunicator::reduce_scatter_share(const CommCall& call) {
  const size_t first = call.count * static_cast<size_t>(rank());
  return reduce_own(call, first, first + call.count, call.recv);
}

Status MpiCommunicator::all_reduce_shares(const CommCall& call) {
  const size_t n = members_count();
  const auto slice = [&](int m) { return call.count * static_cast<size_t>(m) / n; };
  auto* const all = static_cast<std::byte*>(call.recv);
  const auto at = [&](int m) { return all + bytes_of(call.dtype, slice(m)); };
  const auto bytes = [&](int m) { return bytes_of(call.dtype, slice(m + 1)) - bytes_of(call.dtype, slice(m)); };
  MB_TRY(reduce_own(call, slice(rank()), slice(rank() + 1), at(rank())));
  MpiTransfers transfers(process_, group_);
  for (int m = 0; m < size(); ++m) {
    if (m == rank()) continue;
    MB_TRY(transfers.receive(at(m), bytes(m), m, kDataTag));
    MB_TRY(transfers.send(at(rank()), bytes(rank()), m, kDataTag));
  }
  return transfers.wait([&] { return describe(call) + " on " + text(); }, {});
}

Status MpiCommunicator::do_send(const P2p& part) {
  process_.control.alive();
  MB_TRY(process_.control.check());
  MB_TRY(let_leave(kMostOutgoing));
  const int to = members()[static_cast<size_t>(part.peer)];
  auto message = std::make_unique<MpiMessage>(MpiMessage{
      {},
      {},
      MpiTransfers(process_, group_),
      to,
      fmt::format("send({} {}, {}) to rank {} on {}", part.count, name(part.dtype), name(part.direction), to, text())});
  const Header header{static_cast<uint32_t>(CommOp::kSend), static_cast<uint32_t>(part.dtype), 0, 0, part.count};
  const int64_t start_ns = thread_cpu_ns();
  message->header.resize(sizeof header);
  std::memcpy(message->header.data(), &header, sizeof header);
  message->payload.resize(bytes_of(part.dtype, part.count));
  if (!message->payload.empty()) std::memcpy(message->payload.data(), part.buffer, message->payload.size());
  add_own_ns(static_cast<uint64_t>(thread_cpu_ns() - start_ns));
  const int tag = message_tag(part);
  MB_TRY(message->transfers.send(message->header.data(), message->header.size(), part.peer, tag));
  MB_TRY(message->transfers.send(message->payload.data(), message->payload.size(), part.peer, tag + 1));
  outgoing_.push_back(std::move(message));
  return {};
}

Status MpiCommunicator::do_recv(const P2p& part) {
  process_.control.alive();
  MB_TRY(process_.control.check());
  MB_TRY(let_leave(kMostOutgoing));
  const int sender = members()[static_cast<size_t>(part.peer)];
  const auto waits = [&] {
    return fmt::format("recv({} {}, {}) from rank {} on {}", part.count, name(part.dtype), name(part.direction), sender,
                       text());
  };
  Header header;
  MpiTransfers transfers(process_, group_);
  MB_TRY(transfers.receive(&header, sizeof header, part.peer, message_tag(part)));
  MB_TRY(transfers.wait(waits, {sender}));
  if (header.count != part.count || header.dtype != static_cast<uint32_t>(part.dtype))
    return end(ErrorCode::kMismatch,
               fmt::format("receives {} {} {} from rank {} on {}, which sent {} {}", part.count, name(part.dtype),
                           name(part.direction), sender, text(), header.count, name(static_cast<DType>(header.dtype))),
               "messages of one channel arrive in the order they were sent; both sides must agree on each");
  MB_TRY(transfers.receive(part.buffer, bytes_of(part.dtype, part.count), part.peer, message_tag(part) + 1));
  return transfers.wait(waits, {});
}

}  // namespace mbb::trainer
