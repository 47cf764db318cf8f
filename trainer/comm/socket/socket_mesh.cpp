// Frames over lazily made connections, and the table's functions on them.
#include "trainer/comm/socket/socket_mesh.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "profiler/base/check.h"
#include "trainer/comm/mpi/wire.h"
#include "trainer/comm/socket/rendezvous.h"

namespace mbb::trainer {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // as MpiTable

// Which messages follow one another: those of a group from one rank with one tag.
using Channel = std::tuple<uint64_t, int32_t, int32_t>;  // group, world rank, tag

struct Head {
  uint64_t group = 0, bytes = 0;
  int32_t tag = 0, unused = 0;
};

// What a connection says first.
struct Hello {
  char secret[32] = {};
  int32_t rank = -1;
};

struct Group {
  uint64_t id = 0;
  std::vector<int32_t> members;
};

class Mesh {
 public:
  static Result<std::unique_ptr<Mesh>> open(const ProcessPlace& place, int64_t limit_ms,
                                            const std::function<Status()>& meanwhile) {
    MB_ASSIGN(auto door, Listener::open(place.one_host));
    MB_ASSIGN(Roll roll, call_roll(place, door->address(), limit_ms, meanwhile));
    return std::unique_ptr<Mesh>(new Mesh(place, std::move(door), std::move(roll)));
  }

  ~Mesh() {
    if (thread_.joinable()) thread_.join();
    close(wake_);
  }
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const ProcessPlace& place() const { return place_; }

  Status send(const Group* group, const void* data, uint64_t bytes, int32_t peer, int32_t tag) {
    const int32_t to = rank_of(group, peer);
    const uint64_t id = group == nullptr ? 0 : group->id;
    std::vector<std::byte> payload(bytes);
    if (bytes > 0) std::memcpy(payload.data(), data, bytes);
    if (to == place_.rank) {
      const std::lock_guard lock(mutex_);
      arrived_[{id, to, tag}].push_back(std::move(payload));
      return {};
    }
    MB_TRY(reach(to));
    const Head head{id, bytes, tag, 0};
    std::vector<std::byte> frame(sizeof head + bytes);
    std::memcpy(frame.data(), &head, sizeof head);
    std::copy(payload.begin(), payload.end(), frame.begin() + sizeof head);
    {
      const std::lock_guard lock(mutex_);
      out_[static_cast<size_t>(to)].queue.push_back(std::move(frame));
    }
    wake();
    return {};
  }

  uint64_t receive(const Group* group, void* data, uint64_t bytes, int32_t peer, int32_t tag) {
    const std::lock_guard lock(mutex_);
    const Channel channel{group == nullptr ? 0 : group->id, rank_of(group, peer), tag};
    const uint64_t request = ++last_request_;
    wanted_[request] = {channel, data, bytes};
    waiting_[channel].push_back(request);
    return request;
  }

  // Whether the request is done; what has arrived for it lies in its buffer then.
  Result<bool> test(uint64_t request) {
    const std::lock_guard lock(mutex_);
    const auto found = wanted_.find(request);
    if (found == wanted_.end()) return true;
    const Wanted& wanted = found->second;
    auto& line = waiting_[wanted.channel];
    auto& here = arrived_[wanted.channel];
    if (here.empty() || line.front() != request) return false;
    if (here.front().size() != wanted.bytes)
      return fail(ErrorCode::kMismatch, fmt::format("a message of {} bytes came where one of {} was expected",
                                                    here.front().size(), wanted.bytes));
    if (wanted.bytes > 0) std::memcpy(wanted.data, here.front().data(), wanted.bytes);
    here.pop_front();
    line.pop_front();
    wanted_.erase(found);
    return true;
  }

  Group* open_group(const int32_t* members, int32_t count, int32_t tag) {
    auto group = std::make_unique<Group>();
    group->members.assign(members, members + count);
    uint64_t& times = opened_[{group->members, tag}];
    // All members count the same openings.
    uint64_t id = 0x9e3779b97f4a7c15U + ++times;
    const auto mix = [&id](uint64_t value) {
      id = (id ^ value) * 0xbf58476d1ce4e5b9U;
      id ^= id >> 31U;
    };
    mix(static_cast<uint64_t>(tag) + 1);
    for (const int32_t member : group->members) mix(static_cast<uint64_t>(member) + 1);
    group->id = id | 1U;  // never the world's
    return group.release();
  }

  // What was sent goes before the connections close.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake();
    thread_.join();
  }

 private:
  struct Outgoing {
    std::unique_ptr<Wire> wire;
    std::deque<std::vector<std::byte>> queue;
    size_t sent = 0;  // of the first frame
  };
  struct Incoming {
    std::unique_ptr<Wire> wire;
    int32_t rank = -1;  // until its hello is here
    std::vector<std::byte> bytes;
  };
  struct Wanted {
    Channel channel;
    void* data = nullptr;
    uint64_t bytes = 0;
  };

  Mesh(const ProcessPlace& place, std::unique_ptr<Listener> door, Roll roll)
      : place_(place),
        door_(std::move(door)),
        roll_(std::move(roll)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        out_(static_cast<size_t>(place.size)) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "messages");
      serve();
    });
  }

  int32_t rank_of(const Group* group, int32_t peer) const {
    return group == nullptr ? peer : group->members[static_cast<size_t>(peer)];
  }

  void wake() {
    const uint64_t one = 1;
    static_cast<void>(write(wake_, &one, sizeof one));
  }

  // Connects on first use; only the rank's thread comes here.
  Status reach(int32_t peer) {
    {
      const std::lock_guard lock(mutex_);
      if (out_[static_cast<size_t>(peer)].wire) return {};
    }
    auto wire = connect_wire(roll_.addresses[static_cast<size_t>(peer)]);
    if (!wire) return fail(ErrorCode::kRankFailed, fmt::format("rank {}: {}", peer, wire.error().what));
    Hello hello;
    roll_.secret.copy(hello.secret, sizeof hello.secret);
    hello.rank = place_.rank;
    std::vector<std::byte> first(sizeof hello);
    std::memcpy(first.data(), &hello, sizeof hello);
    const std::lock_guard lock(mutex_);
    out_[static_cast<size_t>(peer)].wire = std::move(*wire);
    out_[static_cast<size_t>(peer)].queue.push_front(std::move(first));
    return {};
  }

  bool all_sent() const {
    return std::all_of(out_.begin(), out_.end(), [](const Outgoing& out) { return !out.wire || out.queue.empty(); });
  }

  void serve() {
    constexpr int kTickMs = 100;
    constexpr int kEndTicks = 20;
    int end_ticks = 0;
    std::vector<pollfd> waiting;
    std::vector<size_t> peers;  // of the outgoing ones among them
    for (;;) {
      waiting.assign({{wake_, POLLIN, 0}, {door_->descriptor(), POLLIN, 0}});
      peers.clear();
      {
        const std::lock_guard lock(mutex_);
        if (ending_ && (all_sent() || ++end_ticks > kEndTicks)) return;
        for (size_t peer = 0; peer < out_.size(); ++peer) {
          if (!out_[peer].wire || out_[peer].queue.empty()) continue;
          waiting.push_back({out_[peer].wire->descriptor(), POLLOUT, 0});
          peers.push_back(peer);
        }
      }
      const size_t first_in = waiting.size();
      for (const Incoming& in : in_) waiting.push_back({in.wire->descriptor(), POLLIN, 0});
      poll(waiting.data(), waiting.size(), kTickMs);
      if (waiting[0].revents != 0) {
        uint64_t count = 0;
        static_cast<void>(read(wake_, &count, sizeof count));
      }
      for (size_t i = 0; i < peers.size(); ++i)
        if (waiting[2 + i].revents != 0) push(out_[peers[i]]);
      const size_t known = in_.size();
      for (size_t i = 0; i < known; ++i)
        if (waiting[first_in + i].revents != 0) pull(in_[i]);
      std::erase_if(in_, [](const Incoming& in) { return !in.wire; });
      if (waiting[1].revents != 0)
        if (auto wire = door_->accept(0)) in_.push_back({std::move(*wire), -1, {}});
    }
  }

  // A peer that is gone takes nothing more: the side channel tells of it.
  void push(Outgoing& out) {
    const std::lock_guard lock(mutex_);
    while (!out.queue.empty()) {
      const std::vector<std::byte>& frame = out.queue.front();
      const ssize_t went =
          ::send(out.wire->descriptor(), frame.data() + out.sent, frame.size() - out.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (went < 0 && errno == EINTR) continue;
      if (went < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (went <= 0) return out.queue.clear();
      out.sent += static_cast<size_t>(went);
      if (out.sent < frame.size()) return;
      out.sent = 0;
      out.queue.pop_front();
    }
  }

  void pull(Incoming& in) {
    std::array<std::byte, 65536> buffer{};
    for (;;) {
      const ssize_t got = recv(in.wire->descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return in.wire.reset();
      in.bytes.insert(in.bytes.end(), buffer.begin(), buffer.begin() + got);
      if (!take(in)) return in.wire.reset();
    }
  }

  // Whole frames leave the buffer; false: this is no rank of ours.
  bool take(Incoming& in) {
    size_t at = 0;
    if (in.rank < 0) {
      Hello hello;
      if (in.bytes.size() < sizeof hello) return true;
      std::memcpy(&hello, in.bytes.data(), sizeof hello);
      if (std::string_view(hello.secret, sizeof hello.secret) != roll_.secret || hello.rank < 0 ||
          hello.rank >= place_.size)
        return false;
      in.rank = hello.rank;
      at = sizeof hello;
    }
    Head head;
    while (in.bytes.size() - at >= sizeof head) {
      std::memcpy(&head, in.bytes.data() + at, sizeof head);
      if (head.bytes > kMostBytes) return false;
      if (in.bytes.size() - at - sizeof head < head.bytes) break;
      const auto begin = in.bytes.begin() + static_cast<std::ptrdiff_t>(at + sizeof head);
      std::vector<std::byte> payload(begin, begin + static_cast<std::ptrdiff_t>(head.bytes));
      at += sizeof head + head.bytes;
      const std::lock_guard lock(mutex_);
      arrived_[{head.group, in.rank, head.tag}].push_back(std::move(payload));
    }
    in.bytes.erase(in.bytes.begin(), in.bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  const ProcessPlace place_;
  const std::unique_ptr<Listener> door_;
  const Roll roll_;
  const int wake_;
  std::mutex mutex_;
  std::vector<Outgoing> out_;  // by world rank
  std::vector<Incoming> in_;   // the thread's alone
  std::map<Channel, std::deque<std::vector<std::byte>>> arrived_;
  std::map<Channel, std::deque<uint64_t>> waiting_;
  std::map<uint64_t, Wanted> wanted_;
  std::map<std::pair<std::vector<int32_t>, int32_t>, uint64_t> opened_;
  uint64_t last_request_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

// The process's mesh; it outlives a world that failed, whose rank may still be using it.
Mesh* the_mesh = nullptr;

bool answer(const Status& status, MpiText* error) {
  if (!status) std::snprintf(error->text, sizeof error->text, "%s", status.error().what.c_str());
  return status.has_value();
}

bool start(int32_t* rank, int32_t* size, MpiText* version, MpiText*) {
  *rank = the_mesh->place().rank;
  *size = the_mesh->place().size;
  std::snprintf(version->text, sizeof version->text, "sockets");
  return true;
}

void finish() {
  the_mesh->finish();
  delete std::exchange(the_mesh, nullptr);
}

bool group_open(const int32_t* members, int32_t count, int32_t tag, void** group, MpiText*) {
  *group = the_mesh->open_group(members, count, tag);
  return true;
}

void group_close(void* group) {
  delete static_cast<Group*>(group);
}

bool send(void* group, const void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request,
          MpiText* error) {
  *request = 0;
  return answer(the_mesh->send(static_cast<const Group*>(group), data, bytes, peer, tag), error);
}

bool receive(void* group, void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request, MpiText*) {
  *request = the_mesh->receive(static_cast<const Group*>(group), data, bytes, peer, tag);
  return true;
}

bool test(MpiRequest* requests, size_t count, bool* all, MpiText* error) {
  *all = true;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == 0) continue;
    const auto done = the_mesh->test(requests[i]);
    if (!done) return answer(tl::unexpected<Error>(done.error()), error);
    if (*done)
      requests[i] = 0;
    else
      *all = false;
  }
  return true;
}

constexpr MpiTable kTable = {kMpiTableAbi, sizeof(MpiTable), start, finish, group_open, group_close,
                             send,         receive,          test};

}  // namespace

Result<const MpiTable*> socket_table(const ProcessPlace& place, int64_t limit_ms,
                                     const std::function<Status()>& meanwhile) {
  MB_CHECK(the_mesh == nullptr, "a process is one rank of one world");
  MB_ASSIGN(auto mesh, Mesh::open(place, limit_ms, meanwhile));
  the_mesh = mesh.release();
  return &kTable;
}

}  // namespace mbb::trainer
