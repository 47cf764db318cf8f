// Ends of each call of a site, by the paths of its ops.
#include "analysis/exposure/site_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

using profiler::Span;
using profiler::SpanKind;
using profiler::Trace;

struct Place {
  std::string layer;  // "layers.3"
  std::string site;
};

bool holds(std::string_view path, std::string_view part) {
  return path.find(part) != std::string_view::npos;
}

std::optional<Place> place_of(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kParts{
      {{".attn.qkv.", "qkv"}, {".attn.proj.", "proj"}, {".mlp.fc1.", "fc1"}, {".mlp.fc2.", "fc2"}}};
  if (holds(path, "recompute")) return std::nullopt;
  for (const auto& [in_path, part] : kParts) {
    const size_t at = path.find(in_path);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = path.substr(at + in_path.size() - 1);
    const bool backward =
        holds(rest, ".bwd") || holds(rest, ".dgrad") || holds(rest, ".wgrad") || holds(rest, ".regather");
    if (!backward && !holds(rest, ".fwd")) return std::nullopt;
    return Place{std::string(path.substr(0, at)), std::string(part) + (backward ? "_bprop" : "_fprop")};
  }
  return std::nullopt;
}

}  // namespace

std::vector<SiteTime> site_times(const Trace& trace) {
  std::vector<std::optional<Place>> places;
  for (const std::string& text : trace.strings) places.push_back(place_of(text));
  std::set<std::pair<int32_t, int32_t>> steps;
  for (const profiler::StepWindow& window : trace.steps) steps.emplace(window.rank, window.step);
  struct Ends {
    int64_t start_ns = 0, end_ns = 0;
  };
  std::map<std::tuple<std::string, std::string, int32_t, int32_t, int32_t>, Ends> calls;  // site first
  for (const Span& span : trace.spans) {
    const std::optional<Place>& place = places[span.op != 0 ? span.op : span.name];
    if (!place || (span.kind != SpanKind::kCompute && span.kind != SpanKind::kCommTp)) continue;
    const int32_t rank = trace.rank_of(span);
    if (!steps.contains({rank, span.step})) continue;
    const auto [entry, added] = calls.try_emplace({place->site, place->layer, rank, span.step, span.micro_batch},
                                                  Ends{span.start_ns, span.end_ns});
    if (added) continue;
    entry->second.start_ns = std::min(entry->second.start_ns, span.start_ns);
    entry->second.end_ns = std::max(entry->second.end_ns, span.end_ns);
  }
  // One step that was held up must not make a method slow.
  std::map<std::string, std::map<std::tuple<std::string, int32_t, int32_t>, std::vector<double>>> by_site;
  for (const auto& [key, ends] : calls) {
    const auto& [site, layer, rank, step, micro_batch] = key;
    by_site[site][{layer, rank, micro_batch}].push_back(static_cast<double>(ends.end_ns - ends.start_ns));
  }
  std::vector<SiteTime> sites;
  for (const auto& [site, times_of_call] : by_site) {
    SiteTime& time = sites.emplace_back(SiteTime{site, 0, 0});
    for (const auto& [call, times] : times_of_call) {
      time.calls += static_cast<int64_t>(times.size());
      time.ns += median(times) / static_cast<double>(times_of_call.size());
    }
  }
  return sites;
}

}  // namespace mbb::analysis
