// mbbench gc: removes old bundles by policy and says of each why it goes or stays.
#include <fmt/core.h>

#include <algorithm>

#include "baselines/pins/pins.h"
#include "baselines/store/gc.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/gate_evidence.h"

namespace mbb::suites {
namespace {

using baselines::GcDecision;

analysis::Table plan_table(const std::vector<GcDecision>& plan, bool dry) {
  using analysis::Align;
  using analysis::Tone;
  analysis::Table table{"gc",
                        "",
                        {{"run", "run"},
                         {"suite", "suite"},
                         {"created", "created (UTC)"},
                         {"bytes", "size", Align::kRight, "bytes"},
                         {"decision", "decision"},
                         {"reason", "why"}},
                        {},
                        {}};
  size_t gone = 0;
  double bytes = 0;
  for (const GcDecision& d : plan) {
    const auto size = static_cast<double>(d.bundle.bytes);
    if (d.removes) ++gone, bytes += size;
    const char* word = !d.removes ? "keeps" : dry ? "would remove" : "removes";
    table.rows.push_back({{{d.bundle.run.id},
                           {d.bundle.run.suite},
                           {iso_time(d.bundle.run.created_unix_ns).substr(0, 16)},
                           {format_bytes(size), size},
                           {word, baselines::kNotMeasured, d.removes ? Tone::kWarning : Tone::kPlain},
                           {d.reason}}});
  }
  table.footer.push_back(fmt::format("{} {} of {} bundles, {}; the store keeps their numbers",
                                     dry ? "would remove" : "removed", gone, plan.size(), format_bytes(bytes)));
  return table;
}

// In another folder than the gate's the setting may name a file that is not there: then nobody knows what the baselines
// of a gate's runs rest on.
void keep_evidence(std::vector<GcDecision>& plan, const std::string& missing) {
  const auto goes = [](const GcDecision& d) { return d.removes; };
  if (std::none_of(plan.begin(), plan.end(), goes)) return;
  if (std::none_of(plan.begin(), plan.end(), [](const auto& d) { return d.bundle.run.command == kGateCommand; })) {
    say(fmt::format("there is no {} (baselines_file): no bundle counts as a baseline's evidence\n", missing));
    return;
  }
  say(
      fmt::format("there is no {} (baselines_file), and a gate's runs are here: nothing is removed\n"
                  "name the file that has their baselines; an empty one says that there are none\n",
                  missing));
  for (GcDecision& d : plan)
    if (d.removes) d.removes = false, d.reason = "what the gate's baselines rest on is not known";
}

Result<int> gc(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const auto pins, baselines::read_pins(settings.product.baselines_file));
  MB_ASSIGN(auto bundles, baselines::list_bundles(settings.product.runs_dir));
  auto plan = baselines::plan_gc(std::move(bundles), pins,
                                 {settings.product.gc.keep_days, settings.product.gc.keep_runs}, wall_ns());
  const bool dry = parsed.flag("--dry-run");
  if (!file_exists(settings.product.runs_dir))
    say(fmt::format("there is no folder {} (runs_dir)\n", settings.product.runs_dir));
  if (!file_exists(settings.product.baselines_file)) keep_evidence(plan, settings.product.baselines_file);
  if (!dry) MB_TRY(baselines::carry_out(plan));
  print_tables(parsed, {plan_table(plan, dry)});
  return 0;
}

}  // namespace

Command gc_command() {
  return {"gc", "remove old bundles by policy (gc.keep_days, gc.keep_runs); never what a baseline rests on",
          {},   {{"--dry-run", nullptr, "only say what would go and why"}, kJsonOption, kMarkdownOption},
          true, gc};
}

}  // namespace mbb::suites
