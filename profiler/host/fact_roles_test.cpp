// Facts of the product and of the environment are told apart, and each change is seen in its own hash.
#include "profiler/host/fact_roles.h"

#include <gtest/gtest.h>

namespace mbb::profiler {
namespace {

const FactRoles kRoles{{"build.commit", "image"}, {"gpu.*", "kernel.release"}};

Fingerprint facts(const char* commit, const char* driver, const char* kernel) {
  return make_fingerprint({{"build.commit", commit},
                           {"gpu.driver", driver, true},
                           {"kernel.release", kernel},
                           {"image", "nemo:25.09", true},
                           {"numa.nodes", "0"}});
}

TEST(FactRoles, EachPartHasItsHash) {
  const auto one = apply_roles(facts("a", "570", "6.1"), kRoles);
  const auto product = apply_roles(facts("b", "570", "6.1"), kRoles);
  const auto kernel = apply_roles(facts("a", "570", "6.2"), kRoles);
  const auto driver = apply_roles(facts("a", "580", "6.1"), kRoles);
  ASSERT_TRUE(one && product && kernel && driver);
  EXPECT_EQ(product->epoch, one->epoch);
  EXPECT_NE(product->product, one->product);
  EXPECT_EQ(product->fingerprint.class_hash, one->fingerprint.class_hash);
  EXPECT_NE(kernel->epoch, one->epoch) << "an environment fact outside the class begins an epoch";
  EXPECT_EQ(kernel->fingerprint.class_hash, one->fingerprint.class_hash);
  EXPECT_NE(driver->epoch, one->epoch);
  EXPECT_NE(driver->fingerprint.class_hash, one->fingerprint.class_hash);
  EXPECT_EQ(product_hash(one->fingerprint, kRoles), one->product);
}

TEST(FactRoles, AProductFactIsNotInTheClass) {
  Fingerprint other = facts("a", "570", "6.1");
  for (HostFact& fact : other.facts)
    if (fact.key == "image") fact.value = "nemo:25.11";
  const auto one = apply_roles(facts("a", "570", "6.1"), kRoles), two = apply_roles(other, kRoles);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(two->fingerprint.class_hash, one->fingerprint.class_hash);
  EXPECT_NE(two->product, one->product);
}

TEST(FactRoles, WhatChangedIsNamed) {
  EXPECT_EQ(changed_environment(facts("a", "570", "6.1"), facts("b", "580", "6.1"), kRoles),
            std::vector<std::string>{"gpu.driver: 570 -> 580"});
  EXPECT_TRUE(changed_environment(facts("a", "570", "6.1"), facts("b", "570", "6.1"), kRoles).empty());
  EXPECT_EQ(changed_product(facts("a", "570", "6.1"), facts("b", "580", "6.1"), kRoles),
            std::vector<std::string>{"build.commit: a -> b"});
}

TEST(FactRoles, AFactThatBothClaimIsRefused) {
  const auto both = apply_roles(facts("a", "570", "6.1"), {{"gpu.*"}, {"gpu.driver"}});
  ASSERT_FALSE(both.has_value());
  EXPECT_EQ(both.error().what, "gate.product and gate.environment both claim the fact gpu.driver");
}

TEST(FactRoles, ADeclaredFactOfTheProgramsOwnNameIsRefused) {
  Fingerprint twice = facts("a", "570", "6.1");
  twice.facts.push_back({"gpu.driver", "mine"});
  const auto roled = apply_roles(twice, kRoles);
  ASSERT_FALSE(roled.has_value());
  EXPECT_EQ(roled.error().what, "gate.facts declares gpu.driver, which the program sees for itself");
}

TEST(FactRoles, TheProductIsCalledByWhatWasDeclaredOfIt) {
  const Fingerprint run = facts("a", "570", "6.1");
  const FactRoles roles{{"build.commit", "image"}, {"gpu.driver"}};
  EXPECT_EQ(product_text(run, {}, roles), "image nemo:25.09") << "whatever the settings say today";
  EXPECT_EQ(product_text(run, {{"image", "as the settings say today"}}, roles), "image nemo:25.09");
  EXPECT_EQ(product_text(make_fingerprint({{"build.commit", "a"}, {"os.image", "b"}}), {}, roles), "a");
  EXPECT_EQ(product_text(run, {{"gpu.driver", "570"}}, {{"build.commit"}, {"gpu.driver", "image"}}), "a")
      << "the environment's";
}

TEST(FactRoles, WhatARunDeclaredCountsAndWhatAnotherLacksIsNamed) {
  for (const HostFact& fact : take_fingerprint().facts) EXPECT_FALSE(is_declared(fact.key)) << fact.key;
  const FactRoles with{{"build.commit", "image"}, {"gpu.*"}}, without{{"build.commit"}, {"gpu.*"}};
  const Fingerprint run = facts("a", "570", "6.1");
  EXPECT_EQ(product_hash(run, with), product_hash(run, without)) << "somebody who accepts it need not say it again";
  EXPECT_NE(product_hash(run, without), product_hash(run, {{"build.commit"}, {"gpu.*", "image"}}));
  const Fingerprint bare = make_fingerprint({{"build.commit", "a"}});
  EXPECT_EQ(declared_only_here(run, bare), std::vector<std::string>{"image"});
  EXPECT_TRUE(declared_only_here(bare, run).empty());
}

}  // namespace
}  // namespace mbb::profiler
