// One sweep over a rank's device spans yields the step breakdown and every op's exclusive time.
#include "analysis/exposure/breakdown.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

#include "analysis/exposure/runs_sort.h"

namespace mbb::analysis {

namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::StepWindow;
using profiler::Trace;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr const char* kCommNames[kCommKinds] = {"tp", "cp", "ep", "pp", "dp", "other"};
constexpr const char* kIdleNames[kIdleCauses] = {"host-bound", "launch gap", "dependency wait", "bubble"};

// A device span as the sweep needs it.
struct Event {
  int64_t start_ns;
  int64_t end_ns;
  int64_t arrival_ns;  // comm: when the last member of the collective arrived
  uint32_t slot;       // (op, kind), index into SlotTable
  uint32_t span;       // index into Trace::spans
};

struct Slot {
  profiler::StringId op;
  SpanKind kind;
};

// Numbers (op, kind) pairs densely, so that the sweep adds into a plain array.
class SlotTable {
 public:
  explicit SlotTable(size_t strings) : ids_(strings * profiler::kSpanKinds, kNone) {}

  uint32_t slot(const Span& span) {
    const profiler::StringId op = span.op != 0 ? span.op : span.name;
    uint32_t& id = ids_[op * profiler::kSpanKinds + static_cast<size_t>(span.kind)];
    if (id == kNone) {
      id = static_cast<uint32_t>(slots_.size());
      slots_.push_back({op, span.kind});
    }
    return id;
  }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> ids_;
  std::vector<Slot> slots_;
};

struct Launch {
  uint32_t correlation;
  int64_t start_ns;
};

// One rank's device spans in time order, and what explains its gaps.
struct RankTimeline {
  std::vector<Event> events;        // by start
  std::vector<int64_t> latest_end;  // latest_end[i]: largest end of events[0..i]
  std::vector<Launch> launches;     // by correlation
  bool has_pipeline = false;
};

using Arrivals = std::unordered_map<uint64_t, int64_t>;

Arrivals last_arrivals(const Trace& trace) {
  Arrivals arrivals;
  for (const Span& span : trace.spans) {
    if (span.collective == 0 || !is_comm(span.kind)) continue;
    auto [entry, added] = arrivals.try_emplace(span.collective, span.start_ns);
    if (!added) entry->second = std::max(entry->second, span.start_ns);
  }
  return arrivals;
}

std::map<int32_t, RankTimeline> timelines(const Trace& trace, SlotTable& slots) {
  const Arrivals arrivals = last_arrivals(trace);
  std::map<int32_t, RankTimeline> all;
  std::vector<RankTimeline*> by_track;
  for (const profiler::Track& track : trace.tracks) by_track.push_back(&all[track.rank]);
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    RankTimeline& line = *by_track[span.track];
    if (span.kind == SpanKind::kHost) {
      if (span.correlation != 0) line.launches.push_back({span.correlation, span.start_ns});
      continue;
    }
    if (span.end_ns <= span.start_ns) continue;
    int64_t arrival = span.start_ns;
    if (span.collective != 0 && is_comm(span.kind)) arrival = arrivals.at(span.collective);
    line.has_pipeline |= span.kind == SpanKind::kCommPp;
    line.events.push_back({span.start_ns, span.end_ns, arrival, slots.slot(span), static_cast<uint32_t>(i)});
  }
  for (auto& [rank, line] : all) {
    sort_runs(line.events, [](const Event& a, const Event& b) { return a.start_ns < b.start_ns; });
    sort_runs(line.launches, [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; });
    line.latest_end.reserve(line.events.size());
    int64_t latest = std::numeric_limits<int64_t>::min();
    for (const Event& event : line.events) line.latest_end.push_back(latest = std::max(latest, event.end_ns));
  }
  return all;
}

enum Class : size_t { kComputeClass, kCommClass, kCopyClass, kClasses };

Class class_of(SpanKind kind) {
  if (kind == SpanKind::kCompute) return kComputeClass;
  return is_comm(kind) ? kCommClass : kCopyClass;
}

size_t comm_index(SpanKind kind) {
  return static_cast<size_t>(kind) - static_cast<size_t>(SpanKind::kCommTp);
}

// Walks one rank's events over a window, from boundary to boundary; between two boundaries nothing changes.
class Sweep {
 public:
  Sweep(const Trace& trace, const RankTimeline& line, const SlotTable& slots)
      : trace_(trace), line_(line), slots_(slots), tallies_(slots.slots().size()) {}

  StepTimes run(const StepWindow& window, bool per_op);

 private:
  struct Tally {
    int64_t exclusive_ns = 0;
    int64_t busy_ns = 0;
    int64_t spans = 0;
  };

  SpanKind kind_of(const Event& event) const { return slots_.slots()[event.slot].kind; }
  void admit(const Event& event, const StepWindow& window);
  void retire(int64_t now);
  bool idle() const { return active_[0].empty() && active_[1].empty() && active_[2].empty(); }
  int64_t next_boundary(int64_t now, int64_t limit) const;
  void account(int64_t from, int64_t to);
  void account_comm_busy(int64_t length);
  void split(Class of, int64_t from, int64_t length);
  IdleCause idle_cause(int64_t from, const Event* next) const;
  const Launch* launch_of(const Event& event) const;

  const Trace& trace_;
  const RankTimeline& line_;
  const SlotTable& slots_;
  std::array<std::vector<Event>, kClasses> active_;
  std::array<int64_t, kCommKinds> active_comm_{};
  std::vector<Tally> tallies_;
  std::vector<uint32_t> touched_;
  int64_t last_track_ = -1;  // of the span that ended last; -1: none yet
  StepBreakdown out_;
};

void Sweep::admit(const Event& event, const StepWindow& window) {
  const SpanKind kind = kind_of(event);
  active_[class_of(kind)].push_back(event);
  if (is_comm(kind)) ++active_comm_[comm_index(kind)];
  Tally& tally = tallies_[event.slot];
  if (tally.spans++ == 0) touched_.push_back(event.slot);
  tally.busy_ns += std::min(event.end_ns, window.end_ns) - std::max(event.start_ns, window.start_ns);
}

void Sweep::retire(int64_t now) {
  for (auto& list : active_) {
    for (size_t i = 0; i < list.size();) {
      if (list[i].end_ns > now) {
        ++i;
        continue;
      }
      last_track_ = trace_.spans[list[i].span].track;
      const SpanKind kind = kind_of(list[i]);
      if (is_comm(kind)) --active_comm_[comm_index(kind)];
      list[i] = list.back();
      list.pop_back();
    }
  }
}

int64_t Sweep::next_boundary(int64_t now, int64_t limit) const {
  int64_t next = limit;
  for (const auto& list : active_)
    for (const Event& event : list) next = std::min(next, event.end_ns);
  for (const Event& event : active_[kCommClass])
    if (event.arrival_ns > now) next = std::min(next, event.arrival_ns);
  return next;
}

// Shares `length` evenly between the active events of a class; the nanoseconds left over go to the first ones.
void Sweep::split(Class of, int64_t from, int64_t length) {
  const auto& list = active_[of];
  const auto count = static_cast<int64_t>(list.size());
  const int64_t each = count == 1 ? length : length / count;
  int64_t over = count == 1 ? 0 : length % count;
  for (const Event& event : list) {
    const int64_t share = each + (over > 0 ? 1 : 0);
    over -= over > 0 ? 1 : 0;
    tallies_[event.slot].exclusive_ns += share;
    if (of != kCommClass) continue;
    CommTime& comm = out_.comm[comm_index(kind_of(event))];
    comm.exposed_ns += share;
    if (from < event.arrival_ns) comm.waiting_ns += share;
  }
}

void Sweep::account_comm_busy(int64_t length) {
  out_.comm_busy_ns += length;
  for (size_t kind = 0; kind < kCommKinds; ++kind)
    if (active_comm_[kind] > 0) out_.comm[kind].busy_ns += length;
}

void Sweep::account(int64_t from, int64_t to) {
  const int64_t length = to - from;
  if (length <= 0) return;
  const bool comm = !active_[kCommClass].empty();
  if (comm) account_comm_busy(length);
  if (!active_[kComputeClass].empty()) {
    out_.compute_ns += length;
    if (comm) out_.comm_overlap_ns += length;
    split(kComputeClass, from, length);
  } else if (comm) {
    split(kCommClass, from, length);
  } else {
    out_.exposed_copy_ns += length;
    split(kCopyClass, from, length);
  }
}

const Launch* Sweep::launch_of(const Event& event) const {
  const uint32_t correlation = trace_.spans[event.span].correlation;
  if (correlation == 0) return nullptr;
  const auto found = std::lower_bound(line_.launches.begin(), line_.launches.end(), correlation,
                                      [](const Launch& launch, uint32_t id) { return launch.correlation < id; });
  return found != line_.launches.end() && found->correlation == correlation ? &*found : nullptr;
}

// `next`: the event that ends the gap, or null where the window ends first.
IdleCause Sweep::idle_cause(int64_t from, const Event* next) const {
  if (next == nullptr) return line_.has_pipeline ? IdleCause::kBubble : IdleCause::kDependencyWait;
  const Launch* launch = launch_of(*next);
  if (launch != nullptr && launch->start_ns > from) return IdleCause::kHostBound;
  const SpanKind kind = kind_of(*next);
  if (kind == SpanKind::kCommPp) return IdleCause::kBubble;
  if (is_comm(kind)) return IdleCause::kDependencyWait;
  const bool same_track = last_track_ < 0 || last_track_ == trace_.spans[next->span].track;
  return same_track ? IdleCause::kLaunchGap : IdleCause::kDependencyWait;
}

StepTimes Sweep::run(const StepWindow& window, bool per_op) {
  out_ = StepBreakdown{.rank = window.rank, .step = window.step};
  out_.total_ns = std::max<int64_t>(0, window.end_ns - window.start_ns);
  for (auto& list : active_) list.clear();
  active_comm_ = {};
  last_track_ = -1;

  const auto& events = line_.events;
  size_t next = static_cast<size_t>(
      std::upper_bound(line_.latest_end.begin(), line_.latest_end.end(), window.start_ns) - line_.latest_end.begin());
  int64_t now = window.start_ns;
  while (now < window.end_ns) {
    for (; next < events.size() && events[next].start_ns <= now; ++next)
      if (events[next].end_ns > now) admit(events[next], window);
    const int64_t next_start = next < events.size() ? events[next].start_ns : kNever;
    const int64_t limit = std::min(next_start, window.end_ns);
    if (idle()) {
      out_.idle_ns += limit - now;
      const Event* ends_gap = next_start < window.end_ns ? &events[next] : nullptr;
      out_.idle_by_cause_ns[static_cast<size_t>(idle_cause(now, ends_gap))] += limit - now;
      now = limit;
      continue;
    }
    const int64_t boundary = next_boundary(now, limit);
    account(now, boundary);
    now = boundary;
    retire(now);
  }

  StepTimes times{out_, {}};
  for (const uint32_t slot : touched_) {
    const Slot& key = slots_.slots()[slot];
    const Tally& tally = tallies_[slot];
    if (per_op) times.ops.push_back({key.op, key.kind, tally.exclusive_ns, tally.busy_ns, tally.spans});
    tallies_[slot] = {};
  }
  touched_.clear();
  std::sort(times.ops.begin(), times.ops.end(),
            [](const OpTime& a, const OpTime& b) { return std::tie(a.op, a.kind) < std::tie(b.op, b.kind); });
  return times;
}

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

const char* name(CommKind kind) {
  return kCommNames[static_cast<size_t>(kind)];
}
const char* name(IdleCause cause) {
  return kIdleNames[static_cast<size_t>(cause)];
}

int64_t StepBreakdown::exposed_comm_ns() const {
  int64_t exposed = 0;
  for (const CommTime& one : comm) exposed += one.exposed_ns;
  return exposed;
}

int64_t StepBreakdown::bubble_ns() const {
  return idle_by_cause_ns[static_cast<size_t>(IdleCause::kBubble)] +
         comm[static_cast<size_t>(CommKind::kPp)].waiting_ns;
}

int64_t StepBreakdown::skew_ns() const {
  int64_t waiting = 0;
  for (const CommTime& one : comm) waiting += one.waiting_ns;
  return waiting - comm[static_cast<size_t>(CommKind::kPp)].waiting_ns;
}

double StepBreakdown::exposed_comm_pct() const {
  return percent(exposed_comm_ns(), total_ns);
}
double StepBreakdown::bubble_pct() const {
  return percent(bubble_ns(), total_ns);
}
double StepBreakdown::overlap_pct() const {
  return percent(comm_overlap_ns, comm_busy_ns);
}

std::vector<StepTimes> break_down(const Trace& trace, const BreakdownOptions& options) {
  SlotTable slots(trace.strings.size());
  const std::map<int32_t, RankTimeline> lines = timelines(trace, slots);
  static const RankTimeline kSilent;  // a rank with a window and no track was idle throughout
  std::map<int32_t, Sweep> sweeps;
  std::vector<StepTimes> all;
  all.reserve(trace.steps.size());
  for (const StepWindow& window : trace.steps) {
    const auto line = lines.find(window.rank);
    auto [sweep, added] = sweeps.try_emplace(window.rank, trace, line == lines.end() ? kSilent : line->second, slots);
    all.push_back(sweep->second.run(window, options.per_op));
  }
  return all;
}

StepBreakdown sum(const std::vector<StepBreakdown>& parts) {
  StepBreakdown all;
  if (parts.empty()) return all;
  all.rank = parts.front().rank;
  all.step = parts.front().step;
  for (const StepBreakdown& part : parts) {
    all.total_ns += part.total_ns;
    all.compute_ns += part.compute_ns;
    all.comm_busy_ns += part.comm_busy_ns;
    all.comm_overlap_ns += part.comm_overlap_ns;
    all.exposed_copy_ns += part.exposed_copy_ns;
    all.idle_ns += part.idle_ns;
    for (size_t i = 0; i < kIdleCauses; ++i) all.idle_by_cause_ns[i] += part.idle_by_cause_ns[i];
    for (size_t i = 0; i < kCommKinds; ++i) {
      all.comm[i].busy_ns += part.comm[i].busy_ns;
      all.comm[i].exposed_ns += part.comm[i].exposed_ns;
      all.comm[i].waiting_ns += part.comm[i].waiting_ns;
    }
  }
  return all;
}

}  // namespace mbb::analysis
