// The trace model: what every executor (CPU, CUDA, simulated) and every foreign reader produces and all analysis reads.
//
// All times are integer nanoseconds on one clock per trace. A span lies on one track (a rank's stream or host thread);
// strings are numbered once per trace. Step windows say where a rank's step begins and ends: a breakdown of a step sums
// to its window.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mbb::profiler {

// What a track is. A communicator's stream is named by its kind.
enum class StreamKind : uint8_t { kHost, kCompute, kTp, kCp, kEp, kPp, kDp, kCopy, kOther };
inline constexpr int kStreamKinds = 9;

// What a span did. kCommOther: a collective whose communicator is not known (foreign traces).
enum class SpanKind : uint8_t {
  kCompute,
  kCommTp,
  kCommCp,
  kCommEp,
  kCommPp,
  kCommDp,
  kCommOther,
  kCopy,
  kHost,  // host-side work: launches, data loading; never counted as device time
};
inline constexpr int kSpanKinds = 9;

enum class Phase : uint8_t { kNone, kForward, kBackward, kWgrad, kGradSync, kOptimizer, kData };
inline constexpr int kPhases = 7;

const char* name(StreamKind kind);  // "compute", "tp", ...
const char* name(SpanKind kind);    // "compute", "comm.tp", "copy", "host", ...
const char* name(Phase phase);      // "none", "forward", ...

constexpr bool is_comm(SpanKind kind) {
  return kind >= SpanKind::kCommTp && kind <= SpanKind::kCommOther;
}

using StringId = uint32_t;  // index into Trace::strings; 0 is always ""

struct Track {
  int32_t rank = 0;
  StreamKind stream = StreamKind::kCompute;
  StringId name = 0;
};

inline constexpr int32_t kNoStep = -1;
inline constexpr int32_t kNoMicroBatch = -1;

struct Span {
  int64_t start_ns = 0;
  int64_t end_ns = 0;        // exclusive, >= start_ns
  uint64_t collective = 0;   // the same id on every member of one collective call; 0: none
  uint32_t correlation = 0;  // links a host launch with the device spans it caused, within one rank; 0: none
  uint32_t track = 0;        // index into Trace::tracks
  StringId name = 0;         // what ran: the op path, or a kernel's name
  StringId op = 0;           // dotted path of the op it belongs to; 0: not attributed
  int32_t step = kNoStep;
  int32_t micro_batch = kNoMicroBatch;
  SpanKind kind = SpanKind::kCompute;
  Phase phase = Phase::kNone;

  bool operator==(const Span&) const = default;
};

// Where one rank's step lies on the clock: [start_ns, end_ns).
struct StepWindow {
  int32_t rank = 0;
  int32_t step = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  bool operator==(const StepWindow&) const = default;
};

// Numbers strings in order of first use; id 0 is "".
class StringTable {
 public:
  StringTable() { intern(""); }
  StringId intern(std::string_view text);
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  // Looked up by view: no copy of a text that is known.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> strings_;
  std::unordered_map<std::string, StringId, Hash, std::equal_to<>> ids_;
};

struct Trace {
  std::vector<std::string> strings = {""};
  std::vector<Track> tracks;
  std::vector<StepWindow> steps;
  std::vector<Span> spans;     // any order; sort_spans() orders them by (track, start, end)
  uint64_t dropped_spans = 0;  // records the capture lost: a named count, never silence

  const std::string& text(StringId id) const { return strings[id]; }
  int32_t rank_of(const Span& span) const { return tracks[span.track].rank; }
};

void sort_spans(Trace& trace);

// Ranks that own a track, ascending, each once.
std::vector<int32_t> ranks(const Trace& trace);

}  // namespace mbb::profiler
