// mbbench advise: the mappings of a model onto a number of GPUs, fastest first, by projection.
#include <fmt/core.h>

#include "analysis/report/table.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/project/advise.h"
#include "suites/project/projection_text.h"
#include "trainer/models/hf_config.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using trainer::Config;

constexpr double kSpareLoad = 1.125;  // over the balanced load: basis "experts" of the suites

analysis::Table table_of(const Advised& advised, const trainer::CostTable& costs, size_t rows) {
  analysis::Table table{"advice",
                        "",
                        {{"mapping", "mapping"},
                         {"step", "step", Align::kRight, "ns"},
                         {"interval", "80 %", Align::kRight},
                         {"speed", "tokens/s/GPU", Align::kRight, "tokens/s"},
                         {"tflops", "TFLOP/s (causal)", Align::kRight, "TFLOP/s"},
                         {"comm", "exposed comm", Align::kRight},
                         {"bubble", "bubble", Align::kRight},
                         {"peak", "peak", Align::kRight, "bytes"},
                         {"why", "why"}},
                        {},
                        {}};
  for (size_t i = 0; i < std::min(rows, advised.ranked.size()); ++i) {
    const Advice& a = advised.ranked[i];
    const Projection& p = a.projection;
    const double tflops = p.tflops_per_gpu(p.model_flops_causal);
    table.rows.push_back({{{a.label},
                           {format_ns(p.step_ns), p.step_ns},
                           {"±" + format_ns((p.high_ns - p.low_ns) / 2)},
                           {fmt::format("{:.0f}", p.tokens_per_s_per_gpu()), p.tokens_per_s_per_gpu()},
                           {fmt::format("{:.0f}", tflops), tflops},
                           {format_percent(p.parts.exposed_comm_ns() / p.step_ns)},
                           {format_percent(p.parts.bubble_ns / p.step_ns)},
                           {format_bytes(static_cast<double>(p.memory.bytes())), static_cast<double>(p.memory.bytes())},
                           {a.reason}}});
  }
  table.footer.push_back(
      fmt::format("{} mappings: {} fit and are ranked, {} do not fit, {} break a rule of the trainer.", advised.tried,
                  advised.ranked.size(), advised.too_large, advised.illegal));
  table.footer.push_back("projected: nothing here was measured. Steps whose intervals overlap are not told apart.");
  for (std::string& line : accuracy_lines(costs)) table.footer.push_back(std::move(line));
  return table;
}

// Without these the messages of experts hold whatever a router may choose, and every mapping with expert parallelism
// loses. What published rows and the suites have; true where any is not the user's own.
bool balance_experts(Config& config, const AdviseOptions& options) {
  const auto model = trainer::resolve_model(config.model.name);
  if (!model || !model->is_moe()) return false;
  trainer::ParallelConfig& p = config.parallel;
  for (const char* key : {"parallel.moe_expert_capacity_factor", "parallel.moe_exchange", "parallel.moe_dropless_bound",
                          "parallel.moe_router_force_load_balancing"})
    if (options.fixed.contains(key)) return false;
  p.moe_router_force_load_balancing = true;
  p.moe_dropless_bound = kSpareLoad;
  return true;
}

Result<int> advise_mapping(const Parsed& parsed) {
  MB_ASSIGN(Settings settings, settings_of(parsed));
  AdviseOptions options;
  MB_ASSIGN(options.hardware, card_of(parsed, kDefaultHardware));
  MB_ASSIGN(const trainer::CostTable costs, find_costs(options.hardware));
  for (const auto& [key, source] : settings.sources) options.fixed.insert(key);
  Config& config = settings.config;
  if (!options.fixed.contains("precision.recipe")) config.precision.recipe = trainer::Recipe::kBf16;
  // What costs nothing where it hides something.
  if (!options.fixed.contains("data_parallel.overlap_grad_reduce")) config.data_parallel.overlap_grad_reduce = true;
  if (!options.fixed.contains("data_parallel.overlap_param_gather")) config.data_parallel.overlap_param_gather = true;
  const bool balanced = balance_experts(config, options);
  MB_ASSIGN(const size_t rows, rows_of(parsed, 10));
  MB_ASSIGN(const Advised advised, advise(config, options));
  analysis::Table table = table_of(advised, costs, rows);
  table.title = fmt::format("{} on {} GPUs, {} sequences of {} tokens a step, {}, on {}", config.model.name,
                            config.parallel.gpus, config.train.global_batch_size, config.train.seq_length,
                            trainer::recipe_name(config), options.hardware);
  if (const std::string unsaid = unsaid_text(unsaid_sizes(settings)); !unsaid.empty()) table.title += "  " + unsaid;
  if (balanced)
    table.footer.push_back(fmt::format(
        "Of experts with balanced load and an eighth to spare, as published rows are "
        "(moe_router_force_load_balancing = true, moe_dropless_bound = {}): give one of the two to say otherwise.",
        kSpareLoad));
  print_tables(parsed, {table});
  return 0;
}

}  // namespace

Command advise_command() {
  return {"advise",
          "rank the mappings of a model onto GPUs by projection; knobs that are given stay",
          {},
          {{"--hardware", "H", "the card (default h100-sxm)"},
           {"--rows", "N", "mappings to print (default 10)"},
           kJsonOption,
           kMarkdownOption},
          true,
          advise_mapping};
}

}  // namespace mbb::suites
