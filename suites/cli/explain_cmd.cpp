// mbbench explain: the step program of a configuration, without running it.
#include <fmt/core.h>

#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/sequence_work.h"
#include "trainer/program/explain.h"
#include "trainer/run/choice_effects.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

Result<int> explain_step(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const trainer::Layout layout, layout_of(settings));
  MB_ASSIGN(trainer::StepPrograms programs, trainer::build_programs(layout));
  trainer::add_choice_effects(layout, programs);
  // A plan needs no data: without it, rows count as whole sequences, and that is said.
  const auto rows = row_lengths(layout);
  if (!rows)
    fmt::print(stderr, "note: lengths of sequences are not known, attention counts over whole rows: {}\n",
               rows.error().what);
  const trainer::RowLengths* const lengths = rows && rows->has_value() ? &**rows : nullptr;
  if (parsed.flag("--json")) {
    fmt::print("{}\n", trainer::explain_json(layout, programs, lengths));
    return 0;
  }
  trainer::ExplainOptions options;
  options.ops = parsed.flag("--ops");
  options.capacity_bytes = static_cast<int64_t>(settings.config.memory.limit_gib * 0x1p30);
  options.segment = parsed.value("--segment").value_or("");
  options.path = parsed.value("--path").value_or("");
  if (const auto text = parsed.value("--stage")) {
    const auto stage = parse_int(*text);
    if (!stage || *stage < 0 || *stage >= layout.pp)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("--stage {}: there are stages 0 to {}", printable(*text), layout.pp - 1));
    options.stage = static_cast<int>(*stage);
  }
  MB_ASSIGN(const std::string text, trainer::to_text(trainer::explain(layout, programs, lengths), options));
  fmt::print("{}", text);
  if (options.capacity_bytes > 0)
    if (const Status fits = trainer::check_memory(layout, programs); !fits)
      fmt::print("too much {}\n         {}\n", fits.error().what, fits.error().hint);
  const auto tensor = parsed.value("--tensor");
  if (!parsed.flag("--lifetimes") && !tensor) return 0;
  trainer::MeshCoordinates at;
  at.pp = options.stage;
  const trainer::Program& program = programs.of_rank(layout.mesh, layout.mesh.rank(at));
  MB_ASSIGN(const std::string lives, trainer::lifetimes_text(program, tensor.value_or("")));
  fmt::print("\n{}", lives);
  return 0;
}

}  // namespace

Command explain_command() {
  Command c{"explain",
            "print the step program of a configuration: FLOPs, bytes, communication, memory",
            {},
            {{"--ops", nullptr, "list the ops"},
             {"--stage", "N", "of this pipeline stage (default 0)"},
             {"--segment", "NAME", "list the ops of segments whose name holds this"},
             {"--path", "PATTERN", "only ops whose path matches (* and ?)"},
             {"--lifetimes", nullptr, "list the buffers: size, slots, first writer, last reader"},
             {"--tensor", "PATTERN", "the same, only of buffers whose path matches (* and ?)"}},
            true,
            explain_step};
  for (OptionSpec& option : c.options) option.against = "--json";  // which has all stages and ops
  c.options.push_back(kJsonOption);
  return c;
}

}  // namespace mbb::suites
