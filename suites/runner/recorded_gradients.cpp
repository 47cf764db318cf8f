// Reads what references and their other seeds recorded.
#include "suites/runner/recorded_gradients.h"

#include <filesystem>
#include <optional>

#include "suites/runner/equality.h"
#include "suites/runner/gradients.h"

namespace mbb::suites {

Status judge_recorded_gradients(baselines::BundleWriter& writer, baselines::Cell& cell,
                                const std::vector<baselines::Cell>& finished) {
  if (cell.status != baselines::CellStatus::kOk || cell.launches.empty()) return {};
  const References with = references_of(cell, finished);
  const auto recorded = [&](const baselines::Cell& of) -> Result<std::optional<Gradients>> {
    MB_ASSIGN(const std::filesystem::path folder, writer.launch_folder(of.name, 0));
    if (!std::filesystem::exists(folder / kGradientsFile)) return std::optional<Gradients>();
    MB_ASSIGN(Gradients read, read_gradients(folder));
    return std::optional(std::move(read));
  };
  if (with.exact == nullptr) return {};
  MB_ASSIGN(const auto mine, recorded(cell));
  MB_ASSIGN(const auto exact, recorded(*with.exact));
  if (!mine || !exact) return {};
  std::optional<Gradients> rounded;
  if (with.rounded != nullptr) {
    MB_ASSIGN(rounded, recorded(*with.rounded));
  }
  std::vector<RoundedGradients> seeds;
  for (const References::Pair& pair : with.other_seeds) {
    MB_ASSIGN(auto of_exact, recorded(*pair.exact));
    MB_ASSIGN(auto of_rounded, recorded(*pair.rounded));
    if (of_exact && of_rounded) seeds.push_back({std::move(*of_exact), std::move(*of_rounded)});
  }
  judge_gradients(cell, *mine, *exact, rounded ? &*rounded : nullptr, with.exact->name, seeds);
  return {};
}

}  // namespace mbb::suites
