// From the trace model to Chrome JSON, one event a line.
#include "profiler/trace/writers/kineto_writer.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/trace/readers/kernel_class.h"

namespace mbb::profiler {
namespace {

constexpr int64_t kHostPid = 100'000;  // apart from device numbers
constexpr int64_t kLaneStep = 1000;    // tids of spans that fit no stream's own

std::string micros(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

// The number behind the last blank of "stream 7" or "thread 812".
int64_t number_in(const std::string& name, int64_t otherwise) {
  const auto value = parse_int(name.substr(name.rfind(' ') + 1));
  return value ? *value : otherwise;
}

class KinetoText {
 public:
  KinetoText(const Trace& trace, const KinetoWriteOptions& options) : trace_(trace), options_(options) {
    for (uint32_t i = 0; i < trace.tracks.size(); ++i)
      if (trace.tracks[i].rank == options.rank) name_track(i);
    for (uint32_t i = 0; i < trace.spans.size(); ++i)
      if (trace.rank_of(trace.spans[i]) == options.rank) spans_.push_back(i);
    std::stable_sort(spans_.begin(), spans_.end(), [&](uint32_t a, uint32_t b) {
      const Span &left = trace.spans[a], &right = trace.spans[b];
      return left.start_ns != right.start_ns ? left.start_ns < right.start_ns : left.end_ns > right.end_ns;
    });
    for (const uint32_t i : spans_) {
      const Span& span = trace.spans[i];
      (span.kind == SpanKind::kHost ? launches_ : device_).insert(span.correlation);
    }
    launches_.erase(0);
  }

  std::string run() {
    header();
    metadata();
    steps();
    for (const uint32_t i : spans_) {
      const Span& span = trace_.spans[i];
      if (span.kind == SpanKind::kHost)
        host(span);
      else
        device(span);
    }
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  struct Place {
    int64_t pid = 0;
    int64_t tid = 0;
    std::vector<std::vector<int64_t>> lanes;  // of each lane, ends of the spans that are open
  };

  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void event() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }

  void name_track(uint32_t track) {
    const Track& t = trace_.tracks[track];
    Place place;
    place.pid = t.stream == StreamKind::kHost ? kHostPid + options_.rank : options_.rank;
    place.tid = number_in(trace_.text(t.name), track + 1);
    const auto taken = [&] {
      return std::any_of(places_.begin(), places_.end(),
                         [&](const auto& p) { return p.second.pid == place.pid && p.second.tid == place.tid; });
    };
    while (taken()) ++place.tid;
    places_[track] = std::move(place);
  }

  void header() {
    put("{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"traceName\": {}, \"mbbench\": {{\"note\": {}, "
        "\"dropped_records\": {}}},\n",
        json_quote(options_.trace_name), json_quote(options_.note), trace_.dropped_spans);
    put("\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}, \"pg_count\": {}, "
        "\"pg_config\": [",
        options_.rank, options_.world_size, options_.groups.size());
    for (size_t i = 0; i < options_.groups.size(); ++i)
      put("{}{{\"pg_name\": {}, \"pg_desc\": {}, \"backend_config\": \"cuda:nccl\", \"pg_size\": {}, \"ranks\": {}}}",
          i > 0 ? ", " : "", json_quote(options_.groups[i].name), json_quote(options_.groups[i].name),
          options_.groups[i].ranks.size(), rank_list(options_.groups[i].ranks));
    put("]}},\n\"deviceProperties\": [],\n\"traceEvents\": [");
  }

  static std::string rank_list(const std::vector<int32_t>& ranks) {
    return fmt::format("[{}]", fmt::join(ranks, ", "));
  }

  void metadata() {
    name_process(options_.rank, fmt::format("rank {} device", options_.rank), "GPU 0");
    name_process(kHostPid + options_.rank, fmt::format("rank {} host", options_.rank), "CPU");
    for (const auto& [track, place] : places_) {
      event();
      put("{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"ts\": 0, \"args\": {{\"name\": "
          "{}}}}}",
          place.pid, place.tid,
          json_quote(
              fmt::format("{} ({})", trace_.text(trace_.tracks[track].name), name(trace_.tracks[track].stream))));
    }
  }

  void name_process(int64_t pid, const std::string& process, const char* label) {
    event();
    put("{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"tid\": 0, \"ts\": 0, \"args\": {{\"name\": {}}}}}",
        pid, json_quote(process));
    event();
    put("{{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": {}, \"tid\": 0, \"ts\": 0, \"args\": {{\"labels\": "
        "\"{}\"}}}}",
        pid, label);
  }

  // On a thread of their own: a step is longer than the calls inside it and contains them.
  void steps() {
    for (const StepWindow& window : trace_.steps) {
      if (window.rank != options_.rank) continue;
      event();
      put("{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{}\", \"pid\": {}, \"tid\": {}, "
          "\"ts\": "
          "{}, \"dur\": {}, \"args\": {{}}}}",
          window.step, kHostPid + options_.rank, kStepTid, micros(window.start_ns),
          micros(window.end_ns - window.start_ns));
    }
  }

  // The lane of a tid where the span follows or nests.
  static int64_t lane_of(Place& place, const Span& span) {
    for (size_t lane = 0;; ++lane) {
      if (lane == place.lanes.size()) place.lanes.emplace_back();
      auto& open = place.lanes[lane];
      while (!open.empty() && open.back() <= span.start_ns) open.pop_back();
      if (!open.empty() && open.back() < span.end_ns) continue;
      open.push_back(span.end_ns);
      return place.tid + static_cast<int64_t>(lane) * kLaneStep;
    }
  }

  void host(const Span& span) {
    Place& place = places_[span.track];
    const bool call = span.correlation != 0;
    event();
    put("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}, \"args\": "
        "{{",
        call ? "cuda_runtime" : "overhead", json_quote(trace_.text(span.name)), place.pid, lane_of(place, span),
        micros(span.start_ns), micros(span.end_ns - span.start_ns));
    if (call) put("\"correlation\": {}", span.correlation);
    put("}}}}");
    if (call && device_.contains(span.correlation)) flow_start(span.correlation, place, span.start_ns);
  }

  void flow_start(uint64_t id, const Place& place, int64_t ns) {
    event();
    put("{{\"ph\": \"s\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \"cat\": \"ac2g\", \"name\": \"ac2g\"}}",
        id, place.pid, place.tid, micros(ns));
  }

  void device(const Span& span) {
    Place& place = places_[span.track];
    uint64_t correlation = span.correlation;
    if (launches_.empty()) correlation = replayed_launch(span);
    const int64_t tid = lane_of(place, span);
    const std::string name = device_name(span);
    event();
    put("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}, \"args\": "
        "{{\"device\": {}, \"stream\": {}, \"correlation\": {}, \"op\": {}, \"phase\": \"{}\", \"step\": {}, "
        "\"micro_batch\": {}",
        category(name), json_quote(name), place.pid, tid, micros(span.start_ns), micros(span.end_ns - span.start_ns),
        options_.rank, place.tid, correlation, json_quote(trace_.text(span.op)), mbb::profiler::name(span.phase),
        span.step, span.micro_batch);
    if (is_comm(span.kind)) collective(span);
    put("}}}}");
    // One flow a launch: a graph's launch leads to its first kernel.
    if (correlation != 0 && ended_.insert(correlation).second) {
      event();
      put("{{\"ph\": \"f\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \"cat\": \"ac2g\", \"name\": \"ac2g\", "
          "\"bp\": "
          "\"e\"}}",
          correlation, place.pid, tid, micros(span.start_ns));
    }
  }

  uint64_t replayed_launch(const Span& span) {
    const uint64_t id = ++replayed_;
    Place place;
    place.pid = kHostPid + options_.rank;
    place.tid = kReplayTid;
    event();
    put("{{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"enqueue (replayed)\", \"pid\": {}, \"tid\": {}, "
        "\"ts\": {}, "
        "\"dur\": 0, \"args\": {{\"correlation\": {}}}}}",
        place.pid, place.tid, micros(span.start_ns), id);
    flow_start(id, place, span.start_ns);
    return id;
  }

  std::string device_name(const Span& span) const {
    const std::string& name = trace_.text(span.name);
    if (is_comm(span.kind)) return is_comm_kernel(name) ? name : "ncclDevKernel:" + name;
    if (span.kind == SpanKind::kCopy) return is_memory_kernel(name) ? name : "Memcpy " + name;
    return name;
  }

  static const char* category(const std::string& name) {
    if (name.starts_with("Memcpy")) return "gpu_memcpy";
    return name.starts_with("Memset") ? "gpu_memset" : "kernel";
  }

  void collective(const Span& span) {
    std::optional<KinetoCollective> known;
    if (options_.collective) known = options_.collective(trace_.text(span.op != 0 ? span.op : span.name));
    if (span.collective != 0) put(", \"Seq\": {}", span.collective);
    if (!known) return;
    put(", \"Collective name\": {}, \"In msg nelems\": {}, \"Out msg nelems\": {}, \"Group size\": {}, \"dtype\": {}, "
        "\"Process Group Name\": {}, \"Process Group Description\": {}, \"Process Group Ranks\": {}",
        json_quote(known->name), known->in_elements, known->in_elements, known->group_size, json_quote(known->dtype),
        json_quote(known->group), json_quote(known->description), json_quote(known->ranks));
  }

  static constexpr int64_t kStepTid = 900'001;
  static constexpr int64_t kReplayTid = 900'002;

  const Trace& trace_;
  const KinetoWriteOptions& options_;
  std::string out_;
  bool first_ = true;
  std::map<uint32_t, Place> places_;
  std::vector<uint32_t> spans_;  // of the rank, by start, containing spans first
  std::unordered_set<uint32_t> launches_, device_;
  std::unordered_set<uint64_t> ended_;
  uint64_t replayed_ = 0;
};

Status write_gzip(const std::filesystem::path& path, const std::string& text) {
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;
  if (deflateInit2(&stream, 6, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return fail(ErrorCode::kOutOfMemory, "starting gzip");
  std::string packed(deflateBound(&stream, text.size()), '\0');
  // zlib counts 32 bits at a time; texts above that are fed in pieces.
  constexpr size_t kPiece = size_t{1} << 30U;
  size_t from = 0;
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  size_t room = packed.size();
  int state = Z_OK;
  while (state == Z_OK) {
    const size_t in = std::min(kPiece, text.size() - from), out = std::min(kPiece, room);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data() + from));
    stream.avail_in = static_cast<uInt>(in);
    stream.avail_out = static_cast<uInt>(out);
    state = deflate(&stream, from + in == text.size() ? Z_FINISH : Z_NO_FLUSH);
    from += in - stream.avail_in;
    room -= out - stream.avail_out;
    if (state == Z_BUF_ERROR && room > 0) state = Z_OK;
  }
  deflateEnd(&stream);
  if (state != Z_STREAM_END) return fail(ErrorCode::kIo, fmt::format("compressing {}", path.string()));
  packed.resize(packed.size() - room);
  return write_file(path, packed);
}

}  // namespace

std::string kineto_text(const Trace& trace, const KinetoWriteOptions& options) {
  return KinetoText(trace, options).run();
}

Status write_kineto(const std::filesystem::path& path, const Trace& trace, const KinetoWriteOptions& options) {
  const std::string text = kineto_text(trace, options);
  return path.extension() == ".gz" ? write_gzip(path, text) : write_file(path, text);
}

}  // namespace mbb::profiler
