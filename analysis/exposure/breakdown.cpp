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

// One rank's device spans, a list a track in order of start, and what explains its gaps.
struct RankTimeline {
  std::vector<std::vector<uint32_t>> tracks;  // indices into Trace::spans
  std::vector<Launch> launches;               // by correlation
  bool has_pipeline = false;
};

// When the last member of each collective arrived.
class Arrivals {
 public:
  explicit Arrivals(const Trace& trace) : counted_(trace.spans.size() + 1, std::numeric_limits<int64_t>::min()) {
    for (const Span& span : trace.spans) {
      if (span.collective == 0 || !is_comm(span.kind)) continue;
      int64_t& last = span.collective < counted_.size()
                          ? counted_[span.collective]
                          : others_.try_emplace(span.collective, span.start_ns).first->second;
      last = std::max(last, span.start_ns);
    }
  }
  int64_t at(uint64_t collective) const {
    return collective < counted_.size() ? counted_[collective] : others_.at(collective);
  }

 private:
  std::vector<int64_t> counted_;  // by id: replays count theirs from 1
  std::unordered_map<uint64_t, int64_t> others_;
};

std::map<int32_t, RankTimeline> timelines(const Trace& trace) {
  std::vector<std::vector<uint32_t>> by_track(trace.tracks.size());
  std::map<int32_t, RankTimeline> all;
  std::vector<RankTimeline*> line_of;
  for (const profiler::Track& track : trace.tracks) line_of.push_back(&all[track.rank]);
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (span.kind == SpanKind::kHost) {
      if (span.correlation != 0) line_of[span.track]->launches.push_back({span.correlation, span.start_ns});
      continue;
    }
    if (span.end_ns <= span.start_ns) continue;
    if (span.kind == SpanKind::kCommPp) line_of[span.track]->has_pipeline = true;
    by_track[span.track].push_back(static_cast<uint32_t>(i));
  }
  for (size_t track = 0; track < by_track.size(); ++track) {
    if (by_track[track].empty()) continue;
    sort_runs(by_track[track],
              [&](uint32_t a, uint32_t b) { return trace.spans[a].start_ns < trace.spans[b].start_ns; });
    line_of[track]->tracks.push_back(std::move(by_track[track]));
  }
  for (auto& [rank, line] : all)
    sort_runs(line.launches, [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; });
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

// Walks one rank's spans from boundary to boundary; between two boundaries nothing changes. Windows are best given in
// order of time: then all of them together are one pass.
class Sweep {
 public:
  // `slots`: nullptr where nobody asks for the times of ops.
  Sweep(const Trace& trace, const RankTimeline& line, const Arrivals& arrivals, SlotTable* slots)
      : trace_(trace), line_(line), arrivals_(arrivals), slots_(slots) {
    rewind();
  }

  StepTimes run(const StepWindow& window);

 private:
  struct Active {
    int64_t end_ns;
    int64_t arrival_ns;  // comm: when the last member of the collective arrived
    uint32_t slot;
    uint32_t track;
    Class of;
    size_t comm;  // CommKind, of comm
  };
  struct Tally {
    int64_t exclusive_ns = 0;
    int64_t busy_ns = 0;
    int64_t spans = 0;
  };
  struct Cursor {
    int64_t start_ns;
    size_t track;
    size_t at;
    bool operator<(const Cursor& other) const {  // the heap's top is the earliest, the lower track among equals
      return start_ns != other.start_ns ? start_ns > other.start_ns : track > other.track;
    }
  };

  void rewind();
  const Span& next_span() const { return trace_.spans[line_.tracks[cursors_.front().track][cursors_.front().at]]; }
  int64_t next_start() const { return cursors_.empty() ? kNever : cursors_.front().start_ns; }
  void advance();
  void admit_until(int64_t now, const StepWindow& window);
  void count(const Active& active, int64_t from, const StepWindow& window);
  void retire(int64_t now);
  int64_t next_boundary(int64_t now, int64_t limit) const;
  void account(int64_t from, int64_t to);
  void split(Class of, int64_t from, int64_t length);
  IdleCause idle_cause(int64_t from, const Span* next) const;
  const Launch* launch_of(const Span& span) const;
  StepTimes take();

  const Trace& trace_;
  const RankTimeline& line_;
  const Arrivals& arrivals_;
  SlotTable* slots_;
  std::vector<Cursor> cursors_;  // a heap; tracks that are not at their end
  std::vector<Active> active_;
  std::array<int64_t, kClasses> running_{};
  std::array<int64_t, kCommKinds> running_comm_{};
  int64_t position_ = std::numeric_limits<int64_t>::min();
  std::vector<Tally> tallies_;
  std::vector<uint32_t> touched_;
  int64_t last_track_ = -1;  // of the span that ended last; -1: none yet
  StepBreakdown out_;
};

void Sweep::rewind() {
  cursors_.clear();
  active_.clear();
  running_ = {};
  running_comm_ = {};
  for (size_t track = 0; track < line_.tracks.size(); ++track)
    cursors_.push_back({trace_.spans[line_.tracks[track].front()].start_ns, track, 0});
  std::make_heap(cursors_.begin(), cursors_.end());
}

void Sweep::advance() {
  Cursor& cursor = cursors_.front();
  const std::vector<uint32_t>& track = line_.tracks[cursor.track];
  if (++cursor.at == track.size()) {
    std::pop_heap(cursors_.begin(), cursors_.end());
    cursors_.pop_back();
    return;
  }
  cursor.start_ns = trace_.spans[track[cursor.at]].start_ns;
  // Down to its place; mostly its track goes on and it stays where it is.
  for (size_t at = 0, child = 1; child < cursors_.size(); at = child, child = 2 * at + 1) {
    if (child + 1 < cursors_.size() && cursors_[child] < cursors_[child + 1]) ++child;
    if (!(cursors_[at] < cursors_[child])) return;
    std::swap(cursors_[at], cursors_[child]);
  }
}

void Sweep::count(const Active& active, int64_t from, const StepWindow& window) {
  if (slots_ == nullptr) return;
  if (active.slot >= tallies_.size()) tallies_.resize(slots_->slots().size());
  Tally& tally = tallies_[active.slot];
  if (tally.spans++ == 0) touched_.push_back(active.slot);
  tally.busy_ns += std::min(active.end_ns, window.end_ns) - std::max(from, window.start_ns);
}

// Takes in the spans that start at `now` or before and still run then.
void Sweep::admit_until(int64_t now, const StepWindow& window) {
  for (; next_start() <= now; advance()) {
    const Span& span = next_span();
    if (span.end_ns <= now) continue;
    Active active{span.end_ns, span.start_ns,       slots_ != nullptr ? slots_->slot(span) : 0,
                  span.track,  class_of(span.kind), 0};
    if (active.of == kCommClass) {
      active.comm = comm_index(span.kind);
      ++running_comm_[active.comm];
      if (span.collective != 0) active.arrival_ns = arrivals_.at(span.collective);
    }
    ++running_[active.of];
    active_.push_back(active);
    count(active, span.start_ns, window);
  }
}

void Sweep::retire(int64_t now) {
  for (size_t i = 0; i < active_.size();) {
    const Active& one = active_[i];
    if (one.end_ns > now) {
      ++i;
      continue;
    }
    last_track_ = one.track;
    --running_[one.of];
    if (one.of == kCommClass) --running_comm_[one.comm];
    active_[i] = active_.back();
    active_.pop_back();
  }
}

int64_t Sweep::next_boundary(int64_t now, int64_t limit) const {
  int64_t next = limit;
  for (const Active& one : active_) {
    next = std::min(next, one.end_ns);
    if (one.of == kCommClass && one.arrival_ns > now) next = std::min(next, one.arrival_ns);
  }
  return next;
}

// Shares `length` evenly between the active spans of a class; the nanoseconds left over go to the first ones.
void Sweep::split(Class of, int64_t from, int64_t length) {
  const int64_t sharers = running_[of];
  const int64_t each = sharers == 1 ? length : length / sharers;
  int64_t over = sharers == 1 ? 0 : length % sharers;
  for (const Active& one : active_) {
    if (one.of != of) continue;
    const int64_t share = each + (over > 0 ? 1 : 0);
    over -= over > 0 ? 1 : 0;
    if (slots_ != nullptr) tallies_[one.slot].exclusive_ns += share;
    if (of != kCommClass) continue;
    out_.comm[one.comm].exposed_ns += share;
    if (from < one.arrival_ns) out_.comm[one.comm].waiting_ns += share;
  }
}

void Sweep::account(int64_t from, int64_t to) {
  const int64_t length = to - from;
  if (length <= 0) return;
  const bool comm = running_[kCommClass] > 0;
  if (comm) {
    out_.comm_busy_ns += length;
    for (size_t kind = 0; kind < kCommKinds; ++kind) out_.comm[kind].busy_ns += running_comm_[kind] > 0 ? length : 0;
  }
  if (running_[kComputeClass] > 0) {
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

const Launch* Sweep::launch_of(const Span& span) const {
  if (span.correlation == 0) return nullptr;
  const auto found = std::lower_bound(line_.launches.begin(), line_.launches.end(), span.correlation,
                                      [](const Launch& launch, uint32_t id) { return launch.correlation < id; });
  return found != line_.launches.end() && found->correlation == span.correlation ? &*found : nullptr;
}

// `next`: the span that ends the gap, or null where the window ends first.
IdleCause Sweep::idle_cause(int64_t from, const Span* next) const {
  if (next == nullptr) return line_.has_pipeline ? IdleCause::kBubble : IdleCause::kDependencyWait;
  const Launch* launch = launch_of(*next);
  if (launch != nullptr && launch->start_ns > from) return IdleCause::kHostBound;
  if (next->kind == SpanKind::kCommPp) return IdleCause::kBubble;
  if (is_comm(next->kind)) return IdleCause::kDependencyWait;
  const bool same_track = last_track_ < 0 || last_track_ == next->track;
  return same_track ? IdleCause::kLaunchGap : IdleCause::kDependencyWait;
}

StepTimes Sweep::take() {
  StepTimes times{out_, {}};
  for (const uint32_t slot : touched_) {
    const Slot& key = slots_->slots()[slot];
    const Tally& tally = tallies_[slot];
    times.ops.push_back({key.op, key.kind, tally.exclusive_ns, tally.busy_ns, tally.spans});
    tallies_[slot] = {};
  }
  touched_.clear();
  std::sort(times.ops.begin(), times.ops.end(),
            [](const OpTime& a, const OpTime& b) { return std::tie(a.op, a.kind) < std::tie(b.op, b.kind); });
  return times;
}

StepTimes Sweep::run(const StepWindow& window) {
  out_ = StepBreakdown{.rank = window.rank, .step = window.step};
  out_.total_ns = std::max<int64_t>(0, window.end_ns - window.start_ns);
  if (out_.total_ns == 0) return take();
  if (window.start_ns < position_) rewind();
  int64_t now = window.start_ns;
  retire(now);
  last_track_ = -1;
  for (const Active& carried : active_) count(carried, now, window);
  while (now < window.end_ns) {
    admit_until(now, window);
    const int64_t limit = std::min(next_start(), window.end_ns);
    if (active_.empty()) {
      out_.idle_ns += limit - now;
      const Span* ends_gap = next_start() < window.end_ns ? &next_span() : nullptr;
      out_.idle_by_cause_ns[static_cast<size_t>(idle_cause(now, ends_gap))] += limit - now;
      now = limit;
      continue;
    }
    const int64_t boundary = next_boundary(now, limit);
    account(now, boundary);
    now = boundary;
    retire(now);
  }
  position_ = window.end_ns;
  return take();
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
  SlotTable slots(options.per_op ? trace.strings.size() : 0);
  const Arrivals arrivals(trace);
  const std::map<int32_t, RankTimeline> lines = timelines(trace);
  static const RankTimeline kSilent;  // a rank with a window and no track was idle throughout
  std::map<int32_t, Sweep> sweeps;
  std::vector<StepTimes> all;
  all.reserve(trace.steps.size());
  for (const StepWindow& window : trace.steps) {
    const auto line = lines.find(window.rank);
    const RankTimeline& of = line == lines.end() ? kSilent : line->second;
    auto [sweep, added] = sweeps.try_emplace(window.rank, trace, of, arrivals, options.per_op ? &slots : nullptr);
    all.push_back(sweep->second.run(window));
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
