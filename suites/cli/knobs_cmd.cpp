// mbbench knobs, config and help: what can be set, what is set and by whom, what a term means.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "analysis/metrics/metrics.h"
#include "profiler/base/knob_render.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/glossary.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/matrix/product_settings.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

Result<int> knobs(const Parsed& parsed) {
  fmt::print("{}", parsed.flag("--json")       ? render_knobs_json(trainer::knobs())
                   : parsed.flag("--markdown") ? render_knobs_markdown(trainer::knobs(), "Knobs")
                                               : render_knobs_text(trainer::knobs()));
  return 0;
}

Result<int> config(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  fmt::print("{}", parsed.flag("--json") ? render_origins_json(settings) + "\n" : render_origins_text(settings));
  return 0;
}

std::string describe_knob(const KnobTable& table, const Knob& knob) {
  std::string text =
      fmt::format("{}  ({})\n  {}\n  default {}", knob.key, name(knob.field.type), knob.doc, table.default_text(knob));
  if (!knob.unit.empty()) text += " " + knob.unit;
  if (!knob.aliases.empty()) text += "\n  also: " + join(knob.aliases, ", ");
  if (!knob.choices.empty()) {
    text += "\n  one of:";
    for (const auto& c : knob.choices) text += " " + c.name;
  }
  return text + "\n";
}

// Whether a text has the word by itself.
bool mentions(std::string_view text, std::string_view word) {
  const auto inside = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !inside(text[at - 1])) && (end == text.size() || !inside(text[end]))) return true;
  }
  return false;
}

// What else a name may be: a setting of the product, a value of a knob, a part of one's entries, a model.
bool explain_other(const std::string& term) {
  bool known = false;
  const KnobTable& settings = product_settings();
  if (const auto setting = settings.find(term)) known = true, fmt::print("{}", describe_knob(settings, **setting));
  for (const Knob& knob : trainer::knobs().knobs()) {
    const bool value =
        std::any_of(knob.choices.begin(), knob.choices.end(), [&](const auto& c) { return c.name == term; });
    const bool part =
        term.find('_') != std::string::npos && knob.field.type == KnobType::kTable && mentions(knob.doc, term);
    if (!value && !part) continue;
    known = true;
    fmt::print("{} is {} of\n{}", term, value ? "a value" : "a part", describe_knob(trainer::knobs(), knob));
  }
  if (!known && trainer::find_model(term)) {
    known = true;
    fmt::print("{} is a model: `mbbench list models`, `mbbench explain --model {}`\n", term, term);
  }
  return known;
}

Result<int> help(const Parsed& parsed) {
  if (parsed.positionals.empty()) {
    fmt::print("mbbench COMMAND ...; `mbbench --help` lists the commands, `mbbench COMMAND --help` their options.\n\n");
    fmt::print("`mbbench help TERM` explains a metric, a knob or a word that tables print:\n");
    for (const auto& metric : analysis::metrics()) fmt::print("  {:<28} {}\n", metric.id, metric.title);
    std::string words;
    for (const Term& one : glossary()) words += (words.empty() ? "" : ", ") + std::string(one.word);
    fmt::print("\nwords of tables: {}\n", words);
    return 0;
  }
  const std::string& term = parsed.positionals[0];
  const auto found = analysis::lookup_metrics(term);
  for (const auto* metric : found) fmt::print("{}\n", analysis::describe(*metric));
  const auto knob = trainer::knobs().find(term);
  if (knob) fmt::print("{}", describe_knob(trainer::knobs(), **knob));
  const Term* const word = find_term(term);
  if (word != nullptr) fmt::print("{}\n  {}\n", word->word, word->meaning);
  for (const Command& command : commands())
    if (term == command.name && !command.hidden) {
      fmt::print("mbbench {}: {} (`mbbench {} --help`)\n", command.name, command.summary, command.name);
      return 0;
    }
  if (!found.empty() || knob || word != nullptr || explain_other(term)) return 0;
  return fail(ErrorCode::kBadArgument,
              fmt::format("no metric, knob, command or word of a table is called '{}'", printable(term)),
              knob.error().hint.empty() ? "`mbbench help` lists metrics and words, `mbbench knobs` the knobs"
                                        : knob.error().hint);
}

}  // namespace

Command knobs_command() {
  return {"knobs", "list every knob", {}, {kJsonOption, kMarkdownOption}, false, knobs};
}

Command config_command() {
  return {"config", "print every setting and where it came from",
          {},       {{"--origin", nullptr, "with its source (always shown)"}, kJsonOption},
          true,     config};
}

Command help_command() {
  return {"help",
          "explain a metric, a knob, a command or a word of a table",
          {{"TERM", "what to explain", false}},
          {},
          false,
          help};
}

}  // namespace mbb::suites
