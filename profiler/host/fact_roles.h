// Which facts of a run are the product under test and which are the environment it runs in.
//
// A nightly gate compares products, so a fact of the product (a commit, an image) may differ between what is compared,
// and a fact of the environment (a driver, a kernel) may not: a change of it begins a new epoch of every series.
#pragma once

#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/host/fingerprint.h"

namespace mbb::profiler {

// Whether a fact is of the user's own (gate.facts), as an image is: nothing that the program reads is called so. It is
// the product's unless the environment's patterns claim it, whoever asks.
bool is_declared(const std::string& key);

// Patterns of fact keys, as "gpu.*".
struct FactRoles {
  std::vector<std::string> product;
  std::vector<std::string> environment;
  ErrorCode fault = ErrorCode::kBadArgument;  // of roles that cannot be: kBadFile where they stand in a file
};

struct RoledFacts {
  Fingerprint fingerprint;  // product facts are not in its class
  std::string epoch;        // 16 hexadecimal digits over the environment's facts
  std::string product;      // likewise over the product's
};

// roles.fault: a fact that both lists claim. A fact of neither is recorded only; one in the class stays there.
Result<RoledFacts> apply_roles(Fingerprint fingerprint, const FactRoles& roles);

// The keys whose values differ, "gpu.driver: 570.1 -> 580.2", among the environment's facts.
std::vector<std::string> changed_environment(const Fingerprint& before, const Fingerprint& now, const FactRoles& roles);
// Likewise among the product's.
std::vector<std::string> changed_product(const Fingerprint& before, const Fingerprint& now, const FactRoles& roles);

// Hash over the product's facts of a fingerprint, as RoledFacts::product.
std::string product_hash(const Fingerprint& fingerprint, const FactRoles& roles);

// Those patterns that no fact of the fingerprint has a key for.
std::vector<std::string> idle_patterns(const Fingerprint& fingerprint, const std::vector<std::string>& patterns);

// Some fact must be the product's: without one every product is the same, and each change the machine's. roles.fault.
Status check_product(const Fingerprint& fingerprint, const FactRoles& roles);

// The declared facts of a fingerprint that are the product's; of `declared` too those that a pattern claims.
std::vector<HostFact> declared_product(const Fingerprint& fingerprint, const std::vector<HostFact>& declared,
                                       const FactRoles& roles);

// The keys of declared facts that `here` has and `there` has not.
std::vector<std::string> declared_only_here(const Fingerprint& here, const Fingerprint& there);

// The product under test as a person calls it: "image nemo:25.09" of its declared facts, else its build's commit
// ("unknown" without one).
std::string product_text(const Fingerprint& fingerprint, const std::vector<HostFact>& declared, const FactRoles& roles);

}  // namespace mbb::profiler
