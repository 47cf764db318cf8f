// Attach, drain, detach.
#include "profiler/capture/cupti/cupti_capture.h"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "profiler/base/clock.h"
#include "profiler/capture/cupti/record_reader.h"
#include "profiler/host/library.h"

namespace mbb::profiler::cupti {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20U;
constexpr size_t kBufferAlign = 64;

constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
    CUPTI_ACTIVITY_KIND_CUDA_EVENT,
    CUPTI_ACTIVITY_KIND_OVERHEAD,
};

constexpr CUpti_CallbackId kGraphCallbacks[] = {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                                CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED};

struct FullBuffer {
  uint8_t* data = nullptr;
  size_t valid_bytes = 0;
};

// Buffers go round: CUPTI fills, the drain thread reads. Kept for the life of the process, since CUPTI may still hold
// one when a capture ends.
class Pool {
 public:
  uint8_t* take() {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      uint8_t* const buffer = free_.back();
      free_.pop_back();
      return buffer;
    }
    return static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, kBufferBytes));
  }
  void give(uint8_t* buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(buffer);
  }

 private:
  std::mutex mutex_;
  std::vector<uint8_t*> free_;
};

class Session {
 public:
  explicit Session(const Api& api) : api_(api), reader_(api), drain_([this] { drain(); }) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { stop(); }

  void completed(CUcontext context, uint32_t stream, FullBuffer buffer) {
    size_t dropped = 0;
    if (api_.dropped_records(context, stream, &dropped) == CUPTI_SUCCESS) dropped_ += dropped;
    const std::lock_guard lock(mutex_);
    full_.push_back(buffer);
    wake_.notify_one();
  }

  void node_made(CUgraphNode node, uint32_t op) {
    uint64_t id = 0;
    if (op == 0 || api_.graph_node_id(node, &id) != CUPTI_SUCCESS) return;
    const std::lock_guard lock(nodes_mutex_);
    op_of_node_[id] = op;
  }

  void node_cloned(CUgraphNode original, CUgraphNode clone) {
    uint64_t from = 0, to = 0;
    if (api_.graph_node_id(original, &from) != CUPTI_SUCCESS || api_.graph_node_id(clone, &to) != CUPTI_SUCCESS) return;
    const std::lock_guard lock(nodes_mutex_);
    if (const auto known = op_of_node_.find(from); known != op_of_node_.end()) op_of_node_[to] = known->second;
  }

  // Reads what is left, then ends the drain thread.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    if (drain_.joinable()) drain_.join();
  }

  void hand_over(const CaptureSink& sink) {
    reader_.join(op_of_node_);
    for (size_t i = 1; i < reader_.names().size(); ++i) sink.name(sink.self, reader_.names()[i].c_str());
    sink.records(sink.self, reader_.records().data(), reader_.records().size());
    sink.dropped(sink.self, dropped_ + reader_.unread());  // of such a buffer one record is known to be lost
  }

  CUpti_SubscriberHandle subscriber = nullptr;

 private:
  void drain();

  const Api& api_;
  RecordReader reader_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<FullBuffer> full_;
  bool stopping_ = false;
  std::atomic<uint64_t> dropped_ = 0;
  std::mutex nodes_mutex_;
  std::unordered_map<uint64_t, uint32_t> op_of_node_;
  std::thread drain_;  // last: it uses the others
};

Pool& pool() {
  static Pool* const buffers = new Pool;
  return *buffers;
}

void Session::drain() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !full_.empty(); });
    while (!full_.empty()) {
      const FullBuffer buffer = full_.front();
      full_.pop_front();
      lock.unlock();
      reader_.read(buffer.data, buffer.valid_bytes);
      pool().give(buffer.data);
      lock.lock();
    }
    if (stopping_) return;
  }
}

// begin() and end() hold the mutex; CUPTI's threads read the pointer, which outlives the subscription.
std::mutex g_mutex;
std::unique_ptr<Session> g_owner;
std::atomic<Session*> g_session = nullptr;
thread_local uint32_t t_op = 0;

uint64_t CUPTIAPI clock_ns() {
  return static_cast<uint64_t>(monotonic_ns());
}

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = pool().take();
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  Session* const session = g_session.load();
  if (session != nullptr && valid_bytes > 0)
    session->completed(context, stream, {buffer, valid_bytes});
  else
    pool().give(buffer);
}

void CUPTIAPI on_resource(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  Session* const session = g_session.load();
  if (session == nullptr || domain != CUPTI_CB_DOMAIN_RESOURCE) return;
  const auto* resource = static_cast<const CUpti_ResourceData*>(data);
  const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) session->node_made(graph->node, t_op);
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) session->node_cloned(graph->originalNode, graph->node);
}

Status subscribe(const Api& api, Session& session) {
  char holder[256] = {};
  CUpti_SubscriberParams params{};
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.subscriberName = "mbbench";
  params.oldSubscriberName = holder;
  params.oldSubscriberSize = sizeof(holder);
  const CUptiResult result = api.subscribe(&session.subscriber, on_resource, nullptr, &params);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    holder[sizeof(holder) - 1] = '\0';
    return fail(ErrorCode::kUnavailable, fmt::format("CUPTI is held by {}", cupti_holder(holder)),
                "run without it, or set profiling.use_nsys_profiler to leave the window to nsys");
  }
  return api.good(result, "subscribing");
}

Status attach(const Api& api, Session& session) {
  MB_TRY(subscribe(api, session));
  MB_TRY(api.good(api.register_timestamp(clock_ns), "setting the clock"));
  MB_TRY(api.good(api.register_callbacks(buffer_requested, buffer_completed), "registering buffers"));
  for (const CUpti_CallbackId id : kGraphCallbacks)
    MB_TRY(api.good(api.enable_callback(1, session.subscriber, CUPTI_CB_DOMAIN_RESOURCE, id), "watching graph nodes"));
  // What the end of an earlier capture left is no loss of this one.
  size_t stale = 0;
  api.dropped_records(nullptr, 0, &stale);
  for (const CUpti_ActivityKind kind : kKinds) MB_TRY(api.good(api.enable(kind), "switching records on"));
  return {};
}

// Records first stop, then everything is flushed: what came after the flush would be lost, and counted as dropped by
// the next capture.
Status detach(const Api& api, Session& session) {
  Status first;
  const auto also = [&](CUptiResult result, const char* doing) {
    if (Status status = api.good(result, doing); first) first = std::move(status);
  };
  for (const CUpti_ActivityKind kind : kKinds) also(api.disable(kind), "switching records off");
  also(api.flush_all(1), "flushing records");
  if (session.subscriber != nullptr) also(api.unsubscribe(session.subscriber), "unsubscribing");
  also(api.finalize(), "detaching");
  return first;
}

}  // namespace

Status begin() {
  const std::lock_guard lock(g_mutex);
  if (g_owner != nullptr) return fail(ErrorCode::kUnavailable, "CUPTI: this process is being captured already");
  MB_ASSIGN(const Api* const cupti, api());
  g_owner = std::make_unique<Session>(*cupti);
  g_session = g_owner.get();
  Status attached_now = attach(*cupti, *g_owner);
  if (attached_now) return {};
  if (g_owner->subscriber != nullptr) detach(*cupti, *g_owner);
  g_session = nullptr;
  g_owner.reset();
  return attached_now;
}

Status end(const CaptureSink& sink) {
  const std::lock_guard lock(g_mutex);
  if (g_owner == nullptr) return fail(ErrorCode::kUnavailable, "CUPTI: no capture to end");
  MB_ASSIGN(const Api* const cupti, api());
  const Status detached = detach(*cupti, *g_owner);
  g_session = nullptr;
  g_owner->stop();
  g_owner->hand_over(sink);
  g_owner.reset();
  return detached;
}

bool attached() {
  return g_session.load(std::memory_order_relaxed) != nullptr;
}

void mark(uint32_t op) {
  if (!attached()) return;
  t_op = op;
  if (const auto cupti = api()) (*cupti)->push_external(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, op);
}

void unmark() {
  if (!attached()) return;
  t_op = 0;
  uint64_t last = 0;
  if (const auto cupti = api()) (*cupti)->pop_external(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
}

}  // namespace mbb::profiler::cupti
