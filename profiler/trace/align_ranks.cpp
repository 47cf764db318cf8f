// Medians of end differences, part by part.
#include "profiler/trace/align_ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include "profiler/trace/merge_ranks.h"

namespace mbb::profiler {
namespace {

// Where a collective ended on one part: kernels of one call may be several.
struct End {
  SpanKind kind = SpanKind::kCommOther;
  int64_t ns = 0;
  std::set<int32_t> ranks;
};
using Ends = std::map<uint64_t, End>;

Ends ends_of(const Trace& trace) {
  Ends ends;
  for (const Span& span : trace.spans) {
    if (span.collective == 0 || !is_comm(span.kind)) continue;
    End& end = ends.try_emplace(span.collective, End{span.kind, span.end_ns, {}}).first->second;
    end.ns = std::max(end.ns, span.end_ns);
    end.ranks.insert(trace.rank_of(span));
  }
  return ends;
}

int64_t median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What to add to a part's times, from the collectives it shares with aligned parts.
std::optional<int64_t> shift_of(const Ends& part, const Ends& aligned) {
  std::array<std::vector<int64_t>, kSpanKinds> differences;
  for (const auto& [id, end] : part)
    if (const auto there = aligned.find(id); there != aligned.end())
      differences[static_cast<size_t>(end.kind)].push_back(there->second.ns - end.ns);
  const auto messages = static_cast<size_t>(SpanKind::kCommPp);
  const std::vector<int64_t>* most = nullptr;
  for (size_t kind = 0; kind < differences.size(); ++kind)
    if (kind != messages && !differences[kind].empty() && (most == nullptr || differences[kind].size() > most->size()))
      most = &differences[kind];
  if (most == nullptr && !differences[messages].empty()) most = &differences[messages];
  if (most == nullptr) return std::nullopt;
  return median(*most);
}

// Of one part alone, whose ranks have one clock, there is nothing to tell.
std::vector<EndSpread> spreads_of(const std::vector<Ends>& parts, const std::vector<int64_t>& shifts) {
  struct Seen {
    SpanKind kind;
    int64_t first, last;
    int parts = 0;
    std::set<int32_t> ranks;
  };
  std::map<uint64_t, Seen> seen;
  for (size_t p = 0; p < parts.size(); ++p)
    for (const auto& [id, end] : parts[p]) {
      const int64_t at = end.ns + shifts[p];
      Seen& one = seen.try_emplace(id, Seen{end.kind, at, at, 0, {}}).first->second;
      one.first = std::min(one.first, at);
      one.last = std::max(one.last, at);
      ++one.parts;
      one.ranks.insert(end.ranks.begin(), end.ranks.end());
    }
  std::map<std::pair<SpanKind, std::vector<int32_t>>, std::vector<int64_t>> apart;
  for (const auto& [id, one] : seen)
    if (one.parts > 1) apart[{one.kind, {one.ranks.begin(), one.ranks.end()}}].push_back(one.last - one.first);
  std::vector<EndSpread> spreads;
  for (const auto& [who, ns] : apart)
    spreads.push_back(
        {who.first, who.second, static_cast<int64_t>(ns.size()), median(ns), *std::max_element(ns.begin(), ns.end())});
  return spreads;
}

template <typename T>
void append(std::string& bytes, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
bool take(std::string_view& bytes, std::vector<T>& values) {
  uint64_t count = 0;
  if (bytes.size() < sizeof count) return false;
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  if (count > bytes.size() / sizeof(T)) return false;
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace

Result<AlignedRanks> align_ranks(std::vector<Trace> parts) {
  AlignedRanks out;
  std::vector<Ends> ends;
  for (const Trace& part : parts) ends.push_back(ends_of(part));
  std::vector<int64_t> shifts(parts.size(), 0);
  std::vector<bool> placed(parts.size(), false);
  Ends aligned;
  // The part that shares something with those placed comes next, whatever its number; others keep their own clock.
  for (size_t count = 0; count < parts.size(); ++count) {
    size_t next = parts.size();
    std::optional<int64_t> shift;
    for (size_t p = 0; p < parts.size() && !shift && count > 0; ++p)
      if (!placed[p] && (shift = shift_of(ends[p], aligned))) next = p;
    for (size_t p = 0; p < parts.size() && next == parts.size(); ++p)
      if (!placed[p]) next = p;
    placed[next] = true;
    shifts[next] = shift.value_or(0);
    if (count > 0 && !shift)
      out.alignment.unaligned.push_back(ranks(parts[next]).empty() ? -1 : ranks(parts[next]).front());
    for (const auto& [id, end] : ends[next]) {
      const int64_t at = end.ns + shifts[next];
      const auto [entry, added] = aligned.try_emplace(id, End{end.kind, at, {}});
      if (!added) entry->second.ns = std::max(entry->second.ns, at);
    }
  }
  out.alignment.spreads = spreads_of(ends, shifts);
  std::vector<RankTrace> placed_parts;
  int64_t earliest = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::vector<int32_t> of_part = ranks(parts[p]);
    out.alignment.shift_ns.emplace_back(of_part.empty() ? -1 : of_part.front(), shifts[p]);
    earliest = std::min(earliest, shifts[p]);
    placed_parts.push_back({&parts[p], shifts[p]});
  }
  // merge_ranks() counts from the earliest zero; the first part's clock is what telemetry and step ends have.
  MB_ASSIGN(out.trace, merge_ranks(placed_parts, CollectiveIds::kShared));
  for (StepWindow& window : out.trace.steps) window.start_ns += earliest, window.end_ns += earliest;
  for (Span& span : out.trace.spans) span.start_ns += earliest, span.end_ns += earliest;
  return out;
}

std::string bytes_of_trace(const Trace& trace) {
  std::string bytes;
  std::vector<char> text;
  for (const std::string& one : trace.strings) {
    text.insert(text.end(), one.begin(), one.end());
    text.push_back('\0');
  }
  append(bytes, text);
  append(bytes, trace.tracks);
  append(bytes, trace.steps);
  append(bytes, trace.spans);
  append(bytes, std::vector<uint64_t>{trace.dropped_spans});
  return bytes;
}

Result<Trace> trace_of_bytes(std::string_view bytes) {
  Trace trace;
  std::vector<char> text;
  std::vector<uint64_t> dropped;
  const bool whole = take(bytes, text) && take(bytes, trace.tracks) && take(bytes, trace.steps) &&
                     take(bytes, trace.spans) && take(bytes, dropped) && dropped.size() == 1 && bytes.empty();
  trace.strings.clear();
  for (auto at = text.begin(); at != text.end();) {
    const auto end = std::find(at, text.end(), '\0');
    trace.strings.emplace_back(at, end);
    at = end == text.end() ? end : end + 1;
  }
  const auto known = [&](StringId id) { return id < trace.strings.size(); };
  if (!whole || trace.strings.empty() ||
      !std::all_of(trace.tracks.begin(), trace.tracks.end(), [&](const Track& t) { return known(t.name); }) ||
      !std::all_of(trace.spans.begin(), trace.spans.end(),
                   [&](const Span& s) { return s.track < trace.tracks.size() && known(s.name) && known(s.op); }))
    return fail(ErrorCode::kBadFile, "a rank's trace came in pieces that do not fit", "are all ranks of one build?");
  trace.dropped_spans = dropped.front();
  return trace;
}

}  // namespace mbb::profiler
