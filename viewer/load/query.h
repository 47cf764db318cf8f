// One value a panel wants, loaded beside the frames: idle, loading, ready or failed, never blocking.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "profiler/base/error.h"
#include "viewer/load/worker.h"

namespace mbb::viewer {

// The key names what is wanted ("run r-12, generation 4"); another key starts another load and cancels the running one.
// The last good value stays readable while its successor loads, so that following a live run does not flicker.
template <typename T>
class Query {
 public:
  using Load = std::function<Result<T>(const std::atomic<bool>& cancelled)>;

  ~Query() { drop(); }

  // Call every frame with what is wanted now. `quiet`: its answer is no reason to draw (worker.h).
  void want(Worker& worker, const std::string& key, const Load& load, bool quiet = false) {
    take();
    if (key == key_) return;
    drop();
    key_ = key;
    ticket_ = std::make_shared<Ticket>();
    cancel_ = std::make_shared<std::atomic<bool>>(false);
    worker.submit(
        cancel_,
        [ticket = ticket_, cancel = cancel_, load] {
          Result<T> result = run(load, *cancel);
          const std::lock_guard lock(ticket->mutex);
          ticket->result.emplace(std::move(result));
        },
        quiet);
  }

  // Nothing is wanted: forget the value too.
  void clear() {
    drop();
    key_.clear();
    value_.reset();
    error_.reset();
  }

  // Until want() has taken the answer: an answer that nobody wants any more leaves it true.
  bool loading() const { return ticket_ != nullptr; }
  const T* value() const { return value_.get(); }
  std::shared_ptr<const T> share() const { return value_; }
  const Error* error() const { return error_ ? &*error_ : nullptr; }
  const std::string& key() const { return key_; }
  // The key `value()` was loaded for.
  const std::string& value_key() const { return value_key_; }

 private:
  struct Ticket {
    std::mutex mutex;
    std::optional<Result<T>> result;
  };

  static Result<T> run(const Load& load, const std::atomic<bool>& cancelled) {
    try {
      return load(cancelled);
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kOutOfMemory, "loading: not enough memory", "close other programs or open a smaller run");
    } catch (const std::exception& error) {
      return fail(ErrorCode::kBadFile, std::string("loading: ") + error.what());
    }
  }

  void drop() {
    if (cancel_) cancel_->store(true);
    ticket_.reset();
    cancel_.reset();
  }

  void take() {
    if (!ticket_) return;
    std::optional<Result<T>> result;
    {
      const std::lock_guard lock(ticket_->mutex);
      result.swap(ticket_->result);
    }
    if (!result) return;
    ticket_.reset();
    cancel_.reset();
    value_key_ = key_;
    if (result->has_value()) {
      value_ = std::make_shared<const T>(std::move(**result));
      error_.reset();
    } else {
      error_ = std::move(result->error());
      value_.reset();
    }
  }

  std::string key_;
  std::string value_key_;
  std::shared_ptr<Ticket> ticket_;
  Cancel cancel_;
  std::shared_ptr<const T> value_;
  std::optional<Error> error_;
};

}  // namespace mbb::viewer
