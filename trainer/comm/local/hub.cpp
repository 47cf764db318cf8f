// Sleeping, waking, and telling "not yet" from "never".
#include "trainer/comm/local/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "profiler/base/check.h"
#include "profiler/base/clock.h"
#include "trainer/comm/patience.h"

namespace mbb::trainer {
namespace {

// Ranks listed one by one in a report; the others are counted.
constexpr size_t kMostListed = 64;

// Ranks come to a bad number or a bad argument together, and a stop is nobody's fault.
bool standing_matters(ErrorCode code) {
  return code != ErrorCode::kNumerics && code != ErrorCode::kBadArgument && code != ErrorCode::kCancelled;
}

}  // namespace

Hub::Hub(std::unique_ptr<Places> places) : places_(std::move(places)), ranks_(static_cast<size_t>(places_->size())) {}

uint64_t Hub::life() const {
  uint64_t sum = 0;
  for (int rank = 0; rank < size(); ++rank) sum += places_->life(rank);
  return sum;
}

Status Hub::check(int rank) const {
  if (!cause_) return {};
  if (cause_->rank == rank) return tl::unexpected<Error>(cause_->error);
  return mbb::fail(ErrorCode::kRankFailed, fmt::format("{} failed: {}", cause_->place, cause_->error.what),
                   cause_->error.hint);
}

Status Hub::wait(HubLock& lock, int rank, const Wait& wait) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (wait.ready()) return {};
  if (cause_) return check(rank);
  state.wait = &wait;
  ++sleeping_;
  check_stuck(rank);
  state.wake.wait(lock, [&] { return wait.ready() || cause_.has_value(); });
  --sleeping_;
  state.wait = nullptr;
  return wait.ready() ? Status{} : check(rank);
}

void Hub::wait_through(HubLock& lock, int rank, const Wait& wait) {
  // Not among the sleepers: those it waits for are running.
  ranks_[static_cast<size_t>(rank)].wake.wait(lock, [&] { return wait.ready(); });
}

void Hub::wake(const std::vector<int>& ranks, int except) {
  for (const int rank : ranks)
    if (rank != except) wake(rank);
}

void Hub::fail(int rank, Error error, bool told) {
  if (cause_) return;
  cause_ = Cause{rank, std::move(error), place(rank), {}};
  if (!told && size() > 1 && standing_matters(cause_->error.code)) cause_->standing = standing();
  for (Rank& state : ranks_) state.wake.notify_one();
  supervisor_.notify_one();
}

void Hub::finish(int rank, Status status) {
  ranks_[static_cast<size_t>(rank)].finished = true;
  ++finished_;
  if (!status.has_value()) {
    // The cause's own rank may say more about it than the communicator could ("reading batch 3: ...").
    if (cause_ && cause_->rank == rank && cause_->error.code == status.error().code) cause_->error = status.error();
    fail(rank, std::move(status.error()));
  }
  check_stuck(rank);
  supervisor_.notify_one();
}

void Hub::check_stuck(int cause_rank) {
  if (cause_) return;
  if (finished_ > 0) {
    for (int sleeper = 0; sleeper < size(); ++sleeper) {
      const Wait* wait = ranks_[static_cast<size_t>(sleeper)].wait;
      if (wait == nullptr || wait->ready()) continue;
      for (const int rank : wait->missing()) {
        if (!ranks_[static_cast<size_t>(rank)].finished) continue;
        return fail(rank,
                    Error{ErrorCode::kRankFailed,
                          fmt::format("the rank returned while {} waits for it in {}", place(sleeper), wait->text()),
                          "every member of a group makes the same calls; look for a branch that one rank skips"});
      }
    }
  }
  if (sleeping_ == 0 || sleeping_ + finished_ < size()) return;
  for (const Rank& state : ranks_)
    if (state.wait != nullptr && state.wait->ready()) return;
  fail(cause_rank,
       Error{ErrorCode::kRankFailed, "all ranks wait and none can go on: " + standing(),
             "members must call the collectives of their groups in one order; a full mailbox that waits needs more "
             "mailbox messages"},
       true);
}

void Hub::supervise(HubLock& lock, const std::function<int64_t()>& limit_ms, int64_t stuck_grace_ms,
                    const std::function<void(const Error&)>& stuck) {
  constexpr int64_t kLookMs = 250;
  const auto all_returned = [&] { return finished_ == size(); };
  QuietTime quiet;
  while (!cause_ && !all_returned()) {
    const int64_t limit = limit_ms();
    const bool over = quiet.too_long(life(), limit, monotonic_ns());
    if (!over) {
      const int64_t look_ms = limit > 0 ? std::clamp<int64_t>(limit / 4, 1, kLookMs) : kLookMs;
      supervisor_.wait_for(lock, std::chrono::milliseconds(look_ms));
      continue;
    }
    int running = 0;
    while (ranks_[static_cast<size_t>(running)].finished || ranks_[static_cast<size_t>(running)].wait != nullptr)
      ++running;  // there is one: otherwise check_stuck() had ended the world
    fail(running,
         Error{ErrorCode::kTimeout, fmt::format("no rank made progress for {} ms: {}", limit, standing()),
               "look at the rank that runs; raise host.no_progress_limit_s if one op takes that long"},
         true);
  }
  const auto grace = std::chrono::milliseconds(stuck_grace_ms);
  if (supervisor_.wait_for(lock, grace, all_returned)) return;
  if (stuck) {
    Error error = cause_->error;
    error.what = fmt::format("{}: {}; still running after {} ms: {}", cause_->place, cause_->error.what, stuck_grace_ms,
                             standing());
    lock.unlock();
    stuck(error);
    lock.lock();
  }
  supervisor_.wait(lock, all_returned);
}

Status Hub::outcome() const {
  if (!cause_) return {};
  Error error = cause_->error;
  if (!cause_->standing.empty()) error.what += fmt::format(" [{}]", cause_->standing);
  return tl::unexpected<Error>(std::move(error).during(cause_->place));
}

std::string Hub::standing() const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks_.size(), kMostListed); ++i) {
    const Rank& state = ranks_[i];
    if (i > 0) text += "; ";
    text += place(static_cast<int>(i));
    if (state.finished) {
      text += " has returned";
    } else if (state.wait != nullptr) {
      std::vector<int> missing = state.wait->missing();
      const size_t more = missing.size() > kMostListed ? missing.size() - kMostListed : 0;
      missing.resize(missing.size() - more);
      text += fmt::format(" waits in {} for rank {}", state.wait->text(), fmt::join(missing, ", "));
      if (more > 0) text += fmt::format(" and {} more", more);
    } else {
      text += " runs";
    }
  }
  if (ranks_.size() > kMostListed) text += fmt::format("; and {} more ranks", ranks_.size() - kMostListed);
  return text;
}

}  // namespace mbb::trainer
