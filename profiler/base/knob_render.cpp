// Renders knob records: see knob_render.h.
#include "profiler/base/knob_render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/text.h"

namespace mbb {
namespace {

std::string value_form(const Knob& knob) {
  std::string form;
  if (knob.field.type == KnobType::kChoice) {
    std::vector<std::string> names;
    for (const KnobChoice& c : knob.choices) names.push_back(c.name);
    form = join(names, ", ");
  } else {
    form = name(knob.field.type);
  }
  if (!knob.unit.empty()) form += fmt::format(" ({})", knob.unit);
  if (const std::string range = knob.range.text(); !range.empty()) form += fmt::format(", {}", range);
  return form;
}

std::string shown_default(const KnobTable& table, const Knob& knob) {
  const std::string text = table.default_text(knob);
  return text.empty() ? "(empty)" : text;
}

std::string json_list(const std::vector<std::string>& items) {
  std::vector<std::string> quoted;
  for (const std::string& item : items) quoted.push_back(json_quote(item));
  return fmt::format("[{}]", join(quoted, ", "));
}

std::string json_bound(double bound) {
  return std::isfinite(bound) ? format_exact(bound) : "null";
}

std::string json_object(const KnobTable& table, const Knob& knob) {
  std::vector<std::string> choices;
  for (const KnobChoice& c : knob.choices) choices.push_back(c.name);
  return fmt::format(
      "  {{\"key\": {}, \"aliases\": {}, \"type\": {}, \"choices\": {}, \"default\": {}, \"unit\": {}, \"low\": {}, "
      "\"low_allowed\": {}, \"high\": {}, \"high_allowed\": {}, \"identity\": {}, \"projected\": {}, \"needs\": {}, "
      "\"doc\": {}, "
      "\"history\": {}}}",
      json_quote(knob.key), json_list(knob.aliases), json_quote(name(knob.field.type)), json_list(choices),
      json_quote(table.default_text(knob)), json_quote(knob.unit), json_bound(knob.range.low), knob.range.low_allowed,
      json_bound(knob.range.high), knob.range.high_allowed, knob.identity, knob.projected, json_list(knob.needs),
      json_quote(knob.doc), json_quote(knob.history));
}

std::string markdown_cell(std::string_view text) {
  return replace_all(text, "|", "\\|");
}

std::string markdown_row(const KnobTable& table, const Knob& knob) {
  std::string names = fmt::format("`{}`", knob.bare_name());
  if (!knob.aliases.empty()) names += fmt::format(" (`{}`)", join(knob.aliases, "`, `"));
  std::string doc = knob.doc;
  for (const KnobChoice& c : knob.choices)
    if (!c.doc.empty()) doc += fmt::format(" `{}`: {}.", c.name, c.doc);
  if (!knob.history.empty()) doc += fmt::format(" {}", knob.history);
  if (!knob.needs.empty()) doc += fmt::format(" Needs {}.", join(knob.needs, "; "));
  if (!knob.identity) doc += " Does not split a series.";
  if (!knob.projected) doc += " Not projected.";
  return fmt::format("| {} | {} | `{}` | {} |\n", names, markdown_cell(value_form(knob)), shown_default(table, knob),
                     markdown_cell(doc));
}

// Sections in order, the section-less first.
template <typename Visit>
void for_each_section(const KnobTable& table, Visit visit) {
  std::vector<std::string> sections = table.sections();
  sections.insert(sections.begin(), "");
  for (const std::string& section : sections) {
    std::vector<const Knob*> members;
    for (const Knob& knob : table.knobs())
      if (knob.section() == section) members.push_back(&knob);
    if (!members.empty()) visit(section, members);
  }
}

}  // namespace

std::string render_knobs_text(const KnobTable& table) {
  std::string out;
  for_each_section(table, [&](const std::string& section, const std::vector<const Knob*>& members) {
    if (!out.empty()) out += "\n";
    if (!section.empty()) out += fmt::format("[{}]\n", section);
    for (const Knob* knob : members) {
      std::string names(knob->bare_name());
      for (const std::string& alias : knob->aliases) names += fmt::format(", {}", alias);
      out += fmt::format("  {}\n      {}  (default {})\n      {}\n", names, value_form(*knob),
                         shown_default(table, *knob), knob->doc);
      if (!knob->needs.empty()) out += fmt::format("      needs {}\n", join(knob->needs, "; "));
    }
  });
  return out;
}

std::string render_knobs_json(const KnobTable& table) {
  std::vector<std::string> objects;
  for (const Knob& knob : table.knobs()) objects.push_back(json_object(table, knob));
  return fmt::format("[\n{}\n]\n", join(objects, ",\n"));
}

std::string render_knobs_markdown(const KnobTable& table, const std::string& title) {
  std::string out = fmt::format(
      "# {}\n\nGenerated from the knob records; a test compares this page with them. Dashes and underscores are alike, "
      "a "
      "unique name needs no section, and every spelling works as `--name value`, `name=value`, in TOML and as "
      "`MBBENCH_<NAME>`.\n",
      title);
  for_each_section(table, [&](const std::string& section, const std::vector<const Knob*>& members) {
    if (!section.empty()) out += fmt::format("\n## {}\n", section);
    out += "\n| knob (aliases) | value | default | what it does |\n|---|---|---|---|\n";
    for (const Knob* knob : members) out += markdown_row(table, *knob);
  });
  return out;
}

std::string render_origins_text(const KnobTable& table, ConstConfigRef config, const KnobSources& sources) {
  const std::vector<KnobState> states = table.states(config, sources);
  size_t widest = 0;
  for (const KnobState& state : states)
    widest = std::max(widest, display_width(state.knob->key) + 3 + display_width(state.value));
  std::string out;
  for (const KnobState& state : states) {
    const std::string assignment = fmt::format("{} = {}", state.knob->key, state.value);
    const size_t padding = widest > display_width(assignment) ? widest - display_width(assignment) : 0;
    // A place in a file does not tell its layer; the other sources do.
    const std::string layer = state.source.line > 0 ? fmt::format("{}: ", name(state.source.layer)) : "";
    out += fmt::format("{}{}  {}{}\n", assignment, std::string(padding, ' '), layer, describe(state.source));
  }
  return out;
}

}  // namespace mbb
