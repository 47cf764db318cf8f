// TOML tables of knobs: see knob_file.h.
#include "suites/matrix/knob_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "profiler/base/text.h"
#include "suites/matrix/product_settings.h"
#include "trainer/models/hf_config.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

bool is_section(std::string_view name) {
  const std::string wanted = replace_all(name, "-", "_");
  for (const KnobTable* table : {&trainer::knobs(), &product_settings()}) {
    const auto sections = table->sections();
    if (std::find(sections.begin(), sections.end(), wanted) != sections.end()) return true;
  }
  return false;
}

// "~/x" and paths relative to the file's folder become what they mean from anywhere.
std::string located(const std::string& text, const std::string& file, const std::string& home) {
  if (text.empty()) return text;
  if (text.starts_with("~/") && !home.empty()) return home + text.substr(1);
  const std::filesystem::path path(text);
  if (path.is_absolute()) return text;
  return (std::filesystem::path(file).parent_path() / path).lexically_normal().string();
}

// A model may be a name of the table instead, and recorded choices a word.
bool is_path(const Knob& knob, const std::string& text) {
  const bool replay = knob.key == "parallel.moe_router_replay" && text != "record" && text != "reference";
  return knob.path || replay || (knob.key == "model.name" && trainer::is_model_path(text));
}

// A folder beside the file stays a path: "./m" is not the model m.
std::string located_as(const Knob& knob, const std::string& text, const std::string& file, const std::string& home) {
  std::string path = located(text, file, home);
  return is_path(knob, path) ? path : "./" + path;
}

}  // namespace

Result<std::vector<FileValue>> knobs_of(const TomlFile& file, const TomlNode& table) {
  std::vector<FileValue> values;
  for (const TomlNode& entry : table.items) {
    if (entry.kind == TomlKind::kTable && is_section(entry.key)) {
      for (const TomlNode& inner : entry.items) values.push_back({entry.key + "." + inner.key, &inner});
    } else {
      values.push_back({entry.key, &entry});
    }
  }
  std::map<const Knob*, const FileValue*> seen;
  for (const FileValue& value : values) {
    const auto found = find_setting(value.name);
    if (!found) return file.error(value.node->key_at, found.error().what, found.error().hint);
    const auto [earlier, is_new] = seen.emplace(found->knob, &value);
    if (is_new) continue;
    const TomlPlace at = earlier->second->node->key_at;
    return file.error(value.node->key_at,
                      fmt::format("{} is set twice, here as '{}' and at {}:{} as '{}'", found->knob->key, value.name,
                                  at.line, at.column, earlier->second->name),
                      "keep one of them");
  }
  return values;
}

Status set_from_file(Settings& settings, const TomlFile& file, const FileValue& value, Layer layer,
                     bool product_allowed) {
  const TomlNode& node = *value.node;
  const auto found = find_setting(value.name);
  if (!found) return file.error(node.key_at, found.error().what, found.error().hint);
  if (found->is_product && !product_allowed)
    return file.error(node.key_at, fmt::format("'{}' is a setting of the product, not a knob of a run", value.name),
                      "set it in mbbench.toml or on the command line");
  MB_ASSIGN(KnobData data, knob_data(file, node));
  if (const auto* text = std::get_if<std::string>(&data); text != nullptr && is_path(*found->knob, *text))
    data = located_as(*found->knob, *text, file.path, settings.home);
  const Source source{layer, file.path, node.at.line, node.at.column};
  if (found->is_product)
    return product_settings().set(settings.product, settings.product_sources, value.name, std::move(data), source);
  const auto* table = std::get_if<KnobMap>(&data);
  if (table == nullptr || found->knob->field.type != KnobType::kTable)
    return trainer::knobs().set(settings.config, settings.sources, value.name, std::move(data), source);
  // Entries that a later layer does not name stay as the earlier one set them.
  for (const auto& [entry, text] : *table)
    MB_TRY(trainer::knobs().set(settings.config, settings.sources, found->knob->key + "." + entry, text, source));
  return {};
}

}  // namespace mbb::suites
