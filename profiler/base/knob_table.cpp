// Lookup, setting and listing of knobs: see knob_table.h.
#include "profiler/base/knob_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "profiler/base/hash.h"
#include "profiler/base/text.h"

namespace mbb {
namespace {

constexpr Layer kLayers[] = {Layer::kDefault,     Layer::kShipped, Layer::kUser,       Layer::kProject,
                             Layer::kEnvironment, Layer::kSuite,   Layer::kCommandLine};

std::string plain(std::string_view spelling) {
  return replace_all(spelling, "-", "_");
}

// What a file says wrongly makes that file a bad one; from elsewhere it is a bad argument. Which rule it breaks, or
// that nobody knows the name, changes neither.
tl::unexpected<Error> at(const Source& source, Error error) {
  error.code = source.line > 0 ? ErrorCode::kBadFile : ErrorCode::kBadArgument;
  return tl::unexpected<Error>(std::move(error).during(describe(source)));
}

}  // namespace

const char* name(Layer layer) {
  switch (layer) {
    case Layer::kDefault: return "default";
    case Layer::kShipped: return "shipped";
    case Layer::kUser: return "user";
    case Layer::kProject: return "project";
    case Layer::kEnvironment: return "environment";
    case Layer::kSuite: return "suite";
    case Layer::kCommandLine: return "command line";
  }
  return "";
}

Result<Layer> parse_layer(std::string_view text) {
  for (const Layer layer : kLayers)
    if (text == name(layer)) return layer;
  return fail(ErrorCode::kBadArgument, fmt::format("'{}' is no layer of settings", printable(text)));
}

std::string describe(const Source& source) {
  const std::string place = printable(source.place, 4096);
  if (source.line > 0) return fmt::format("{}:{}:{}", place, source.line, source.column);
  if (source.place.empty()) return name(source.layer);
  if (source.layer == Layer::kEnvironment) return fmt::format("environment variable {}", place);
  if (source.layer == Layer::kCommandLine) return fmt::format("argument '{}'", printable(source.place));
  return place;
}

void KnobTable::index(const void* defaults) {
  for (const Knob& knob : knobs_) {
    check_record(knob, defaults);
    add_spelling(knob.key, knob, true);
    defaults_[knob.key] = knob_text(knob.get(defaults));
  }
  for (const Knob& knob : knobs_) {
    for (const std::string& alias : knob.aliases) {
      add_spelling(alias, knob, true);
      if (!knob.section().empty()) add_spelling(fmt::format("{}.{}", knob.section(), alias), knob, true);
    }
  }
  for (const Knob& knob : knobs_) {
    if (knob.section().empty()) continue;
    add_spelling(std::string(knob.bare_name()), knob, false);
    add_spelling(replace_all(knob.key, ".", "_"), knob, false);
  }
}

void KnobTable::check_record(const Knob& knob, const void* defaults) const {
  MB_CHECK(knob.field.config == config_, fmt::format("knob {} sets a field of another configuration", knob.key));
  MB_CHECK(!knob.doc.empty(), fmt::format("knob {} has no sentence", knob.key));
  MB_CHECK((knob.field.type == KnobType::kChoice) == !knob.choices.empty(),
           fmt::format("knob {}: choices go with an enumeration, and only there", knob.key));
  const KnobData value = knob.get(defaults);
  if (const auto* number = std::get_if<int64_t>(&value))
    MB_CHECK(knob.range.holds(static_cast<double>(*number)),
             fmt::format("default of {} is outside its range", knob.key));
  if (const auto* number = std::get_if<double>(&value))
    MB_CHECK(knob.range.holds(*number), fmt::format("default of {} is outside its range", knob.key));
}

void KnobTable::add_spelling(const std::string& spelling, const Knob& knob, bool must_be_new) {
  auto& owners = spellings_[plain(spelling)];
  if (std::find(owners.begin(), owners.end(), &knob) != owners.end()) return;
  MB_CHECK(!must_be_new || owners.empty(), fmt::format("knob spelling {} belongs to two knobs", spelling));
  owners.push_back(&knob);
}

std::vector<std::string> KnobTable::sections() const {
  std::vector<std::string> names;
  for (const Knob& knob : knobs_) {
    const std::string section(knob.section());
    if (!section.empty() && std::find(names.begin(), names.end(), section) == names.end()) names.push_back(section);
  }
  return names;
}

KnobTable::Found KnobTable::lookup(std::string_view name) const {
  const std::string wanted = plain(name);
  const auto hit = spellings_.find(wanted);
  if (hit != spellings_.end()) {
    if (hit->second.size() == 1) return {hit->second.front(), "", {}};
    return {nullptr, "", hit->second};
  }
  // "table.entry": the longest beginning that is a table knob.
  for (size_t dot = wanted.rfind('.'); dot != std::string::npos && dot > 0; dot = wanted.rfind('.', dot - 1)) {
    const auto table = spellings_.find(std::string_view(wanted).substr(0, dot));
    if (table == spellings_.end() || table->second.size() != 1) continue;
    if (table->second.front()->field.type == KnobType::kTable)
      return {table->second.front(), wanted.substr(dot + 1), {}};
  }
  return {};
}

Result<KnobTable::Found> KnobTable::resolve(std::string_view name) const {
  Found found = lookup(name);
  if (found.knob != nullptr) return found;
  if (!found.ambiguous.empty()) {
    std::vector<std::string> keys;
    for (const Knob* knob : found.ambiguous) keys.push_back(knob->key);
    return fail(ErrorCode::kBadArgument, fmt::format("'{}' is the name of several knobs", printable(name)),
                "write one of " + join(keys, ", "));
  }
  std::vector<std::string> names;
  for (const auto& [spelling, owners] : spellings_) names.push_back(spelling);
  const auto near = nearest(plain(name), names);
  std::string hint = "`mbbench knobs` lists them all";
  if (near) {
    const Knob* knob = spellings_.find(*near)->second.front();
    hint = *near == knob->key ? fmt::format("did you mean '{}'?", knob->key)
                              : fmt::format("did you mean '{}' ({})?", *near, knob->key);
  }
  return fail(ErrorCode::kNotFound, fmt::format("no knob is called '{}'", printable(name)), std::move(hint));
}

Result<const Knob*> KnobTable::find(std::string_view name) const {
  MB_ASSIGN(const Found found, resolve(name));
  return found.knob;
}

void KnobTable::check_type(std::type_index type) const {
  MB_CHECK(type == config_, "this table sets fields of another type of configuration");
}

Status KnobTable::store(ConfigRef config, KnobSources& sources, const Found& found, Result<KnobData> value,
                        const Source& source) const {
  if (!value) return at(source, std::move(value.error()));
  KnobData data = std::move(*value);
  if (!found.entry.empty()) {
    KnobMap table = std::get<KnobMap>(found.knob->get(config.pointer()));
    table[found.entry] = knob_text(data);
    data = std::move(table);
  }
  if (auto status = found.knob->set(config.pointer(), std::move(data)); !status)
    return at(source, std::move(status.error()));
  sources[found.knob->key] = source;
  return {};
}

Status KnobTable::set_text(ConfigRef config, KnobSources& sources, std::string_view name, std::string_view text,
                           const Source& source) const {
  check_type(config.type());
  auto found = resolve(name);
  if (!found) return at(source, std::move(found.error()));
  auto value = found->entry.empty() ? found->knob->parse(text) : Result<KnobData>(KnobData(std::string(text)));
  return store(config, sources, *found, std::move(value), source);
}

Status KnobTable::set(ConfigRef config, KnobSources& sources, std::string_view name, KnobData value,
                      const Source& source) const {
  check_type(config.type());
  auto found = resolve(name);
  if (!found) return at(source, std::move(found.error()));
  return store(config, sources, *found, std::move(value), source);
}

std::string KnobTable::text(ConstConfigRef config, std::string_view name) const {
  check_type(config.type());
  const Found found = lookup(name);
  MB_CHECK(found.knob != nullptr, fmt::format("no knob is called {}", name));
  return knob_text(found.knob->get(config.pointer()));
}

std::string KnobTable::default_text(const Knob& knob) const {
  return defaults_.at(knob.key);
}

std::vector<KnobState> KnobTable::states(ConstConfigRef config, const KnobSources& sources) const {
  check_type(config.type());
  std::vector<KnobState> all;
  for (const Knob& knob : knobs_) {
    const auto source = sources.find(knob.key);
    all.push_back({&knob, knob_text(knob.get(config.pointer())), source == sources.end() ? Source{} : source->second});
  }
  return all;
}

std::string KnobTable::to_lines(ConstConfigRef config) const {
  check_type(config.type());
  std::string lines;
  for (const Knob& knob : knobs_) lines += fmt::format("{}={}\n", knob.key, knob_text(knob.get(config.pointer())));
  return lines;
}

Status KnobTable::from_lines(ConfigRef config, KnobSources& sources, std::string_view lines,
                             const Source& source) const {
  Source here = source;
  here.column = 1;
  int line = 0;
  for (const std::string_view text : split(lines, '\n')) {
    here.line = ++line;
    if (trim(text).empty()) continue;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos)
      return at(here, {ErrorCode::kBadFile, fmt::format("expected key=value, not '{}'", printable(text)), ""});
    MB_TRY(set_text(config, sources, text.substr(0, equals), text.substr(equals + 1), here));
  }
  return {};
}

// A knob at its default is left out: one that is added splits no series.
std::string KnobTable::identity_hash(ConstConfigRef config) const {
  check_type(config.type());
  Hasher hasher;
  for (const Knob& knob : knobs_)
    if (const std::string value = knob_text(knob.get(config.pointer())); knob.identity && value != default_text(knob))
      hasher.update(fmt::format("{}={}\n", knob.key, value));
  return hasher.hex();
}

}  // namespace mbb
