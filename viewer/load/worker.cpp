// A small pool with a queue.
#include "viewer/load/worker.h"

#include <algorithm>

namespace mbb::viewer {

Worker::Worker(std::function<void()> wake, std::size_t threads) : wake_(std::move(wake)) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
    for (const Cancel& cancel : running_) cancel->store(true);
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Worker::submit(Cancel cancel, std::function<void()> job, bool quiet) {
  {
    const std::lock_guard lock(mutex_);
    // A superseded job that has not begun gives its place up, which bounds the queue by the number of queries.
    std::erase_if(queue_, [](const Job& waiting) { return waiting.cancel->load(); });
    queue_.push_back({std::move(cancel), std::move(job), quiet});
  }
  ready_.notify_one();
}

std::size_t Worker::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + running_.size();
}

void Worker::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    if (job.cancel->load()) continue;
    running_.push_back(job.cancel);
    lock.unlock();
    job.run();
    lock.lock();
    running_.erase(std::find(running_.begin(), running_.end(), job.cancel));
    lock.unlock();
    if (wake_ && !job.quiet) wake_();
    lock.lock();
  }
}

}  // namespace mbb::viewer
