// Finds the reference, links its record.
#include "suites/runner/routing_input.h"

#include <fmt/core.h>

#include "profiler/base/file.h"
#include "suites/runner/equality.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

Status give_routing(baselines::BundleWriter& writer, const trainer::Config& config, baselines::Cell& cell, int launch,
                    std::initializer_list<const std::vector<baselines::Cell>*> among) {
  if (cell.status != baselines::CellStatus::kOk || config.parallel.moe_router_replay != "reference") return {};
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
  if (!layout.replays_routing) return {};
  for (const auto* cells : among) {
    const baselines::Cell* of = exact_reference_of(cell, *cells);
    if (of == nullptr) continue;
    MB_ASSIGN(const std::filesystem::path from, writer.launch_folder(of->name, 0));
    MB_ASSIGN(const std::filesystem::path to, writer.launch_folder(cell.name, launch));
    if (!file_exists(from / kRoutingFile)) continue;
    MB_ASSIGN(const std::string choices, read_file(from / kRoutingFile));
    return write_file(to / kReferenceRoutingFile, choices);
  }
  cell.status = baselines::CellStatus::kBroken;
  cell.reason =
      "parallel.moe_router_replay = reference, and no one-rank fp32 cell of the same work ran before: add one, or "
      "choose it too";
  return {};
}

}  // namespace mbb::suites
