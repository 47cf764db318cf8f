// The side channel of ranks that are processes: one TCP connection from every rank to rank 0, served by a thread of its
// own, so that a rank which is killed, fails or hangs is known to all within a heartbeat, whatever MPI waits for.
//
// A rank sends its place every kHeartbeatMs, and rank 0 its own every kFirstTellsMs; a connection that closes before
// its rank has returned is a process that died. Rank 0 decides what ended the world and tells everyone. This is the
// only socket the program opens; rank 0's address and a secret that connections must show go through MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/comm/mpi/wire.h"
#include "trainer/comm/patience.h"
#include "trainer/comm/places.h"

namespace mbb::trainer {

struct ControlOptions {
  int64_t no_progress_ms = 300'000;    // as LocalOptions
  const Patience* patience = nullptr;  // as LocalOptions; rank 0's process is asked
  int64_t stuck_grace_ms = 5'000;
  std::function<void(const Error&)> on_stuck = {};
  std::string places_file;                 // of this process; rank 0's holds where all ranks were last seen
  std::function<Status()> meanwhile = {};  // asked by rank 0 while it waits for the others to come; an error ends it
  // Without a word of rank 0, whose signs of life come every kFirstTellsMs, or no_progress_ms where nobody has patience
  // and that is more: its process is stopped or its host gone, which closes no connection.
  int64_t silent_ms = 20'000;
};

class Control {
 public:
  static constexpr int kHeartbeatMs = 100;
  static constexpr int kFirstTellsMs = 1'000;
  static constexpr const char* kDevice = "the work of its device";  // what waits() says of a rank that waits for that

  static Result<std::unique_ptr<Control>> create(int rank, int size, ControlOptions options);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Rank 0 first opens its door, whose address the others are told, then waits for all of them. `one_host`: nobody
  // else can knock.
  Result<std::string> open_door(bool one_host);
  Status await_all();
  Status connect(const std::string& address);
  // Starts the heartbeat; call once connected.
  void start();

  int rank() const { return rank_; }
  void at(std::string_view path, uint64_t call) { places_->at(rank_, path, call); }
  void alive() { places_->alive(rank_); }
  // What this rank waits for, for reports; empty: it runs.
  void waits(std::string text);
  // An error once the world is ending, as this rank should see it. Cheap while it is not.
  Status check() const;
  // The rank's code has returned: it will send nothing more.
  bool returned(int rank) const;
  // Ends the world for the fault of `rank`; the first one is the cause.
  void fail(int rank, Error error);
  // This rank has returned with `status`. Sleeps until all have, or the world has ended; gives the first failure, its
  // rank named, with where all were last seen.
  Status finish(Status status);

 private:
  struct Cause {
    int rank = 0;
    Error error;
    std::string place;
    std::string standing;
  };
  struct Peer {
    std::unique_ptr<Wire> wire;  // rank 0: to each other rank; others: [0] only
    std::string waits;
    bool returned = false;
    bool gone = false;
  };

  Control(int rank, int size, ControlOptions options, std::unique_ptr<Places> places);
  std::string unconnected() const;  // ranks that await_all() still waits for
  void supervise();
  // The functions below need the lock.
  void read_from(int peer);
  void take(int peer, const WireMessage& message);
  void take_at_first(int peer, const WireMessage& message);
  void lost(int peer);
  void heartbeat();
  void tell_own_place();
  WireMessage place_message() const;
  void watch_progress();
  void watch_first();  // on the other ranks
  // Stuck ranks' report, once, when it is due.
  std::optional<Error> stuck_error();
  void end(Cause cause);
  void mark_returned(int rank);
  bool all_done() const;
  void tell_all(const WireMessage& message);
  std::string standing() const;

  const int rank_, size_;
  const ControlOptions options_;
  std::unique_ptr<Places> places_;
  std::unique_ptr<Listener> door_;
  std::string secret_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::optional<Cause> cause_;
  std::atomic<bool> ended_ = false;
  std::vector<std::atomic<bool>> returned_;
  bool released_ = false;  // rank 0 saw all return
  bool closing_ = false, own_returned_ = false, told_stuck_ = false;
  bool accused_ = false;  // this rank has told rank 0 of another's fault
  QuietTime quiet_;
  uint64_t heard_ = 0;  // messages of rank 0
  int64_t ended_ns_ = 0, told_place_ms_ = 0;
  std::thread thread_;
};

}  // namespace mbb::trainer
