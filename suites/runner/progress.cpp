// Draws progress with the time that is left, from the share of steps done.
#include "suites/runner/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include "profiler/base/clock.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "trainer/comm/process_place.h"

namespace mbb::suites {
namespace {
constexpr int64_t kRedrawNs = 100'000'000;
}

Progress::Progress(size_t cells, bool quiet)
    : cells_(cells), quiet_(quiet), terminal_(trainer::terminal_is_seen(STDERR_FILENO)), started_ns_(monotonic_ns()) {}

Progress::~Progress() {
  if (!quiet_ && terminal_ && !name_.empty()) say(fmt::format("\r\033[K"));
}

void Progress::begin_cell(const std::string& name) {
  const int64_t now = monotonic_ns();
  if (!name_.empty()) spent_ns_[name_] += now - cell_started_ns_;
  name_ = name;
  done_ = of_ = 0;
  cell_started_ns_ = now;
  draw(false);
}

void Progress::step(int64_t done, int64_t of, double loss) {
  done_ = done;
  of_ = of;
  loss_ = loss;
  if (monotonic_ns() - drawn_ns_ > kRedrawNs) draw(false);
}

void Progress::end_cell(const std::string& outcome) {
  ++finished_;
  done_ = of_ = 0;
  if (quiet_) return;
  const std::string took = format_ns(static_cast<double>(spent_ns_[name_] + monotonic_ns() - cell_started_ns_));
  say(fmt::format("{}[{}/{}] {}  {}  {}\n", terminal_ ? "\r\033[K" : "", finished_, cells_, name_, outcome, took));
  name_.clear();
}

double Progress::fraction() const {
  const double inside = of_ > 0 ? static_cast<double>(done_) / static_cast<double>(of_) : 0.0;
  return (static_cast<double>(finished_) + inside) / static_cast<double>(cells_);
}

void Progress::draw(bool) {
  if (quiet_ || !terminal_) return;
  drawn_ns_ = monotonic_ns();
  std::string eta = "-";
  if (fraction() > 0.02) {
    const auto elapsed = static_cast<double>(drawn_ns_ - started_ns_);
    eta = format_ns(elapsed / fraction() - elapsed);
  }
  const std::string loss = of_ > 0 ? fmt::format("  loss {:.3f}", loss_) : "";
  say(fmt::format("\r\033[K[{}/{}] {}  step {}/{}{}  left {}", finished_ + 1, cells_, name_, done_, of_, loss, eta));
}

}  // namespace mbb::suites
