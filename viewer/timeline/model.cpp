// Building lanes and their summaries.
#include "viewer/timeline/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <thread>

#include "viewer/theme/work_ink.h"

namespace mbb::viewer {
namespace {

using analysis::Intervals;
using analysis::TimeInterval;
using profiler::Span;
using profiler::SpanKind;
using profiler::Trace;

WorkShade shade_of_ink(Ink ink) {
  switch (ink) {
    case Ink::kGemm: return WorkShade::kGemm;
    case Ink::kAttention: return WorkShade::kAttention;
    case Ink::kCommunication: return WorkShade::kCommunication;
    case Ink::kCopy: return WorkShade::kCopy;
    case Ink::kOptimizer: return WorkShade::kOptimizer;
    default: return WorkShade::kMemoryBound;
  }
}

// Names are few and spans are many: the words of a name are looked at once.
class Shader {
 public:
  Shader(const Trace& trace, ColorBy color_by, const OpKinds& kinds) : color_by_(color_by) {
    if (color_by != ColorBy::kWork) return;
    by_name_.reserve(trace.strings.size());
    for (const std::string& text : trace.strings) {
      const auto kind = kinds.find(text);
      by_name_.push_back(shade_of_ink(kind == kinds.end() ? op_ink(text, "") : op_ink(kind->second, text)));
    }
  }

  std::uint8_t operator()(const Span& span) const {
    switch (color_by_) {
      case ColorBy::kPhase: return static_cast<std::uint8_t>(span.phase);
      case ColorBy::kMicroBatch:
        return span.micro_batch < 0 ? 0 : static_cast<std::uint8_t>(1 + span.micro_batch % (kMaxShades - 1));
      case ColorBy::kWork: break;
    }
    if (span.kind == SpanKind::kHost) return static_cast<std::uint8_t>(WorkShade::kHost);
    if (span.kind == SpanKind::kCopy) return static_cast<std::uint8_t>(WorkShade::kCopy);
    if (profiler::is_comm(span.kind)) return static_cast<std::uint8_t>(WorkShade::kCommunication);
    if (span.phase == profiler::Phase::kOptimizer) return static_cast<std::uint8_t>(WorkShade::kOptimizer);
    const WorkShade by_op = by_name_[span.op];
    // A kernel's own name says more than an op path that names only a layer.
    return static_cast<std::uint8_t>(by_op == WorkShade::kMemoryBound ? by_name_[span.name] : by_op);
  }

 private:
  ColorBy color_by_;
  std::vector<WorkShade> by_name_;
};

struct Adding {
  std::array<std::int64_t, kMaxShades> busy{};
  LaneNode node;
  std::int64_t longest_ns = -1;

  Adding() {
    node.start_ns = std::numeric_limits<std::int64_t>::max();
    node.end_ns = std::numeric_limits<std::int64_t>::min();
  }
  void add(std::int64_t start, std::int64_t end, std::int64_t busy_ns, std::uint8_t shade, std::uint32_t item,
           std::int64_t item_ns) {
    node.start_ns = std::min(node.start_ns, start);
    node.end_ns = std::max(node.end_ns, end);
    node.busy_ns += busy_ns;
    busy[shade % kMaxShades] += busy_ns;
    if (item_ns > longest_ns) {
      longest_ns = item_ns;
      node.longest = item;
    }
  }
  LaneNode done() {
    node.shade = static_cast<std::uint8_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    return node;
  }
};

void summarise(Lane& lane) {
  lane.levels.clear();
  std::vector<LaneNode> level;
  level.reserve(lane.size() / kFan + 1);
  for (std::size_t first = 0; first < lane.size(); first += kFan) {
    Adding adding;
    for (std::size_t i = first; i < std::min(first + kFan, lane.size()); ++i) {
      const TimeInterval& time = lane.times[i];
      const std::int64_t length = time.end_ns - time.start_ns;
      adding.add(time.start_ns, time.end_ns, length, lane.shades[i], static_cast<std::uint32_t>(i), length);
    }
    level.push_back(adding.done());
  }
  while (true) {
    lane.levels.push_back(std::move(level));
    const std::vector<LaneNode>& below = lane.levels.back();
    if (below.size() <= kFan) return;
    level = {};
    level.reserve(below.size() / kFan + 1);
    for (std::size_t first = 0; first < below.size(); first += kFan) {
      Adding adding;
      for (std::size_t i = first; i < std::min(first + kFan, below.size()); ++i) {
        const LaneNode& node = below[i];
        const TimeInterval& longest = lane.times[node.longest];
        adding.add(node.start_ns, node.end_ns, node.busy_ns, node.shade, node.longest,
                   longest.end_ns - longest.start_ns);
      }
      level.push_back(adding.done());
    }
  }
}

std::string track_title(const Trace& trace, const profiler::Track& track) {
  const std::string own = track.name < trace.strings.size() ? trace.strings[track.name] : std::string();
  return own.empty() ? std::string(name(track.stream)) : own.substr(0, 80);
}

// First fit: a span goes to the first lane whose last one has ended. Children of a nest land below their parent.
std::vector<Lane> lanes_of_track(const Trace& trace, std::uint32_t track, const std::vector<std::uint32_t>& given,
                                 const Shader& shader, std::uint64_t& left_out) {
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const Span& left = trace.spans[a];
    const Span& right = trace.spans[b];
    return left.start_ns != right.start_ns ? left.start_ns < right.start_ns : left.end_ns > right.end_ns;
  };
  // Readers give a track in time order nearly always; only what is not is copied and sorted.
  std::vector<std::uint32_t> sorted;
  if (!std::is_sorted(given.begin(), given.end(), before)) {
    sorted = given;
    std::stable_sort(sorted.begin(), sorted.end(), before);
  }
  const std::vector<std::uint32_t>& order = sorted.empty() ? given : sorted;
  std::vector<Lane> lanes;
  for (const std::uint32_t index : order) {
    const Span& span = trace.spans[index];
    std::size_t depth = 0;
    while (depth < lanes.size() && lanes[depth].times.back().end_ns > span.start_ns) ++depth;
    if (depth >= static_cast<std::size_t>(kMaxDepth)) {
      ++left_out;
      continue;
    }
    if (depth == lanes.size()) {
      Lane lane;
      lane.rank = trace.tracks[track].rank;
      lane.track = track;
      lane.depth = static_cast<int>(depth);
      lane.title = track_title(trace, trace.tracks[track]);
      if (depth == 0) {
        lane.times.reserve(order.size());
        lane.spans.reserve(order.size());
        lane.shades.reserve(order.size());
      }
      lanes.push_back(std::move(lane));
    }
    lanes[depth].times.push_back({span.start_ns, span.end_ns});
    lanes[depth].spans.push_back(index);
    lanes[depth].shades.push_back(shader(span));
  }
  for (Lane& lane : lanes) summarise(lane);
  return lanes;
}

Lane exposed_lane(std::int32_t rank, const Intervals& exposed, ColorBy color_by) {
  Lane lane;
  lane.rank = rank;
  lane.exposed = true;
  lane.title = "exposed comm";
  lane.times = exposed;
  const auto shade = color_by == ColorBy::kWork ? static_cast<std::uint8_t>(WorkShade::kExposed) : std::uint8_t{0};
  lane.shades.assign(exposed.size(), shade);
  summarise(lane);
  return lane;
}

// Instants beyond this (73 years) cannot be subtracted safely, and no trace is that long.
constexpr std::int64_t kMostNs = std::int64_t{1} << 61U;
constexpr std::int32_t kMostMicroBatches = 1 << 20;

bool possible(const Trace& trace, const Span& span) {
  return span.start_ns > -kMostNs && span.end_ns < kMostNs && span.track < trace.tracks.size() &&
         span.end_ns >= span.start_ns && span.name < trace.strings.size() && span.op < trace.strings.size() &&
         static_cast<std::size_t>(span.kind) < profiler::kSpanKinds &&
         static_cast<std::size_t>(span.phase) < profiler::kPhases;
}

int order_of(const Trace& trace, const Lane& lane) {
  if (lane.exposed) return 60;
  using profiler::StreamKind;
  switch (trace.tracks[lane.track].stream) {
    case StreamKind::kHost: return 0;
    case StreamKind::kCompute: return 10;
    case StreamKind::kCopy: return 70;
    case StreamKind::kOther: return 80;
    default: return 20 + static_cast<int>(trace.tracks[lane.track].stream);
  }
}

// Runs `work(i)` for i in 0..count-1 on a few threads.
template <typename Work>
void spread(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto serve = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  const std::size_t threads = std::min<std::size_t>({4, count, std::max(1U, std::thread::hardware_concurrency())});
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(serve);
  serve();
  for (std::thread& other : others) other.join();
}

struct Grouped {
  std::vector<std::vector<std::uint32_t>> by_track;
};

Grouped group(const Trace& trace, TimelineModel& model) {
  Grouped out;
  out.by_track.resize(trace.tracks.size());
  std::vector<std::uint32_t> counts(trace.tracks.size(), 0);
  for (const Span& span : trace.spans) {
    if (span.track < counts.size()) ++counts[span.track];
  }
  for (std::size_t i = 0; i < counts.size(); ++i) out.by_track[i].reserve(counts[i]);
  model.start_ns = std::numeric_limits<std::int64_t>::max();
  model.end_ns = std::numeric_limits<std::int64_t>::min();
  for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (!possible(trace, span)) {
      ++model.left_out;
      continue;
    }
    out.by_track[span.track].push_back(i);
    model.start_ns = std::min(model.start_ns, span.start_ns);
    model.end_ns = std::max(model.end_ns, span.end_ns);
    model.micro_batches = std::max(model.micro_batches, std::clamp(span.micro_batch, -1, kMostMicroBatches) + 1);
    if (span.collective != 0) model.by_collective.push_back({span.collective, i});
  }
  if (model.start_ns > model.end_ns) model.start_ns = model.end_ns = 0;
  return out;
}

void add_exposed(const Trace& trace, TimelineModel& model, const Grouped& grouped) {
  std::map<std::int32_t, std::array<std::vector<TimeInterval>, 2>> by_rank;  // communication, compute
  for (std::size_t track = 0; track < grouped.by_track.size(); ++track) {
    for (const std::uint32_t index : grouped.by_track[track]) {
      const Span& span = trace.spans[index];
      if (profiler::is_comm(span.kind)) by_rank[trace.tracks[track].rank][0].push_back({span.start_ns, span.end_ns});
      if (span.kind == SpanKind::kCompute) by_rank[trace.tracks[track].rank][1].push_back({span.start_ns, span.end_ns});
    }
  }
  for (auto& [rank, parts] : by_rank) {
    if (parts[0].empty()) continue;
    const Intervals exposed =
        analysis::subtract(analysis::unite_all(std::move(parts[0])), analysis::unite_all(std::move(parts[1])));
    if (!exposed.empty()) model.lanes.push_back(exposed_lane(rank, exposed, model.color_by));
  }
}

}  // namespace

std::uint32_t Lane::item_at(std::int64_t at_ns, std::int64_t slack_ns) const {
  const auto after = std::upper_bound(times.begin(), times.end(), at_ns,
                                      [](std::int64_t at, const TimeInterval& time) { return at < time.start_ns; });
  const auto index = static_cast<std::size_t>(after - times.begin());
  std::uint32_t best = kNoItem;
  std::int64_t best_distance = slack_ns;
  if (index > 0) {
    const std::int64_t distance = std::max<std::int64_t>(0, at_ns - times[index - 1].end_ns);
    if (distance <= best_distance) {
      best = static_cast<std::uint32_t>(index - 1);
      best_distance = distance;
    }
  }
  if (index < times.size() && times[index].start_ns - at_ns < best_distance) best = static_cast<std::uint32_t>(index);
  return best;
}

std::vector<std::uint32_t> TimelineModel::members(std::uint64_t collective) const {
  std::vector<std::uint32_t> out;
  auto at = std::lower_bound(by_collective.begin(), by_collective.end(), collective,
                             [](const Member& member, std::uint64_t id) { return member.collective < id; });
  for (; at != by_collective.end() && at->collective == collective; ++at) out.push_back(at->span);
  return out;
}

bool TimelineModel::step_window(std::int64_t step, TimeInterval& window) const {
  bool found = false;
  for (const profiler::StepWindow& one : trace->steps) {
    if (one.step != step || one.end_ns < one.start_ns || one.start_ns < -kMostNs || one.end_ns > kMostNs) continue;
    window.start_ns = found ? std::min(window.start_ns, one.start_ns) : one.start_ns;
    window.end_ns = found ? std::max(window.end_ns, one.end_ns) : one.end_ns;
    found = true;
  }
  return found;
}

std::vector<std::int32_t> TimelineModel::steps() const {
  std::vector<std::int32_t> out;
  for (const profiler::StepWindow& one : trace->steps) out.push_back(one.step);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Result<TimelineModel> build_timeline(std::shared_ptr<const Trace> trace, ColorBy color_by,
                                     const std::atomic<bool>& cancelled, const OpKinds& kinds) {
  TimelineModel model;
  model.trace = std::move(trace);
  model.color_by = color_by;
  const Trace& source = *model.trace;
  if (source.spans.size() >= kNoItem)
    return fail(ErrorCode::kOutOfMemory, fmt::format("a trace of {} spans", source.spans.size()),
                "trace fewer steps or ranks");
  const Grouped grouped = group(source, model);
  if (cancelled.load()) return fail(ErrorCode::kCancelled, "building the timeline");
  const Shader shader(source, color_by, kinds);
  std::vector<std::vector<Lane>> lanes(grouped.by_track.size());
  std::vector<std::uint64_t> left_out(grouped.by_track.size(), 0);
  // One more piece of work beside the tracks: the two indexes and the exposed communication.
  spread(grouped.by_track.size() + 1, [&](std::size_t i) {
    if (cancelled.load()) return;
    if (i == 0) {
      add_exposed(source, model, grouped);
      std::sort(model.by_collective.begin(), model.by_collective.end(), [](const auto& x, const auto& y) {
        return std::pair(x.collective, x.span) < std::pair(y.collective, y.span);
      });
      return;
    }
    lanes[i - 1] =
        lanes_of_track(source, static_cast<std::uint32_t>(i - 1), grouped.by_track[i - 1], shader, left_out[i - 1]);
  });
  if (cancelled.load()) return fail(ErrorCode::kCancelled, "building the timeline");
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    model.left_out += left_out[i];
    for (Lane& lane : lanes[i]) model.lanes.push_back(std::move(lane));
  }
  std::stable_sort(model.lanes.begin(), model.lanes.end(), [&](const Lane& a, const Lane& b) {
    const auto key = [&](const Lane& lane) {
      return std::tuple(lane.rank, order_of(source, lane), lane.track, lane.depth);
    };
    return key(a) < key(b);
  });
  for (const Lane& lane : model.lanes) {
    if (model.ranks.empty() || model.ranks.back() != lane.rank) model.ranks.push_back(lane.rank);
  }
  return model;
}

Result<std::vector<std::uint32_t>> find_linked(const Trace& trace, std::uint32_t span,
                                               const std::atomic<bool>& cancelled) {
  std::vector<std::uint32_t> out;
  if (span >= trace.spans.size() || trace.spans[span].correlation == 0) return out;
  if (trace.spans[span].track >= trace.tracks.size()) return out;
  const std::uint32_t correlation = trace.spans[span].correlation;
  const std::int32_t rank = trace.rank_of(trace.spans[span]);
  for (std::uint32_t i = 0; i < trace.spans.size(); ++i) {
    if (i % 65536 == 0 && cancelled.load()) return fail(ErrorCode::kCancelled, "looking for linked spans");
    const Span& other = trace.spans[i];
    if (other.correlation == correlation && other.track < trace.tracks.size() && trace.rank_of(other) == rank) {
      out.push_back(i);
    }
  }
  return out;
}

}  // namespace mbb::viewer
