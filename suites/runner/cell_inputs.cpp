// Opens what the launch will open.
#include "suites/runner/cell_inputs.h"

#include <fmt/core.h>

#include "baselines/store/records.h"
#include "profiler/host/gpus.h"
#include "trainer/data/token_source.h"
#include "trainer/run/cpu_binding.h"
#include "trainer/run/training_data.h"

namespace mbb::suites {
namespace {

Status check_data(const trainer::Layout& layout) {
  const auto said = [&](Error&& error) {
    if (error.hint.empty()) error.hint = "name a file that this machine can read, or leave data.path out";
    return tl::unexpected<Error>(std::move(error).during("data.path = " + layout.config.data.path));
  };
  if (layout.has_sequences()) {
    auto opened = trainer::open_sequences(layout);
    return opened ? Status{} : Status(said(std::move(opened.error())));
  }
  auto opened = trainer::open_dataset(layout);
  return opened ? Status{} : Status(said(std::move(opened.error())));
}

}  // namespace

Status check_inputs(const trainer::Config& config) {
  MB_TRY(trainer::check_binding(config.host.cpu_binding));
  if (config.data.path.empty()) return {};  // what is shipped and what is made up is there
  const auto layout = trainer::resolve(config);
  return layout ? check_data(*layout) : Status{};  // why a configuration makes no layout stands in the cell
}

Status check_inputs(const Suite& suite) {
  for (const Cell& cell : suite.cells) {
    if (cell.skipped || cell.command) continue;
    if (cell.config.host.device == trainer::Device::kCuda) {
      const auto layout = trainer::resolve(cell.config);
      if (!layout || static_cast<int>(profiler::list_gpus().gpus.size()) < layout->mesh.world_size()) continue;
    }
    if (Status found = check_inputs(cell.config); !found) {
      if (suite.cells.size() == 1) return found;
      return tl::unexpected<Error>(std::move(found.error()).during("cell " + cell.name));
    }
  }
  return {};
}

std::string DataHashes::of(const trainer::Layout& layout) {
  const trainer::DataSpec spec = trainer::data_spec(layout.config);
  if (spec.kind == trainer::DataKind::kSynthetic) return "";
  const std::string key = fmt::format("{} {} {}", static_cast<int>(spec.kind), layout.model.vocab_size, spec.path);
  const auto [entry, added] = known_.try_emplace(key);
  if (!added) return entry->second;
  if (const auto source = trainer::open_tokens(spec, layout.model.vocab_size)) entry->second = (*source)->identity();
  return entry->second;
}

double entropy_of(const trainer::Config& config, int64_t vocab_size) {
  const trainer::DataSpec spec = trainer::data_spec(config);
  if (spec.kind == trainer::DataKind::kSynthetic) return baselines::kNotMeasured;
  const auto source = trainer::open_tokens(spec, vocab_size);
  if (!source) return baselines::kNotMeasured;
  return trainer::unigram_entropy(**source).value_or(baselines::kNotMeasured);
}

}  // namespace mbb::suites
