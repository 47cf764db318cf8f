// The clocks of the product: monotonic for intervals, thread CPU time for oversubscribed ranks, wall time for records.
#pragma once

#include <cstdint>
#include <string>

namespace mbb {

int64_t monotonic_ns();    // CLOCK_MONOTONIC; comparable between processes of one host
int64_t thread_cpu_ns();   // CPU time of the calling thread
int64_t process_cpu_ns();  // CPU time of all threads of this process
int64_t wall_ns();         // since 1970-01-01 UTC; may jump, so never subtract two of them for a duration

// "2026-11-28T00:07:44.123Z"; sorts as text in time order.
std::string iso_time(int64_t wall_ns_utc);

// Measures one interval on the monotonic clock.
class Stopwatch {
 public:
  Stopwatch() : start_ns_(monotonic_ns()) {}
  int64_t elapsed_ns() const { return monotonic_ns() - start_ns_; }

 private:
  int64_t start_ns_;
};

}  // namespace mbb
