// What the rank threads of one process share: the lock, who waits for what, and the first failure.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/comm/places.h"

namespace mbb::trainer {

using HubLock = std::unique_lock<std::mutex>;

// Why a rank sleeps. Lives on the sleeper's stack; all three are called under the hub's lock.
class Wait {
 public:
  virtual ~Wait() = default;
  virtual bool ready() const = 0;
  virtual std::vector<int> missing() const = 0;  // world ranks it waits for
  virtual std::string text() const = 0;          // "all_reduce(sum, 4 f32) on tp {0,1}"
};

// One lock for all ranks and one condition variable a rank: critical sections only post and compare, the copying
// happens outside. With everything under one lock, "nobody can go on" is an exact statement.
class Hub {
 public:
  explicit Hub(std::unique_ptr<Places> places);

  int size() const { return static_cast<int>(ranks_.size()); }
  HubLock lock() { return HubLock(mutex_); }

  // Sign of life and place of a rank; without the lock.
  void at(int rank, std::string_view path, uint64_t call) { places_->at(rank, path, call); }
  void alive(int rank) { places_->alive(rank); }

  // The functions below need the lock.

  // An error once the world is ending, as `rank` should see it.
  Status check(int rank) const;
  // Sleeps until wait.ready(), or fails because the world ended. Ready wins over ended, so that members which all
  // arrived agree on going through.
  Status wait(HubLock& lock, int rank, const Wait& wait);
  // Sleeps until wait.ready() even while the world ends; for waits that only other ranks' copying can hold up.
  void wait_through(HubLock& lock, int rank, const Wait& wait);
  void wake(int rank) { ranks_[static_cast<size_t>(rank)].wake.notify_one(); }
  void wake(const std::vector<int>& ranks, int except);
  // Ends the world for the fault of `rank`; the first call is the cause, later ones are ignored. `told`: the error says
  // already where all stand.
  void fail(int rank, Error error, bool told = false);
  // The rank has returned. An error ends the world; so does leaving others waiting.
  void finish(int rank, Status status);
  // Sleeps until every rank has returned; ends the world after limit_ms() (0: never) without sign of life, and calls
  // `stuck` (without the lock) when ranks are still running stuck_grace_ms after the world ended.
  void supervise(HubLock& lock, const std::function<int64_t()>& limit_ms, int64_t stuck_grace_ms,
                 const std::function<void(const Error&)>& stuck);
  // The first failure, with its rank named and where all stood when it happened.
  Status outcome() const;

  // "rank 2 at layers.3.mlp.fc1.fwd (call 7)"
  std::string place(int rank) const { return places_->text(rank); }
  // One clause per rank: its place and what it does.
  std::string standing() const;

 private:
  struct Rank {
    std::condition_variable wake;
    const Wait* wait = nullptr;
    bool finished = false;
  };
  struct Cause {
    int rank = 0;
    Error error;
    std::string place;
    std::string standing;
  };

  // Ends the world if a sleeper waits for a finished rank, or if all who have not returned sleep and none is ready.
  void check_stuck(int cause_rank);
  uint64_t life() const;

  std::unique_ptr<Places> places_;
  std::mutex mutex_;
  std::condition_variable supervisor_;
  std::vector<Rank> ranks_;
  int sleeping_ = 0;
  int finished_ = 0;
  std::optional<Cause> cause_;
};

}  // namespace mbb::trainer
