// Tables of how windows were captured and what was sampled, for mbbench show.
#include "suites/cli/launch_tables.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "profiler/capture/telemetry_summary.h"
#include "profiler/host/nvml.h"
#include "suites/runner/health.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using analysis::Table;

std::optional<int64_t> count_of(const baselines::Launch& launch, std::string_view name) {
  for (const baselines::NamedCount& count : launch.counts)
    if (count.name == name) return count.count;
  return std::nullopt;
}

// Counts whose names carry what they say (runner/child.cpp): why the window was not captured, and how well the clocks
// of its ranks became one.
constexpr std::string_view kNote = "capture: ", kClock = "clock of rank ", kEnds = "ends of ", kApart = " apart, ",
                           kMedian = "median ns";
constexpr size_t kApartShown = 6;  // communicators, worst first where there are more

// "; ends apart, median: comm.tp 0,1 193 ns, comm.dp 0,2 1.50 us".
std::string ends_text(std::vector<std::pair<int64_t, std::string>> apart) {
  const size_t all = apart.size();
  if (all == 0) return "";
  if (all > kApartShown) {
    std::stable_sort(apart.begin(), apart.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    apart.resize(kApartShown);
  }
  std::vector<std::string> texts;
  for (const auto& [ns, whose] : apart) texts.push_back(whose + " " + format_ns(static_cast<double>(ns)));
  return "; ends apart, median: " + join(texts, ", ") +
         (all > kApartShown ? fmt::format(", {} more at most as much", all - kApartShown) : "");
}

std::string capture_note(const baselines::Launch& launch) {
  std::string note;
  std::vector<std::pair<int64_t, std::string>> apart;
  int64_t clocks = 0, furthest = 0;
  for (const baselines::NamedCount& count : launch.counts) {
    if (!count.name.starts_with(kNote)) continue;
    const std::string_view what = std::string_view(count.name).substr(kNote.size());
    if (what.starts_with(kClock)) {
      ++clocks;
      furthest = std::max(furthest, std::abs(count.count));
    } else if (what.starts_with(kEnds)) {
      if (what.ends_with(kMedian))
        apart.emplace_back(count.count, what.substr(kEnds.size(), what.find(kApart) - kEnds.size()));
    } else {
      note += (note.empty() ? "" : "; ") + std::string(what);
    }
  }
  if (clocks > 1)
    note += fmt::format("{}clocks of {} ranks shifted by at most {}{}", note.empty() ? "" : "; ", clocks,
                        format_ns(static_cast<double>(furthest)), ends_text(std::move(apart)));
  return note;
}

std::string range_text(const profiler::SampledRange& range, const char* unit, double scale = 1, int decimals = 0) {
  if (!(range.low <= range.high)) return "-";
  return fmt::format("{:.{}f}..{:.{}f}, median {:.{}f} {}", scale * range.low, decimals, scale * range.high, decimals,
                     scale * range.median, decimals, unit);
}

void add_telemetry(Table& table, const baselines::BundleReader& bundle, const baselines::Run& run,
                   const std::string& only) {
  for (const baselines::Cell& cell : run.cells) {
    if (!only.empty() && cell.name != only) continue;
    for (const baselines::Launch& launch : cell.launches) {
      const auto summary = launch_telemetry(bundle.launch_file(cell.name, launch.index, "telemetry.csv").parent_path());
      if (!summary) continue;
      const std::string index = std::to_string(launch.index);
      table.rows.push_back({{{cell.name},
                             {index},
                             {"host"},
                             {std::to_string(summary->samples)},
                             {"-"},
                             {"-"},
                             {"-"},
                             {"-"},
                             {range_text(summary->host_busy, "% of all CPUs", 100)}}});
      for (const profiler::GpuSummary& gpu : summary->gpus)
        table.rows.push_back({{{cell.name},
                               {index},
                               {fmt::format("GPU {}", gpu.gpu)},
                               {std::to_string(gpu.samples)},
                               {range_text(gpu.sm_mhz, "MHz")},
                               {range_text(gpu.power_w, "W")},
                               {range_text(gpu.temperature_c, "C")},
                               {gpu.throttled == 0 ? "never"
                                                   : fmt::format("{} samples: {}", gpu.throttled,
                                                                 profiler::throttle_text(gpu.throttle_bits))},
                               {"-"}}});
    }
  }
}

}  // namespace

Table capture_table(const baselines::Run& run, const std::string& only) {
  Table table{"capture",
              "capture",
              {{"cell", "cell"},
               {"launch", "launch", Align::kRight},
               {"events", "device events", Align::kRight},
               {"time", "device time", Align::kRight},
               {"unattributed", "without an op", Align::kRight},
               {"dropped", "dropped", Align::kRight},
               {"note", "note"}},
              {},
              {}};
  for (const baselines::Cell& cell : run.cells) {
    if (!only.empty() && cell.name != only) continue;
    for (const baselines::Launch& launch : cell.launches) {
      const std::string note = capture_note(launch), index = std::to_string(launch.index);
      const auto events = count_of(launch, "captured_device_events");
      if (!events) {
        if (!note.empty()) table.rows.push_back({{{cell.name}, {index}, {"-"}, {"-"}, {"-"}, {"-"}, {note}}});
        continue;
      }
      const auto ns = static_cast<double>(count_of(launch, "captured_device_ns").value_or(0));
      const auto lost = static_cast<double>(count_of(launch, "unattributed_device_ns").value_or(0));
      const double share = 100 * lost / std::max(1.0, ns);
      table.rows.push_back({{{cell.name},
                             {index},
                             {std::to_string(*events)},
                             {format_ns(ns), ns},
                             {fmt::format("{:.2f} %", share), share},
                             {std::to_string(count_of(launch, "capture_dropped_records").value_or(0))},
                             {note.empty() ? "-" : note}}});
    }
  }
  return table;
}

Result<Table> telemetry_of(const Settings& settings, const std::string& spec, const baselines::Run& run,
                           const std::string& only) {
  Table table{"telemetry",
              "telemetry",
              {{"cell", "cell"},
               {"launch", "launch", Align::kRight},
               {"what", "of"},
               {"samples", "samples", Align::kRight},
               {"clock", "SM clock"},
               {"power", "power"},
               {"temperature", "temperature"},
               {"throttled", "throttled"},
               {"busy", "busy"}},
              {},
              {}};
  const auto folder = find_bundle(settings, spec);
  const auto bundle = folder ? baselines::BundleReader::open(*folder) : tl::unexpected<Error>(folder.error());
  if (bundle)
    add_telemetry(table, *bundle, run, only);
  else
    table.footer.push_back(fmt::format("not read: {} ({})", bundle.error().what, bundle.error().hint));
  return table;
}

}  // namespace mbb::suites
