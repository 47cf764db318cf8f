// mbbench project: what a configuration would do on any number of GPUs, without one; and how far such projections are
// from published steps.
#include <fmt/core.h>

#include <map>
#include <set>

#include "analysis/report/timeline.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/project/accuracy.h"
#include "suites/project/cost_file.h"
#include "suites/project/projected_cell.h"
#include "suites/project/projection_text.h"
#include "trainer/run/knob_needs.h"

namespace mbb::suites {
namespace {

Result<trainer::CostTable> costs_of(const Parsed& parsed) {
  MB_ASSIGN(const std::string hardware, card_of(parsed, kDefaultHardware));
  const auto file = parsed.value("--costs");
  if (!file) return find_costs(hardware);
  MB_ASSIGN(std::string text, read_file(*file, size_t{4} << 20));
  return parse_costs(std::move(text), *file);
}

// "15e12", "15T", "300B"; a number above 0.
Result<double> positive(const Parsed& parsed, const char* flag) {
  const auto text = parsed.value(flag);
  if (!text) return 0.0;
  std::string digits = *text;
  double unit = 1;
  constexpr std::pair<char, double> kUnits[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'G', 1e9}, {'T', 1e12}};
  for (const auto& [letter, value] : kUnits)
    if (!digits.empty() && digits.back() == letter) {
      digits.pop_back();
      unit = value;
      break;
    }
  const auto number = parse_double(digits);
  if (!number || !(*number > 0))
    return fail(ErrorCode::kBadArgument, fmt::format("{} {} is no number above 0", flag, printable(*text)),
                "write it as 300e9, 300B or 15T");
  return *number * unit;
}

std::string mapping_of(const baselines::PublishedRow& row) {
  std::string text = fmt::format("{} {} tp{} pp{}", row.gpus, row.precision, row.tp, row.pp);
  if (row.vpp > 1) text += fmt::format(" vpp{}", row.vpp);
  if (row.cp > 1) text += fmt::format(" cp{}", row.cp);
  if (row.ep > 1) text += fmt::format(" ep{}", row.ep);
  if (!row.sharding.empty()) text += " " + row.sharding;
  return text;
}

analysis::Table errors_table(const std::vector<CaseError>& errors, const char* title) {
  using analysis::Align;
  analysis::Table table{"published",
                        title,
                        {{"release", "release"},
                         {"model", "model"},
                         {"mapping", "GPUs and mapping"},
                         {"published", "published", Align::kRight, "tokens/s/GPU"},
                         {"projected", "projected", Align::kRight, "tokens/s/GPU"},
                         {"error", "step error", Align::kRight},
                         {"covered", "in 80 %"}},
                        {},
                        {}};
  for (const CaseError& e : errors) {
    const double published = e.of->row.tokens_per_s_per_gpu, projected = published / (1 + e.error);
    table.rows.push_back({{{e.of->row.release},
                           {e.of->row.model_id},
                           {mapping_of(e.of->row)},
                           {fmt::format("{:.0f}", published), published},
                           {fmt::format("{:.0f}", projected), projected},
                           {fmt::format("{:+.1f} %", 100 * e.error), e.error},
                           {e.covered ? "yes" : "no"}}});
  }
  const Accuracy a = accuracy(errors);
  table.footer.push_back(fmt::format("{} rows: median error {}, p90 {}, bias {:+.1f} %, {} in the 80 % interval.",
                                     a.rows, format_percent(a.median), format_percent(a.p90), 100 * a.bias,
                                     format_percent(a.coverage, 0)));
  return table;
}

// The figures that a cost table states of itself, by set of steps.
class Figures {
 public:
  void add(const char* what, const std::vector<CaseError>& errors) {
    std::set<std::string> models;
    for (const CaseError& e : errors) models.insert(e.of->row.model_id);
    const Accuracy a = accuracy(errors);
    table_.rows.push_back({{{what},
                            {std::to_string(a.rows), static_cast<double>(a.rows)},
                            {std::to_string(models.size()), static_cast<double>(models.size())},
                            {format_percent(a.median, 2), a.median},
                            {format_percent(a.p90, 2), a.p90},
                            {fmt::format("{:+.2f} %", 100 * a.bias), a.bias},
                            {format_percent(a.coverage), a.coverage}}});
  }
  const analysis::Table& table() const { return table_; }

 private:
  analysis::Table table_{"figures",
                         "errors of the projected step",
                         {{"steps", "steps"},
                          {"rows", "rows", analysis::Align::kRight},
                          {"models", "models", analysis::Align::kRight},
                          {"median", "median", analysis::Align::kRight},
                          {"p90", "p90", analysis::Align::kRight},
                          {"bias", "bias", analysis::Align::kRight},
                          {"coverage", "in the 80 % interval", analysis::Align::kRight}},
                         {},
                         {}};
};

analysis::Table left_out_table(const PublishedCases& published) {
  analysis::Table table{"left_out",
                        "published rows of the card left out",
                        {{"reason", "reason"}, {"rows", "rows", analysis::Align::kRight}},
                        {},
                        {}};
  std::map<std::string, int> reasons;
  for (const auto& [row, reason] : published.left_out) ++reasons[reason];
  for (const auto& [reason, rows] : reasons) table.rows.push_back({{{reason}, {std::to_string(rows)}}});
  return table;
}

constexpr const char* kPublished = "--published|--calibrate";

Result<int> compare_with_published(const Parsed& parsed, trainer::CostTable costs) {
  if (!parsed.knobs.empty())
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("argument '{}' with {}: published steps are projected as they were configured",
                    printable(parsed.knobs.front()), parsed.flag("--published") ? "--published" : "--calibrate"),
        "leave one of them out");
  PublishedCases published = published_cases(costs.hardware);
  MB_ASSIGN(std::vector<PublishedCase> ours, measured_cases(costs));
  const size_t theirs = published.cases.size();
  for (PublishedCase& step : ours) published.cases.push_back(std::move(step));
  std::vector<analysis::Table> tables;
  if (parsed.flag("--calibrate")) {
    costs = calibrate(published.cases, costs);
    analysis::Table factors{
        "fitted", "fitted values", {{"what", "what"}, {"value", "value", analysis::Align::kRight}}, {}, {}};
    const std::vector<std::string> names = fitted_names(costs);
    const std::vector<double> values = fitted_values(costs);
    for (size_t i = 0; i < names.size(); ++i)
      factors.rows.push_back({{{names[i]}, {fmt::format("{:.4f}", values[i]), values[i]}}});
    tables.push_back(std::move(factors));
  }
  MB_ASSIGN(const std::vector<CaseError> errors, errors_of(published.cases, costs));
  MB_ASSIGN(const std::vector<CaseError> plain, errors_of(published.cases, costs, Assume::kNothing));
  std::vector<CaseError> all, dense, experts, own, plain_dense, plain_experts;
  for (size_t i = 0; i < errors.size(); ++i) {
    (i >= theirs ? own : errors[i].of->experts ? experts : dense).push_back(errors[i]);
    if (i < theirs) all.push_back(errors[i]);
    if (i < theirs) (plain[i].of->experts ? plain_experts : plain_dense).push_back(plain[i]);
  }
  tables.push_back(errors_table(dense, "published steps of dense models"));
  tables.push_back(errors_table(experts, "published steps of models with experts: nothing was fitted to them"));
  tables.push_back(errors_table(own, "this trainer's steps on one H100"));
  Figures figures;
  figures.add("all published", all);
  figures.add("dense", dense);
  figures.add("with experts", experts);
  figures.add("ours", own);
  figures.add("dense, nothing assumed of their trainers", plain_dense);
  figures.add("with experts, nothing assumed", plain_experts);
  if (parsed.flag("--calibrate")) {
    MB_ASSIGN(const std::vector<CaseError> unseen, errors_left_out(published.cases, costs));
    std::vector<CaseError> unseen_dense;
    for (const CaseError& e : unseen)
      if (!e.of->experts) unseen_dense.push_back(e);
    tables.push_back(errors_table(unseen_dense, "dense models, each with factors fitted without it"));
    figures.add("all published, unseen by the fit", unseen);
    figures.add("dense, unseen by the fit", unseen_dense);
  }
  tables.push_back(figures.table());
  tables.back().footer.push_back(
      fmt::format("Ratios of two steps of one model and release are within {} of the published ones in 80 % of pairs.",
                  format_percent(ratio_error(errors), 2)));
  tables.push_back(left_out_table(published));
  print_tables(parsed, tables);
  return 0;
}

// Knobs that were given and change nothing of what is projected; it runs on a card, whatever the configuration says.
std::string without_effect(const trainer::Layout& layout, const trainer::StepPrograms& programs) {
  std::vector<trainer::IdleKnob> idle = layout.idle;
  idle.insert(idle.end(), programs.idle.begin(), programs.idle.end());
  std::string text;
  for (const trainer::IdleKnob& knob : idle)
    if (knob.needs != trainer::needs::kGpu) text += (text.empty() ? "no effect " : ", ") + describe(knob);
  if (!text.empty()) text += "\n";
  const trainer::ParallelConfig& p = layout.config.parallel;
  if (layout.ep > 1 && p.moe_exchange == trainer::MoeExchange::kPadded && p.moe_dropless_bound == 0 &&
      p.moe_expert_capacity_factor == 0)
    text +=
        "experts   messages hold the worst that a router may choose (moe_dropless_bound = 0); published steps have "
        "moe_router_force_load_balancing=true moe_dropless_bound=1.125\n";
  if (const auto left_out = not_projected(layout.config); !left_out.empty())
    text += fmt::format("not projected: {}; the time is as without\n", join(left_out, ", "));
  return text;
}

Result<int> project_step(const Parsed& parsed) {
  MB_ASSIGN(const trainer::CostTable costs, costs_of(parsed));
  if (parsed.flag("--published") || parsed.flag("--calibrate")) return compare_with_published(parsed, costs);
  TrainingPlan plan;
  MB_ASSIGN(plan.tokens, positive(parsed, "--train-tokens"));
  MB_ASSIGN(plan.price_gpu_hour, positive(parsed, "--price"));
  MB_ASSIGN(Settings settings, settings_of(parsed));
  // A projection is of a GPU's number formats; fp32 is the CPU oracle's default.
  const bool said = settings.sources.contains("precision.recipe");
  if (!said) settings.config.precision.recipe = trainer::Recipe::kBf16;
  MB_ASSIGN(const trainer::Layout layout, layout_of(settings));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  ProjectOptions options;
  options.trace = parsed.flag("--timeline") || parsed.flag("--save");
  MB_ASSIGN(const Projection projection, project(layout, programs, costs, options));
  if (parsed.flag("--json"))
    fmt::print("{}\n", to_json(projection, layout, costs, plan, unsaid_sizes(settings)));
  else
    fmt::print("{}{}", to_text(projection, layout, costs, plan, unsaid_sizes(settings)),
               without_effect(layout, programs));
  if (parsed.flag("--timeline") && !parsed.flag("--json")) {
    MB_ASSIGN(const std::string text, analysis::timeline_text(projection.trace));
    fmt::print("\n{}", text);
  }
  if (parsed.flag("--save")) {
    MB_ASSIGN(const auto bundle, save_projection(settings, parsed.argv, layout, programs, projection));
    if (!parsed.flag("--json"))
      fmt::print("saved     {}: mbbench show @latest, mbbench view @latest\n", bundle.string());
  }
  return 0;
}

}  // namespace

Command project_command() {
  return {
      "project",
      "project a configuration onto GPUs that are not here: step time, parts, memory",
      {},
      {{"--hardware", "H", "the card (default h100-sxm); mbbench list hardware names them", false, nullptr, "--costs"},
       {"--costs", "FILE", "a cost table of your own (baselines/kernels shows the form)"},
       {"--timeline", nullptr, "the step as text, a line a stream, one rank a class", false, nullptr,
        "--json|--published|--calibrate"},
       {"--save", nullptr, "keep the projection and its trace as a run", false, nullptr, kPublished},
       {"--train-tokens", "N", "days that so many tokens take: 15T", false, nullptr, kPublished},
       {"--price", "P", "of a GPU-hour, for the cost of those", false, "--train-tokens", kPublished},
       {"--published", nullptr, "instead: projections of published steps, with their errors"},
       {"--calibrate", nullptr, "the same with factors fitted anew, and of models the fit does not see"},
       kJsonOption,
       kMarkdownOption},
      true,
      project_step};
}

}  // namespace mbb::suites
