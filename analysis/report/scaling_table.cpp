// Groups cells by what they share, and holds each against the fewest GPUs.
#include "analysis/report/scaling_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using baselines::Cell;

constexpr const char* kBatch = "train.global_batch_size";
constexpr const char* kRate = "tokens_per_second_per_gpu";
constexpr const char* kGpus = "parallel.gpus";

int64_t batch_of(const Cell& cell) {
  for (const baselines::KnobValue& knob : cell.knobs)
    if (knob.key == kBatch) return parse_int(knob.value).value_or(0);
  return 0;
}

bool has_speed(const Cell& cell) {
  const bool real = cell.result_class != baselines::ResultClass::kFunctionalCpu && !cell.numerics_only;
  return real && cell.status == baselines::CellStatus::kOk && batch_of(cell) > 0 && find(cell, kRate) != nullptr;
}

// What cells of one group have in common.
std::string common_of(const Cell& cell, bool strong) {
  std::string key = fmt::format("{};{};{}", cell.model, baselines::name(cell.result_class), cell.device);
  for (const baselines::KnobValue& knob : cell.knobs)
    if (knob.key != kBatch && knob.key != kGpus) key += fmt::format(";{}={}", knob.key, knob.value);
  const double share = static_cast<double>(batch_of(cell)) / cell.gpus;
  return key + (strong ? fmt::format(";batch {}", batch_of(cell)) : fmt::format(";a GPU {}", share));
}

void add_group(Table& table, std::vector<const Cell*> cells, const char* kind) {
  std::stable_sort(cells.begin(), cells.end(), [](const Cell* a, const Cell* b) { return a->gpus < b->gpus; });
  if (cells.size() < 2 || cells.front()->gpus == cells.back()->gpus) return;
  const auto rate = [](const Cell* cell) { return find(*cell, kRate)->value; };
  for (const Cell* cell : cells) {
    const double efficiency = 100 * rate(cell) / rate(cells.front());
    table.rows.push_back({{{kind},
                           {cell->name},
                           {class_label(*cell)},
                           {std::to_string(cell->gpus), static_cast<double>(cell->gpus)},
                           {std::to_string(batch_of(*cell)), static_cast<double>(batch_of(*cell))},
                           {format_value(*find_metric(kRate), rate(cell)), rate(cell)},
                           {fmt::format("{:.1f} %", efficiency), efficiency}}});
  }
}

}  // namespace

std::optional<Table> scaling_table(const baselines::Run& run) {
  Table table{"scaling",
              "scaling",
              {{"kind", "scaling"},
               {"cell", "cell"},
               {"class", "class"},
               {"gpus", "GPUs", Align::kRight},
               {"batch", "batch", Align::kRight, "sequences"},
               {"rate", "tokens/s/GPU", Align::kRight, "tokens/s"},
               {"efficiency", "efficiency", Align::kRight, "%"}},
              {},
              {}};
  for (const bool strong : {true, false}) {
    std::map<std::string, std::vector<const Cell*>> groups;
    for (const Cell& cell : run.cells)
      if (has_speed(cell)) groups[common_of(cell, strong)].push_back(&cell);
    for (const auto& [common, cells] : groups) add_group(table, cells, strong ? "strong" : "weak");
  }
  if (table.rows.empty()) return std::nullopt;
  table.footer.push_back(
      "strong: the same batch on more GPUs; weak: the same batch a GPU. Efficiency: tokens/s/GPU over that of the "
      "fewest "
      "GPUs.");
  return table;
}

}  // namespace mbb::analysis
