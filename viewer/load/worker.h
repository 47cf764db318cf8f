// Threads that read stores and bundles, so that no frame ever waits for a disk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace mbb::viewer {

// Set when nobody waits for the answer any more; long jobs look at it now and then and give up.
using Cancel = std::shared_ptr<std::atomic<bool>>;

class Worker {
 public:
  // `wake` is called from a worker thread after each job (it wakes the frame loop); it must be thread-safe.
  explicit Worker(std::function<void()> wake, std::size_t threads = 2);
  ~Worker();  // drops what is queued, cancels and waits for what runs
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs `job` soon, unless `cancel` is set by then. Jobs must not throw: Query wraps them.
  // A quiet job's end wakes nobody: what it found is looked at with the next frame or look.
  void submit(Cancel cancel, std::function<void()> job, bool quiet = false);

  // Jobs queued or running.
  std::size_t pending() const;

 private:
  struct Job {
    Cancel cancel;
    std::function<void()> run;
    bool quiet = false;
  };
  void serve();

  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> queue_;
  std::vector<Cancel> running_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mbb::viewer
