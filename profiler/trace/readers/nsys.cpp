// From the tables of an Nsight Systems export to the trace model.
#include "profiler/trace/readers/nsys.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "profiler/trace/readers/kernel_class.h"
#include "profiler/trace/readers/nsys_tables.h"

namespace mbb::profiler {

namespace {

constexpr int64_t kProcessMask = ~int64_t{0xFFFFFF};  // globalTid without its thread is the globalPid
constexpr int64_t kPushPopRange = 59;                 // NVTX_EVENTS.eventType
constexpr int64_t kStartEndRange = 60;
constexpr int64_t kTimeLimit = 4'000'000'000'000'000'000;  // ns; differences of two such times fit

struct LaunchKey {
  int64_t process;
  int64_t correlation;
  bool operator==(const LaunchKey&) const = default;
};
struct LaunchHash {
  size_t operator()(const LaunchKey& key) const {
    return std::hash<uint64_t>()(static_cast<uint64_t>(key.process) * 0x9E3779B97F4A7C15ULL ^
                                 static_cast<uint64_t>(key.correlation));
  }
};
struct Launch {
  uint32_t id = 0;     // correlation of the model
  StringId range = 0;  // innermost NVTX range around the call
};

// A range or call on a host thread.
struct HostItem {
  int64_t start_ns;
  int64_t end_ns;
  StringId name;
  LaunchKey key;  // of a call
  bool is_call;
};

class Reader {
 public:
  Reader(const NsysTables& tables, const NsysOptions& options) : tables_(tables), options_(options) {}

  Result<NsysTrace> read() {
    MB_TRY(read_strings());
    MB_TRY(read_models());
    if (options_.host) {
      MB_TRY(read_calls());
      MB_TRY(read_ranges());
      place_host_items();
    }
    MB_TRY(read_device("CUPTI_ACTIVITY_KIND_KERNEL", Work::kKernel));
    if (options_.copies) {
      MB_TRY(read_device("CUPTI_ACTIVITY_KIND_MEMCPY", Work::kCopy));
      MB_TRY(read_device("CUPTI_ACTIVITY_KIND_MEMSET", Work::kFill));
    }
    if (windows_.empty())
      return fail(ErrorCode::kBadFile, "no GPU activity in the export",
                  "record with --trace=cuda on a machine with a GPU");
    finish();
    return std::move(out_);
  }

 private:
  enum class Work { kKernel, kCopy, kFill };

  Status read_strings() {
    return tables_.rows("StringIds", {"id", "value"}, [&](const NsysRow& row) {
      const auto id = row.integer(0);
      const auto text = row.text(1);
      if (id && text) names_[*id] = strings_.intern(*text);
    });
  }

  Status read_models() {
    return tables_.rows("TARGET_INFO_GPU", {"name"}, [&](const NsysRow& row) {
      const auto model = row.text(0);
      if (model && std::find(out_.devices.begin(), out_.devices.end(), *model) == out_.devices.end())
        out_.devices.emplace_back(*model);
    });
  }

  StringId name_of(std::optional<int64_t> id) const {
    const auto found = id ? names_.find(*id) : names_.end();
    return found != names_.end() ? found->second : 0;
  }

  bool is_span(std::optional<int64_t> start, std::optional<int64_t> end) {
    if (start && end && *end >= *start && *start > -kTimeLimit && *end < kTimeLimit) return true;
    ++out_.malformed_rows;
    return false;
  }

  Status read_calls() {
    return tables_.rows("CUPTI_ACTIVITY_KIND_RUNTIME", {"start", "end", "globalTid", "correlationId", "nameId"},
                        [&](const NsysRow& row) {
                          const auto start = row.integer(0);
                          const auto end = row.integer(1);
                          const auto thread = row.integer(2);
                          const auto correlation = row.integer(3);
                          if (!is_span(start, end) || !thread) return;
                          const LaunchKey key{*thread & kProcessMask, correlation.value_or(0)};
                          threads_[*thread].push_back({*start, *end, name_of(row.integer(4)), key, true});
                        });
  }

  Status read_ranges() {
    return tables_.rows("NVTX_EVENTS", {"start", "end", "globalTid", "text", "textId", "eventType"},
                        [&](const NsysRow& row) {
                          const auto type = row.integer(5);
                          if (type && *type != kPushPopRange && *type != kStartEndRange) return;
                          const auto start = row.integer(0);
                          const auto end = row.integer(1);
                          const auto thread = row.integer(2);
                          if (!start || !end || !thread) return;  // marks, and ranges that were never closed
                          if (!is_span(start, end)) return;
                          const auto text = row.text(3);
                          const StringId name = text ? strings_.intern(*text) : name_of(row.integer(4));
                          threads_[*thread].push_back({*start, *end, name, {}, false});
                        });
  }

  // Walks each thread in time order with the stack of open ranges, and gives every call its innermost one.
  void place_host_items() {
    for (auto& [thread, items] : threads_) {
      std::stable_sort(items.begin(), items.end(), [](const HostItem& a, const HostItem& b) {
        return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
      });
      const uint32_t calls = track(kNsysHostRank, StreamKind::kHost, fmt::format("thread {} calls", thread));
      const uint32_t ranges = track(kNsysHostRank, StreamKind::kHost, fmt::format("thread {} ranges", thread));
      std::vector<const HostItem*> open;
      for (const HostItem& item : items) {
        while (!open.empty() && open.back()->end_ns < item.end_ns) open.pop_back();
        Span span;
        span.start_ns = item.start_ns;
        span.end_ns = item.end_ns;
        span.track = item.is_call ? calls : ranges;
        span.name = item.name;
        span.kind = SpanKind::kHost;
        if (item.is_call) {
          const auto id = static_cast<uint32_t>(launches_.size() + 1);
          const StringId range = open.empty() ? 0 : open.back()->name;
          span.correlation = launches_.try_emplace(item.key, Launch{id, range}).first->second.id;
          span.op = range;
        } else {
          open.push_back(&item);
        }
        out_.trace.spans.push_back(span);
      }
    }
    threads_.clear();
  }

  Status read_device(const std::string& table, Work work) {
    // A kernel's full name tells more than its short one; older schemas have only one of them.
    return tables_.rows(table,
                        {"start", "end", "deviceId", "streamId", "globalPid", "correlationId", "demangledName",
                         "shortName", "copyKind"},
                        [&](const NsysRow& row) { add_device_row(row, work); });
  }

  void add_device_row(const NsysRow& row, Work work) {
    const auto start = row.integer(0);
    const auto end = row.integer(1);
    const auto device = row.integer(2);
    if (!is_span(start, end)) return;
    if (!device || *device < 0 || *device > std::numeric_limits<int32_t>::max()) {
      ++out_.malformed_rows;
      return;
    }
    const auto rank = static_cast<int32_t>(*device);
    const StringId full = name_of(row.integer(6));
    Span span;
    span.start_ns = *start;
    span.end_ns = *end;
    span.track = track(rank, StreamKind::kOther, fmt::format("stream {}", row.integer(3).value_or(0)));
    span.name = full != 0 ? full : name_of(row.integer(7));
    if (work == Work::kKernel) span.kind = kind_of_kernel(strings_.strings()[span.name]);
    if (work == Work::kCopy) {
      span.kind = SpanKind::kCopy;
      span.name = strings_.intern(fmt::format("Memcpy kind {}", row.integer(8).value_or(0)));
    }
    if (work == Work::kFill) span.name = strings_.intern("Memset");
    const auto launch = launches_.find({row.integer(4).value_or(0), row.integer(5).value_or(0)});
    if (launch != launches_.end()) {
      span.correlation = launch->second.id;
      span.op = launch->second.range;
    } else if (work == Work::kKernel) {
      ++out_.unlinked_kernels;
    }
    auto [window, added] = windows_.try_emplace(rank, StepWindow{rank, 0, *start, *end});
    window->second.start_ns = std::min(window->second.start_ns, *start);
    window->second.end_ns = std::max(window->second.end_ns, *end);
    out_.trace.spans.push_back(span);
  }

  uint32_t track(int32_t rank, StreamKind kind, const std::string& name) {
    const StringId id = strings_.intern(name);
    const auto [entry, added] =
        tracks_.try_emplace(std::pair{rank, id}, static_cast<uint32_t>(out_.trace.tracks.size()));
    if (added) out_.trace.tracks.push_back({rank, kind, id});
    return entry->second;
  }

  void finish() {
    Trace& trace = out_.trace;
    trace.strings = strings_.strings();
    int64_t zero = std::numeric_limits<int64_t>::max();
    for (const Span& span : trace.spans) zero = std::min(zero, span.start_ns);
    for (const auto& [rank, window] : windows_) trace.steps.push_back(window);
    for (Span& span : trace.spans) {
      span.start_ns -= zero;
      span.end_ns -= zero;
    }
    for (StepWindow& window : trace.steps) {
      window.start_ns -= zero;
      window.end_ns -= zero;
    }
    sort_spans(trace);
  }

  const NsysTables& tables_;
  NsysOptions options_;
  NsysTrace out_;
  StringTable strings_;
  std::unordered_map<int64_t, StringId> names_;
  std::map<int64_t, std::vector<HostItem>> threads_;
  std::unordered_map<LaunchKey, Launch, LaunchHash> launches_;
  std::map<std::pair<int32_t, StringId>, uint32_t> tracks_;
  std::map<int32_t, StepWindow> windows_;
};

}  // namespace

Result<NsysTrace> read_nsys(const std::filesystem::path& path, const NsysOptions& options) {
  MB_ASSIGN(const NsysTables tables, NsysTables::open(path));
  auto read = Reader(tables, options).read();
  if (!read) return tl::unexpected(std::move(read.error()).during(path.string()));
  return read;
}

}  // namespace mbb::profiler
