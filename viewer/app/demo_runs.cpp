// Synthetic runs with generated traces beside their launches.
#include "viewer/app/demo_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "viewer/timeline/generate.h"

namespace mbb::viewer {
namespace {

constexpr std::int64_t kFirstUnixNs = 1'780'000'000'000'000'000;
constexpr std::int64_t kDayNs = 86'400'000'000'000;
constexpr const char* kTraceFile = "trace.mbtrace";

// The step program of a cell in explain's form, made from its op table.
std::string program_text(const baselines::Cell& cell) {
  std::string ops;
  if (!cell.launches.empty()) {
    for (const baselines::OpRow& row : cell.launches.front().ops) {
      const auto runs = static_cast<double>(std::max<std::int64_t>(1, row.calls));
      ops += fmt::format(R"({}{{"path":{},"kind":{},"what":{},"role":{},"stream":{},"runs":{},"flops":{},"bytes":{}}})",
                         ops.empty() ? "" : ",", json_quote(row.path), json_quote(row.kind),
                         json_quote(row.kind + " made up"), json_quote(row.role), json_quote(row.stream), row.calls,
                         row.flops / runs, static_cast<double>(row.bytes) / runs);
    }
  }
  return fmt::format(
      R"({{"format":"mbbench-program","version":1,"model":{},"mapping":{},"rank_classes":[{{"role":"decoder",)"
      R"("stage":0,"segments":[{{"name":"forward","ops":[{}]}}]}}]}})",
      json_quote(cell.model), json_quote(cell.name), ops);
}

Status write_cell(baselines::BundleWriter& writer, baselines::Cell& cell, const DemoOptions& options,
                  std::uint64_t seed, double stretch) {
  // The metrics a real run would have, from the made-up steps.
  if (cell.status == baselines::CellStatus::kOk) MB_TRY(analysis::fill_metrics(cell, {}));
  cell.program_json = program_text(cell);
  for (baselines::Launch& launch : cell.launches) {
    launch.counts.push_back({std::string(analysis::kOpStepsCount), static_cast<std::int64_t>(launch.steps.size())});
  }
  MB_TRY(writer.begin_cell(cell));
  for (baselines::Launch& launch : cell.launches) {
    MB_ASSIGN(const std::filesystem::path folder, writer.launch_folder(cell.name, launch.index));
    if (options.trace_spans > 0) {
      const GeneratedTrace rule{
          .spans = options.trace_spans, .ranks = 4, .steps = 3, .micro_batches = 8, .seed = seed, .stretch = stretch};
      MB_TRY(profiler::write_trace(folder / kTraceFile, generate_trace(rule)));
      launch.trace_files = {kTraceFile};
    }
    MB_TRY(baselines::write_launch(folder, launch));
  }
  return writer.finish_cell(cell);
}

}  // namespace

Result<std::vector<std::filesystem::path>> write_demo_bundles(const std::filesystem::path& parent,
                                                              const DemoOptions& options) {
  std::vector<std::filesystem::path> folders;
  for (int i = 0; i < options.runs; ++i) {
    const auto seed = static_cast<std::uint64_t>(i + 1);
    baselines::Run run = baselines::make_synthetic_run({.seed = seed,
                                                        .created_unix_ns = kFirstUnixNs + i * kDayNs,
                                                        .cells = options.cells,
                                                        .launches = options.launches,
                                                        .steps = options.steps});
    MB_ASSIGN(baselines::BundleWriter writer, baselines::BundleWriter::create(parent, run));
    const double stretch = i + 1 == options.runs ? options.stretch_last : 1.0;
    for (baselines::Cell& cell : run.cells) MB_TRY(write_cell(writer, cell, options, seed, stretch));
    MB_TRY(writer.write_run(run));
    folders.push_back(writer.folder());
  }
  return folders;
}

}  // namespace mbb::viewer
