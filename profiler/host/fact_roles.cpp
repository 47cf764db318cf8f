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

std::string hash_of(const Fingerprint& fingerprint, const std::vector<std::string>& patterns) {
  std::string text;
  for (const HostFact& fact : fingerprint.facts)  // sorted by key; lengths keep neighbouring texts apart
    if (claims(patterns, fact.key))
      text += fmt::format("{}:{}={}:{};", fact.key.size(), fact.key, fact.value.size(), fact.value);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

const std::string* value_of(const Fingerprint& fingerprint, const std::string& key) {
  for (const HostFact& fact : fingerprint.facts)
    if (fact.key == key) return &fact.value;
  return nullptr;
}

}  // namespace

std::string product_hash(const Fingerprint& fingerprint, const FactRoles& roles) {
  return hash_of(fingerprint, roles.product);
}

Result<RoledFacts> apply_roles(Fingerprint fingerprint, const FactRoles& roles) {
  for (HostFact& fact : fingerprint.facts) {
    if (!claims(roles.product, fact.key)) continue;
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
  roled.epoch = hash_of(roled.fingerprint, roles.environment);
  roled.product = hash_of(roled.fingerprint, roles.product);
  return roled;
}

std::vector<std::string> changed_environment(const Fingerprint& before, const Fingerprint& now,
                                             const FactRoles& roles) {
  std::vector<std::string> changed;
  const auto text = [](const std::string* value) { return value == nullptr ? std::string("-") : *value; };
  for (const Fingerprint* side : {&before, &now})
    for (const HostFact& fact : side->facts) {
      const std::string *was = value_of(before, fact.key), *is = value_of(now, fact.key);
      if (!claims(roles.environment, fact.key) || text(was) == text(is)) continue;
      std::string line = fmt::format("{}: {} -> {}", fact.key, text(was), text(is));
      if (std::find(changed.begin(), changed.end(), line) == changed.end()) changed.push_back(std::move(line));
    }
  return changed;
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
  for (const HostFact& fact : declared)
    if (const std::string* value = value_of(fingerprint, fact.key); value != nullptr && claims(roles.product, fact.key))
      facts.push_back({fact.key, *value});
  return facts;
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

bool declares_product(const std::vector<HostFact>& declared, const FactRoles& roles) {
  return std::any_of(declared.begin(), declared.end(),
                     [&](const HostFact& fact) { return claims(roles.product, fact.key); });
}

}  // namespace mbb::profiler
