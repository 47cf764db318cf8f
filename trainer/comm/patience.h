// How long a world may go without a sign of life before it ends: much until two steps are known, since a GPU's second
// one captures its graphs and the driver may take its time for it; then some steps' time. Signs of life are ops that
// begin, so that a slow run which goes on is never out of patience.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace mbb::trainer {

struct PatienceLimits {
  int64_t first_ms = 120'000;  // until two steps have ended, while the host works, and never more
  int64_t least_ms = 10'000;
  int64_t steps = 20;  // times the longest step seen
};

// One thread tells, any thread asks.
class Patience {
 public:
  explicit Patience(PatienceLimits limits = {}) : limits_(limits) {}

  int64_t ms() const {
    const int64_t longest_ms = longest_ns_.load(std::memory_order_relaxed) / 1'000'000;
    if (ended_.load(std::memory_order_relaxed) < 2 || host_works_.load(std::memory_order_relaxed))
      return limits_.first_ms;
    return std::min(limits_.first_ms, std::max(limits_.least_ms, limits_.steps * longest_ms));
  }
  void step_took(int64_t ns) {
    longest_ns_.store(std::max({ns, longest_ns_.load(std::memory_order_relaxed), int64_t{1'000'000}}),
                      std::memory_order_relaxed);
    ended_.fetch_add(1, std::memory_order_relaxed);
  }
  // Between steps the host may replay, trace or write for long, and no op begins.
  void host_works(bool works) { host_works_.store(works, std::memory_order_relaxed); }

 private:
  PatienceLimits limits_;
  std::atomic<int64_t> longest_ns_ = 0, ended_ = 0;
  std::atomic<bool> host_works_ = false;
};

// While it lives the host of the `first` rank works, and no op need begin; of other ranks it says nothing.
class HostWorks {
 public:
  HostWorks(Patience& patience, bool first) : patience_(first ? &patience : nullptr) { tell(true); }
  ~HostWorks() { tell(false); }
  HostWorks(const HostWorks&) = delete;
  HostWorks& operator=(const HostWorks&) = delete;

 private:
  void tell(bool works) {
    if (patience_ != nullptr) patience_->host_works(works);
  }
  Patience* patience_;
};

// Time without a sign of life, as whoever looks every now and then counts it: a look that comes late (the process was
// stopped, the machine slept or had no core for it) counts as no more than kMostAtOnceMs, for the ranks stood still
// too.
class QuietTime {
 public:
  static constexpr int64_t kMostAtOnceMs = 1'000;

  // At `now_ns` the signs of life are `life` and the limit is `limit_ms`; whether it has passed. A new limit begins
  // anew.
  bool too_long(uint64_t life, int64_t limit_ms, int64_t now_ns) {
    const int64_t passed_ns = std::min(now_ns - last_ns_, kMostAtOnceMs * 1'000'000);
    const bool anew = last_ns_ == 0 || life != life_ || limit_ms != limit_ms_;
    quiet_ns_ = anew ? 0 : quiet_ns_ + passed_ns;
    life_ = life;
    limit_ms_ = limit_ms;
    last_ns_ = now_ns;
    return limit_ms > 0 && quiet_ns_ >= limit_ms * 1'000'000;
  }

 private:
  uint64_t life_ = 0;
  int64_t limit_ms_ = 0, last_ns_ = 0, quiet_ns_ = 0;
};

}  // namespace mbb::trainer
