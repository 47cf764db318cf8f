// Joins records with ranks, sites and steps.
#include "profiler/capture/device_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace mbb::profiler {
namespace {

bool is_device(RecordKind kind) {
  return kind == RecordKind::kKernel || kind == RecordKind::kCopy || kind == RecordKind::kFill;
}

class Assembler {
 public:
  Assembler(const CaptureRecords& captured, std::span<const CapturedRank> ranks) : captured_(captured), ranks_(ranks) {
    for (const std::string& name : captured.names) names_.push_back(strings_.intern(name));
    for (size_t i = 0; i < ranks.size(); ++i) {
      of_device_[static_cast<uint32_t>(ranks[i].device)] = i;
      std::vector<StringId> paths;
      for (const OpSite& site : ranks[i].sites) paths.push_back(strings_.intern(site.path));
      paths_.push_back(std::move(paths));
    }
  }

  DeviceTrace run() {
    for (const CaptureRecord& record : captured_.records)
      if (is_device(record.kind)) add_device(record);
    for (const CaptureRecord& record : captured_.records)
      if (record.kind == RecordKind::kApi) runtime_calls_.insert(record.correlation);
    for (const CaptureRecord& record : captured_.records)
      if (!is_device(record.kind)) add_host(record);
    for (const auto& [key, votes] : stream_votes_) {
      const auto best = std::max_element(votes.begin(), votes.end());
      if (*best > 0) out_.trace.tracks[key].stream = static_cast<StreamKind>(best - votes.begin());
    }
    for (const CapturedRank& rank : ranks_)
      out_.trace.steps.insert(out_.trace.steps.end(), rank.steps.begin(), rank.steps.end());
    out_.trace.strings = strings_.strings();
    out_.trace.dropped_spans = captured_.dropped;
    finish_attribution();
    sort_spans(out_.trace);
    return std::move(out_);
  }

 private:
  void add_device(const CaptureRecord& record) {
    const auto owner = of_device_.find(record.device);
    if (owner == of_device_.end()) return;
    const CapturedRank& rank = ranks_[owner->second];
    Span span;
    span.start_ns = record.start_ns;
    span.end_ns = std::max(record.end_ns, record.start_ns);
    span.correlation = record.correlation;
    span.name = names_[record.name];
    span.step = step_at(rank, span.start_ns);
    span.track = track(rank, StreamKind::kOther, record.lane);
    span.kind = record.kind == RecordKind::kCopy ? SpanKind::kCopy : SpanKind::kCompute;
    const bool known = record.op > 0 && record.op <= rank.sites.size();
    if (known) {
      const OpSite& site = rank.sites[record.op - 1];
      span.op = paths_[owner->second][record.op - 1];
      span.phase = site.phase;
      span.micro_batch = site.micro_batch;
      if (is_comm(site.kind)) span.kind = site.kind;
      if (site.collective != 0) span.collective = site.collective + (static_cast<uint64_t>(span.step + 1) << 40U);
      stream_votes_[span.track][static_cast<size_t>(site.stream)] += span.end_ns - span.start_ns + 1;
    }
    if (record.correlation != 0) rank_of_correlation_.try_emplace(record.correlation, owner->second);
    if (span.step != kNoStep) count(span, known);
    out_.trace.spans.push_back(span);
  }

  // An API call belongs to the rank whose work it launched; calls that launched nothing go with their thread.
  void add_host(const CaptureRecord& record) {
    size_t owner = 0;
    const auto found = rank_of_correlation_.find(record.correlation);
    if (found != rank_of_correlation_.end()) {
      owner = found->second;
      rank_of_thread_.try_emplace(record.lane, owner);
    } else if (const auto thread = rank_of_thread_.find(record.lane); thread != rank_of_thread_.end()) {
      owner = thread->second;
    }
    // A driver launch inside a runtime call says the same again.
    if (ranks_.empty() || (record.kind == RecordKind::kDriverApi && runtime_calls_.contains(record.correlation)))
      return;
    const CapturedRank& rank = ranks_[owner];
    Span span;
    span.start_ns = record.start_ns;
    span.end_ns = std::max(record.end_ns, record.start_ns);
    const bool call = record.kind == RecordKind::kApi || record.kind == RecordKind::kDriverApi;
    span.correlation = call ? record.correlation : 0;
    span.name = names_[record.name];
    span.step = step_at(rank, span.start_ns);
    // Waits and CUPTI's own work overlap the calls they happen in: beside them, never among them.
    span.track = call ? track(rank, StreamKind::kHost, record.lane)
                      : track(rank, StreamKind::kHost, kBeside + static_cast<uint32_t>(record.kind));
    span.kind = SpanKind::kHost;
    out_.trace.spans.push_back(span);
  }

  static int32_t step_at(const CapturedRank& rank, int64_t ns) {
    const auto after = std::upper_bound(rank.steps.begin(), rank.steps.end(), ns,
                                        [](int64_t at, const StepWindow& window) { return at < window.start_ns; });
    if (after == rank.steps.begin()) return kNoStep;
    const StepWindow& window = *std::prev(after);
    return ns < window.end_ns ? window.step : kNoStep;
  }

  uint32_t track(const CapturedRank& rank, StreamKind kind, uint32_t lane) {
    const auto [entry, added] = tracks_.try_emplace({rank.rank, kind == StreamKind::kHost, lane},
                                                    static_cast<uint32_t>(out_.trace.tracks.size()));
    if (added) {
      std::string name = fmt::format("{} {}", kind == StreamKind::kHost ? "thread" : "stream", lane);
      if (lane == kBeside + static_cast<uint32_t>(RecordKind::kWait)) name = "host waits";
      if (lane == kBeside + static_cast<uint32_t>(RecordKind::kOverhead)) name = "profiler overhead";
      out_.trace.tracks.push_back({rank.rank, kind, strings_.intern(name)});
    }
    return entry->second;
  }

  void count(const Span& span, bool known) {
    Attribution& a = out_.attribution;
    a.device_ns += span.end_ns - span.start_ns;
    ++a.device_events;
    if (known) return;
    a.unattributed_ns += span.end_ns - span.start_ns;
    ++a.unattributed_events;
    unattributed_[span.name] += span.end_ns - span.start_ns;
  }

  void finish_attribution() {
    auto& list = out_.attribution.unattributed_by_name;
    for (const auto& [name, ns] : unattributed_) list.emplace_back(out_.trace.strings[name], ns);
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
  }

  static constexpr uint32_t kBeside = 0xffff'ff00U;  // lanes that are no thread

  const CaptureRecords& captured_;
  std::span<const CapturedRank> ranks_;
  StringTable strings_;
  std::vector<StringId> names_;
  std::vector<std::vector<StringId>> paths_;  // [rank][site]
  std::map<uint32_t, size_t> of_device_;
  std::map<std::tuple<int32_t, bool, uint32_t>, uint32_t> tracks_;
  std::map<uint32_t, std::array<int64_t, kStreamKinds>> stream_votes_;
  std::unordered_set<uint32_t> runtime_calls_;  // correlations
  std::unordered_map<uint32_t, size_t> rank_of_correlation_;
  std::unordered_map<uint32_t, size_t> rank_of_thread_;
  std::map<StringId, int64_t> unattributed_;
  DeviceTrace out_;
};

}  // namespace

double Attribution::unattributed_pct() const {
  return device_ns > 0 ? 100.0 * static_cast<double>(unattributed_ns) / static_cast<double>(device_ns) : 0.0;
}

DeviceTrace device_trace(const CaptureRecords& captured, std::span<const CapturedRank> ranks) {
  return Assembler(captured, ranks).run();
}

}  // namespace mbb::profiler
