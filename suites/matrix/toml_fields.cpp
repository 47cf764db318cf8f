// Reads single fields of a suite's tables.
#include "suites/matrix/toml_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "profiler/base/text.h"

namespace mbb::suites {

Status expect(const TomlFile& file, const TomlNode& node, TomlKind kind, std::string_view what) {
  if (node.kind == kind) return {};
  return file.error(node.at, fmt::format("{} must be {}, not {}", what, name(kind), name(node.kind)));
}

Status check_keys(const TomlFile& file, const TomlNode& table, const std::vector<std::string>& keys,
                  std::string_view whose) {
  for (const TomlNode& entry : table.items) {
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) continue;
    const auto near = nearest(entry.key, keys);
    return file.error(entry.key_at, fmt::format("{} has no key '{}'", whose, printable(entry.key)),
                      near ? fmt::format("did you mean '{}'?", *near) : "it has " + join(keys, ", "));
  }
  return {};
}

Result<std::string> needed_text(const TomlFile& file, const TomlNode& table, const std::string& key) {
  const TomlNode* node = table.find(key);
  if (node == nullptr)
    return file.error(table.at, fmt::format("'{}' is missing", key), fmt::format("add {} = \"...\"", key));
  MB_TRY(expect(file, *node, TomlKind::kString, fmt::format("'{}'", key)));
  if (trim(node->text).empty()) return file.error(node->at, fmt::format("'{}' is empty", key));
  return node->text;
}

Result<std::string> text_if_any(const TomlFile& file, const TomlNode& table, const std::string& key) {
  const TomlNode* node = table.find(key);
  if (node == nullptr) return std::string();
  MB_TRY(expect(file, *node, TomlKind::kString, fmt::format("'{}'", key)));
  return node->text;
}

Result<int64_t> count_in(const TomlFile& file, const TomlNode& table, const std::string& key, int64_t otherwise) {
  const TomlNode* node = table.find(key);
  if (node == nullptr) return otherwise;
  MB_TRY(expect(file, *node, TomlKind::kInteger, fmt::format("'{}'", key)));
  if (node->integer < 0) return file.error(node->at, fmt::format("'{}' is negative", key));
  return node->integer;
}

Result<std::vector<const TomlNode*>> tables_in_array(const TomlFile& file, const std::string& key) {
  std::vector<const TomlNode*> found;
  const TomlNode* list = file.root.find(key);
  if (list == nullptr) return found;
  const std::string what = fmt::format("'{}' (written [[{}]])", key, key);
  MB_TRY(expect(file, *list, TomlKind::kArray, what));
  for (const TomlNode& item : list->items) {
    MB_TRY(expect(file, item, TomlKind::kTable, what));
    found.push_back(&item);
  }
  return found;
}

Result<std::vector<const TomlNode*>> named_tables(const TomlFile& file, const std::string& key) {
  std::vector<const TomlNode*> found;
  const TomlNode* tables = file.root.find(key);
  if (tables == nullptr) return found;
  MB_TRY(expect(file, *tables, TomlKind::kTable, fmt::format("'{}' (written [{}.NAME])", key, key)));
  for (const TomlNode& table : tables->items) {
    MB_TRY(expect(file, table, TomlKind::kTable, fmt::format("'{}.{}'", key, printable(table.key))));
    found.push_back(&table);
  }
  return found;
}

}  // namespace mbb::suites
