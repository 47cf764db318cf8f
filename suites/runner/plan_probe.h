// Finds out which cells end in one of our own checks (MB_CHECK) when they are planned, before this process plans them:
// a process of its own goes ahead over the cells, and is started again behind each that ends it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

namespace mbb::suites {

class PlanProbe {
 public:
  // work(i) for each of `count` cells, in forked processes. Starts before this process has threads. A process that
  // cannot be started finds nothing.
  PlanProbe(size_t count, std::function<void(size_t)> work);
  ~PlanProbe();
  PlanProbe(const PlanProbe&) = delete;
  PlanProbe& operator=(const PlanProbe&) = delete;

  // Waits for cell i: what its failed check said, or which signal ended it; empty where it can be planned. Cells are
  // asked for in order.
  std::string failure(size_t i);

 private:
  void start(size_t first);
  std::string last_words();

  size_t count_;
  std::function<void(size_t)> work_;
  size_t done_ = 0;     // cells behind us
  pid_t process_ = -1;  // -1: none runs
  int done_pipe_ = -1;  // a byte a cell
  int words_pipe_ = -1;
};

}  // namespace mbb::suites
