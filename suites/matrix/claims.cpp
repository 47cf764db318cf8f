// Reads [[claim]] tables: see claims.h.
#include "suites/matrix/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "analysis/metrics/metrics.h"
#include "profiler/base/text.h"
#include "suites/matrix/toml_fields.h"

namespace mbb::suites {
namespace {

constexpr const char* kKeys[] = {"name", "says", "source", "a", "b", "metric"};

Status known(const TomlFile& file, const TomlNode& at, const std::string& name, const std::vector<std::string>& names,
             const char* what) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  const auto near = nearest(name, names);
  return file.error(at.at, fmt::format("no {} is called '{}'", what, printable(name)),
                    near ? fmt::format("did you mean '{}'?", *near) : "", ErrorCode::kBadFile);
}

// One end: a number, or "any".
Result<double> end_of(const TomlFile& file, const TomlNode& node, double open) {
  if (node.kind == TomlKind::kString && node.text == "any") return open;
  if (node.kind == TomlKind::kInteger && node.integer > 0) return static_cast<double>(node.integer);
  if (node.kind == TomlKind::kNumber && node.number > 0) return node.number;
  return file.error(node.at, "an end of 'ratio' must be a number above 0, or \"any\"");
}

Status read_ratio(const TomlFile& file, const TomlNode& table, Claim& claim) {
  const TomlNode* ratio = table.find("ratio");
  if (ratio == nullptr || ratio->kind != TomlKind::kArray || ratio->items.size() != 2)
    return file.error(ratio ? ratio->at : table.at, "a [[claim]] needs 'ratio', two ends of b's metric over a's",
                      "add ratio = [0.7, 0.9], or one end open: [1.0, \"any\"]");
  MB_ASSIGN(claim.low, end_of(file, ratio->items[0], 0.0));
  MB_ASSIGN(claim.high, end_of(file, ratio->items[1], std::numeric_limits<double>::infinity()));
  if (claim.low < claim.high) return {};
  return file.error(ratio->at, fmt::format("'ratio' from {} to {} holds nothing", claim.low, claim.high));
}

}  // namespace

Result<std::vector<Claim>> read_claims(const TomlFile& file, const std::vector<std::string>& cells) {
  std::vector<Claim> claims;
  std::vector<std::string> metrics;
  for (const analysis::MetricInfo& metric : analysis::metrics()) metrics.emplace_back(metric.id);
  std::vector<std::string> keys(std::begin(kKeys), std::end(kKeys));
  keys.emplace_back("ratio");
  MB_ASSIGN(const auto tables, tables_in_array(file, "claim"));
  for (const TomlNode* at : tables) {
    const TomlNode& table = *at;
    MB_TRY(check_keys(file, table, keys, "[[claim]]"));
    Claim claim;
    std::string* const fields[] = {&claim.name, &claim.says, &claim.source, &claim.a, &claim.b, &claim.metric};
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      MB_ASSIGN(*fields[i], needed_text(file, table, kKeys[i]));
    }
    MB_TRY(known(file, *table.find("a"), claim.a, cells, "cell"));
    MB_TRY(known(file, *table.find("b"), claim.b, cells, "cell"));
    MB_TRY(known(file, *table.find("metric"), claim.metric, metrics, "metric"));
    MB_TRY(read_ratio(file, table, claim));
    for (const Claim& earlier : claims)
      if (earlier.name == claim.name)
        return file.error(table.find("name")->at, fmt::format("a claim '{}' is there already", claim.name));
    claims.push_back(std::move(claim));
  }
  return claims;
}

}  // namespace mbb::suites
