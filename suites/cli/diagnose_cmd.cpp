// mbbench diagnose: what a cell's step loses, the knob to try for each loss, and what that is worth by projection.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "analysis/diagnose/diagnose.h"
#include "analysis/report/table.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/project/projected_cell.h"
#include "suites/project/projection_text.h"
#include "suites/project/projector.h"
#include "trainer/run/knobs.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using analysis::Remedy;
using analysis::Symptom;
using analysis::Table;

// Below this share of the step a projected gain is no advice.
constexpr double kLeastGain = 0.003;

Result<baselines::Cell> cell_of(const baselines::Run& run, const std::optional<std::string>& name) {
  std::vector<std::string> names;
  for (const auto& cell : run.cells)
    if (cell.status == baselines::CellStatus::kOk) names.push_back(cell.name);
  if (names.empty()) return fail(ErrorCode::kNotFound, fmt::format("run {} has no cell that is ok", run.id));
  if (!name && names.size() > 1)
    return fail(ErrorCode::kBadArgument, fmt::format("run {} has {} cells", run.id, names.size()),
                "choose one with --cell: " + join(names, ", "));
  const std::string wanted = name.value_or(names[0]);
  for (const auto& cell : run.cells)
    if (cell.name == wanted && cell.status == baselines::CellStatus::kOk) return cell;
  const auto near = nearest(wanted, names);
  return fail(ErrorCode::kNotFound, fmt::format("run {} has no cell '{}' that is ok", run.id, printable(wanted)),
              near ? fmt::format("did you mean '{}'?", *near) : "its cells: " + join(names, ", "));
}

// What launched or named a cell that this program did not train.
bool of_another_trainer(const baselines::KnobValue& knob) {
  return knob.key.starts_with("command.") || knob.key.starts_with("import.");
}

// The cell's configuration as today's program reads it. Knobs that a later program no longer has are left out and
// named.
Result<trainer::Config> config_of(const baselines::Cell& cell, std::vector<std::string>& gone) {
  trainer::Config config;
  KnobSources sources;
  // Of another trainer's log the built-in trainer's defaults say nothing.
  for (const char* key : {"model.name", "train.seq_length"})
    if (std::none_of(cell.knobs.begin(), cell.knobs.end(), [&](const auto& knob) { return knob.key == key; }))
      return fail(ErrorCode::kUnavailable,
                  fmt::format("cell {} says no {}, without which there is no projection", cell.name, key));
  for (const auto& knob : cell.knobs) {
    if (of_another_trainer(knob)) continue;
    if (!trainer::knobs().find(knob.key))
      gone.push_back(knob.key);
    else
      MB_TRY(trainer::knobs().set_text(config, sources, knob.key, knob.value, Source{Layer::kSuite, cell.name}));
  }
  return config;
}

bool says_recipe(const baselines::Cell& cell) {
  return std::any_of(cell.knobs.begin(), cell.knobs.end(), [](const baselines::KnobValue& knob) {
    return knob.key == "precision.recipe" && knob.source != mbb::name(Layer::kDefault);
  });
}

// The card whose costs and memory the cell is held against.
Result<std::string> hardware_of(const Parsed& parsed, const baselines::Cell& cell) {
  if (parsed.flag("--hardware")) return card_of(parsed, "");
  if (cell.result_class == baselines::ResultClass::kFunctionalCpu)
    return fail(ErrorCode::kBadArgument,
                fmt::format("cell {} ran on CPU ranks: its time says nothing of a GPU", cell.name),
                "--hardware h100-sxm diagnoses the projection of the same configuration");
  if (const auto device = trainer::match_device(cell.device)) return device->key;
  return fail(ErrorCode::kUnavailable, fmt::format("nothing is known of '{}'", printable(cell.device)),
              "name a card to hold it against: --hardware h100-sxm");
}

struct Advice {
  Symptom symptom;
  std::string remedy = "-";  // that helps most
  double worth_ns = 0;       // 0: none that is known
  std::string rests_on = "-";
};

class Doctor {
 public:
  Doctor(trainer::Config config, std::string hardware) : config_(std::move(config)), hardware_(std::move(hardware)) {}

  Status begin() {
    MB_ASSIGN(base_, project(config_, hardware_));
    return {};
  }
  const Projection& base() const { return base_; }

  // The remedy that helps most, of those that resolve and fit, in time of a step of `step_ns`.
  Advice advise(const Symptom& symptom, double step_ns) const {
    Advice advice{symptom};
    int illegal = 0, too_large = 0, tried = 0;
    for (const Remedy& remedy : symptom.remedies) {
      const auto projected = with(remedy);
      ++tried;
      if (!projected) {
        ++illegal;
        continue;
      }
      if (!projected->memory.fits()) {
        ++too_large;
        continue;
      }
      const double gain = step_ns * (1 - base_.tokens_per_s_per_gpu() / projected->tokens_per_s_per_gpu());
      if (gain > std::max(advice.worth_ns, kLeastGain * step_ns))
        advice.worth_ns = gain, advice.remedy = remedy.text(), advice.rests_on = "projected";
    }
    if (symptom.all_of_it && !symptom.remedies.empty())
      advice.worth_ns = symptom.lost_ns, advice.remedy = symptom.remedies[0].text(), advice.rests_on = "closed form";
    if (advice.worth_ns > 0) return advice;
    if (tried == 0)
      advice.rests_on = "what this program knows against it is on already";
    else if (illegal == tried)
      advice.rests_on = fmt::format("{} tried: each breaks a rule", tried);
    else
      advice.rests_on =
          fmt::format("{} tried: {} break a rule, {} do not fit, the rest does not help", tried, illegal, too_large);
    return advice;
  }

 private:
  Result<Projection> with(const Remedy& remedy) const {
    trainer::Config config = config_;
    KnobSources sources;
    for (const auto& change : remedy.changes)
      MB_TRY(trainer::knobs().set_text(config, sources, change.key, change.value, Source{Layer::kCommandLine, ""}));
    return project(config, hardware_, {.parts = false});
  }

  trainer::Config config_;
  std::string hardware_;
  Projection base_;
};

Table table_of(std::vector<Advice> advices) {
  std::stable_sort(advices.begin(), advices.end(),
                   [](const Advice& a, const Advice& b) { return a.worth_ns > b.worth_ns; });
  Table table{"diagnosis",
              "",
              {{"number", "", Align::kRight},
               {"what", "what"},
               {"try", "try"},
               {"worth", "worth about", Align::kRight, "ns"},
               {"basis", "by"}},
              {},
              {}};
  for (size_t i = 0; i < advices.size(); ++i) {
    const Advice& a = advices[i];
    table.rows.push_back({{{fmt::format("{}.", i + 1)},
                           {a.symptom.what},
                           {a.remedy},
                           {a.worth_ns > 0 ? format_ns(a.worth_ns) : "-", a.worth_ns},
                           {a.rests_on}}});
  }
  return table;
}

double step_of(const baselines::Cell& cell) {
  for (const auto& metric : cell.metrics)
    if (metric.name == "step_time") return metric.value;
  return 0;
}

Result<int> diagnose(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const baselines::Run run, find_run(settings, parsed.positionals[0]));
  MB_ASSIGN(baselines::Cell cell, cell_of(run, parsed.value("--cell")));
  MB_ASSIGN(const std::string hardware, hardware_of(parsed, cell));
  MB_ASSIGN(const trainer::Hardware card, trainer::find_hardware(hardware));
  const auto capacity = static_cast<double>(plan_capacity_bytes(card));

  std::vector<std::string> gone;
  auto config = config_of(cell, gone);
  const bool cpu = cell.result_class == baselines::ResultClass::kFunctionalCpu;
  const bool foreign = std::any_of(cell.knobs.begin(), cell.knobs.end(), of_another_trainer);
  const bool as_bf16 = config && (cpu || foreign) && !says_recipe(cell);
  if (as_bf16) config->precision.recipe = trainer::Recipe::kBf16;
  std::optional<Doctor> doctor;
  Status known = config ? Status() : tl::unexpected<Error>(config.error());
  if (known) {
    doctor.emplace(*config, hardware);
    known = doctor->begin();
  }
  if (cpu) {
    MB_TRY(known);
    fill_projected(cell, doctor->base(), trainer::is_quantized(config->precision.recipe));
  }

  std::vector<Advice> advices;
  for (const Symptom& symptom : analysis::symptoms(cell, analysis::knob_text_of(cell), capacity))
    advices.push_back(known ? doctor->advise(symptom, step_of(cell)) : Advice{symptom});
  Table table = table_of(std::move(advices));
  table.title =
      fmt::format("{} {}, {}, step {}", run.id, cell.name, baselines::class_label(cell), format_ns(step_of(cell)));
  if (table.rows.empty())
    table.footer.push_back(
        "Nothing passes a rule: no communication, bubble, launch gap or unused memory worth a line.");
  else
    table.footer.push_back("Gains are not additive; each is the best of the changes tried one at a time.");
  if (known && !doctor->base().memory.fits())
    table.footer.push_back(
        fmt::format("Its plan needs {} of {} and does not fit: the step is projected as if it did. `mbbench advise` "
                    "ranks mappings that fit.",
                    format_bytes(static_cast<double>(doctor->base().memory.bytes())),
                    format_bytes(static_cast<double>(doctor->base().memory.capacity_bytes))));
  if (known) {
    const double off = doctor->base().step_ns / step_of(cell) - 1;
    if (cell.result_class == baselines::ResultClass::kMeasured)
      table.footer.push_back(
          fmt::format("projected on {}; the projection of this cell itself is {:+.1f} % off its "
                      "measured step.",
                      hardware, 100 * off));
    else
      table.footer.push_back(fmt::format("projected on {}: nothing here was measured.", hardware));
  } else {
    table.footer.push_back(fmt::format("What a change is worth is not known: {}.", known.error().what));
  }
  if (as_bf16)
    table.footer.push_back(foreign ? "In bf16: neither its log nor a knob says in what it computed (recipe=...)."
                                   : "In bf16: fp32 is the default of CPU ranks, and of no GPU.");
  if (!gone.empty()) table.footer.push_back("Left out, since this program has no such knob: " + join(gone, ", ") + ".");
  print_tables(parsed, {table});
  return 0;
}

}  // namespace

Command diagnose_command() {
  Command c{"diagnose",
            "what a cell's step loses, the knob to try, and what it is worth by projection",
            {{"RUN", "@latest, @2, @tag, id, prefix of an id, or bundle folder"}},
            {{"--cell", "NAME", "which cell, where the run has several"},
             {"--hardware", "H", "the card to project on (default: the cell's own)"},
             kJsonOption,
             kMarkdownOption},
            true,
            diagnose};
  c.settings_alone = true;
  return c;
}

}  // namespace mbb::suites
