// Sorts facts by patterns and hashes each part.
#include "profiler/host/fact_roles.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

bool claims(const std::vector<std::string>& patterns, const std::string& key) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) { return glob_match(p, key); });
}

bool is_product(const FactRoles& roles, const std::string& key) {
  return claims(roles.product, key) || (is_declared(key) && !claims(roles.environment, key));
}

template <typename Is>
std::string hash_of(const Fingerprint& fingerprint, const Is& is_counted) {
  std::string text;
  for (const HostFact& fact : fingerprint.facts)  // sorted by key; lengths keep neighbouring texts apart
    if (is_counted(fact.key))
      text += fmt::format("{}:{}={}:{};", fact.key.size(), fact.key, fact.value.size(), fact.value);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

const std::string* value_of(const Fingerprint& fingerprint, const std::string& key) {
  for (const HostFact& fact : fingerprint.facts)
    if (fact.key == key) return &fact.value;
  return nullptr;
}

template <typename Is>
std::vector<std::string> changes_of(const Fingerprint& before, const Fingerprint& now, const Is& is_counted) {
  std::vector<std::string> changed;
  const auto text = [](const std::string* value) { return value == nullptr ? std::string("-") : *value; };
  for (const Fingerprint* side : {&before, &now})
    for (const HostFact& fact : side->facts) {
      const std::string *was = value_of(before, fact.key), *is = value_of(now, fact.key);
      if (!is_counted(fact.key) || text(was) == text(is)) continue;
      std::string line = fmt::format("{}: {} -> {}", fact.key, text(was), text(is));
      if (std::find(changed.begin(), changed.end(), line) == changed.end()) changed.push_back(std::move(line));
    }
  return changed;
}

}  // namespace

bool is_declared(const std::string& key) {
  static const std::set<std::string_view> read = {"build", "cpu", "gpu", "kernel", "library", "memory", "numa", "os"};
  return !read.contains(std::string_view(key).substr(0, key.find('.')));
}

std::string product_hash(const Fingerprint& fingerprint, const FactRoles& roles) {
  return hash_of(fingerprint, [&](const std::string& key) { return is_product(roles, key); });
}

Result<RoledFacts> apply_roles(Fingerprint fingerprint, const FactRoles& roles) {
  for (HostFact& fact : fingerprint.facts) {
    if (!is_product(roles, fact.key)) continue;
    if (claims(roles.environment, fact.key))
      return fail(roles.fault, fmt::format("gate.product and gate.environment both claim the fact {}", fact.key),
                  "a fact is the product under test or its environment: narrow one of the patterns");
    fact.in_class = false;
  }
  std::set<std::string_view> keys;
  for (const HostFact& fact : fingerprint.facts)
    if (!keys.insert(fact.key).second)
      return fail(roles.fault, fmt::format("gate.facts declares {}, which the program sees for itself", fact.key),
                  "declare it by another name, or leave it out");
  RoledFacts roled;
  roled.fingerprint = make_fingerprint(std::move(fingerprint.facts));
  roled.epoch = hash_of(roled.fingerprint, [&](const std::string& key) { return claims(roles.environment, key); });
  roled.product = product_hash(roled.fingerprint, roles);
  return roled;
}

std::vector<std::string> changed_environment(const Fingerprint& before, const Fingerprint& now,
                                             const FactRoles& roles) {
  return changes_of(before, now, [&](const std::string& key) { return claims(roles.environment, key); });
}

std::vector<std::string> changed_product(const Fingerprint& before, const Fingerprint& now, const FactRoles& roles) {
  return changes_of(before, now, [&](const std::string& key) { return is_product(roles, key); });
}

std::vector<std::string> idle_patterns(const Fingerprint& fingerprint, const std::vector<std::string>& patterns) {
  std::vector<std::string> idle;
  for (const std::string& pattern : patterns)
    if (std::none_of(fingerprint.facts.begin(), fingerprint.facts.end(),
                     [&](const HostFact& fact) { return glob_match(pattern, fact.key); }))
      idle.push_back(pattern);
  return idle;
}

Status check_product(const Fingerprint& fingerprint, const FactRoles& roles) {
  if (idle_patterns(fingerprint, roles.product).size() < roles.product.size()) return {};
  std::vector<std::string> keys;
  for (const HostFact& fact : fingerprint.facts) keys.push_back(fact.key);
  return fail(roles.fault,
              fmt::format("gate.product = '{}' matches no fact, so that nothing says which product this is",
                          join(roles.product, ",")),
              fmt::format("the facts there are: {}; others are declared under gate.facts", join(keys, ", ")));
}

std::vector<HostFact> declared_product(const Fingerprint& fingerprint, const std::vector<HostFact>& declared,
                                       const FactRoles& roles) {
  std::vector<HostFact> facts;
  for (const HostFact& fact : fingerprint.facts) {
    const bool here = std::any_of(declared.begin(), declared.end(), [&](const auto& d) { return d.key == fact.key; });
    if (is_product(roles, fact.key) && (here || is_declared(fact.key))) facts.push_back({fact.key, fact.value});
  }
  return facts;
}

std::vector<std::string> declared_only_here(const Fingerprint& here, const Fingerprint& there) {
  std::vector<std::string> keys;
  for (const HostFact& fact : here.facts)
    if (is_declared(fact.key) && value_of(there, fact.key) == nullptr) keys.push_back(fact.key);
  return keys;
}

std::string product_text(const Fingerprint& fingerprint, const std::vector<HostFact>& declared,
                         const FactRoles& roles) {
  std::string text;
  for (const HostFact& fact : declared_product(fingerprint, declared, roles))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", fact.key, fact.value);
  if (!text.empty()) return text;
  const std::string* commit = value_of(fingerprint, "build.commit");
  return commit == nullptr ? "unknown" : *commit;
}

}  // namespace mbb::profiler
