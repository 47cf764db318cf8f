// Clock reads by clock_gettime: see clock.h.
#include "profiler/base/clock.h"

#include <fmt/format.h>
#include <time.h>

#include "profiler/base/check.h"

namespace mbb {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

int64_t read_ns(clockid_t id) {
  timespec now{};
  MB_CHECK(clock_gettime(id, &now) == 0, "a clock every Linux has could not be read");
  return static_cast<int64_t>(now.tv_sec) * kSecondNs + now.tv_nsec;
}

}  // namespace

int64_t monotonic_ns() {
  return read_ns(CLOCK_MONOTONIC);
}
int64_t thread_cpu_ns() {
  return read_ns(CLOCK_THREAD_CPUTIME_ID);
}
int64_t process_cpu_ns() {
  return read_ns(CLOCK_PROCESS_CPUTIME_ID);
}
int64_t wall_ns() {
  return read_ns(CLOCK_REALTIME);
}

std::string iso_time(int64_t wall_ns_utc) {
  int64_t seconds = wall_ns_utc / kSecondNs;
  int64_t rest_ns = wall_ns_utc % kSecondNs;
  if (rest_ns < 0) {
    rest_ns += kSecondNs;
    --seconds;
  }
  const time_t whole = seconds;
  tm parts{};
  gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, rest_ns / 1'000'000);
}

}  // namespace mbb
