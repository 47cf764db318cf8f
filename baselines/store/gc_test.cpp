// What gc removes, what it never does, and that it says why.
#include "baselines/store/gc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "baselines/store/bundle.h"
#include "baselines/store/fixture.h"

namespace mbb::baselines {
namespace {

constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1'000'000'000;
constexpr std::int64_t kNow = 1000 * kDay;

StoredBundle bundle(const std::string& id, std::int64_t age_days, const std::string& command = "gate") {
  StoredBundle b;
  b.folder = "/nowhere/" + id;
  b.run.id = id;
  b.run.suite = "small";
  b.run.command = command;
  b.run.created_unix_ns = kNow - age_days * kDay;
  return b;
}

std::map<std::string, std::string> removed(std::vector<StoredBundle> bundles, const std::vector<Pin>& pins,
                                           const GcPolicy& policy) {
  std::map<std::string, std::string> gone;
  for (const GcDecision& d : plan_gc(std::move(bundles), pins, policy, kNow)) {
    EXPECT_FALSE(d.reason.empty()) << d.bundle.run.id;
    if (d.removes) gone[d.bundle.run.id] = d.reason;
  }
  return gone;
}

TEST(Gc, OldRunsBeyondTheNewestGo) {
  const std::vector<StoredBundle> all{bundle("r-1", 50), bundle("r-2", 40), bundle("r-3", 31), bundle("r-4", 1)};
  EXPECT_EQ(removed(all, {}, {30, 2}),
            (std::map<std::string, std::string>{{"r-1", "50 days old, 3 newer runs of its suite"},
                                                {"r-2", "40 days old, 2 newer runs of its suite"}}));
  EXPECT_TRUE(removed(all, {}, {30, 4}).empty());
  EXPECT_TRUE(removed(all, {}, {60, 0}).empty());
  EXPECT_EQ(removed(all, {}, {0, 0}).size(), 4U);
}

TEST(Gc, EvidenceBridgesTagsAndUnreadableBundlesStayWhateverThePolicy) {
  StoredBundle tagged = bundle("r-tag", 900), arm = bundle("r-ab", 900, "ab"), damaged = bundle("r-bad", 900);
  tagged.run.tag = "release";
  arm.run.tag = "ab-a";
  damaged.unreadable = "run.json: not whole";
  Pin ended;
  ended.id = "b-1";
  ended.runs = {"r-0", "r-old"};
  ended.ended_by = "ada: replaced";
  const auto gone = removed(
      {bundle("r-old", 900), bundle("r-bridge", 900, "gate-bridge"), tagged, arm, damaged, bundle("r-plain", 900)},
      {ended}, {0, 0});
  ASSERT_EQ(gone.size(), 2U);
  EXPECT_EQ(gone.count("r-ab") + gone.count("r-plain"), 2U);
}

TEST(Gc, BundlesOnDiskAreListedAndRemoved) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("mbbench_gc_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  SyntheticOptions old, young;
  old.created_unix_ns = kNow - 40 * kDay;
  old.seed = 2;
  young.created_unix_ns = kNow - kDay;
  ASSERT_TRUE(write_synthetic_bundle(folder / "runs", old).has_value());
  ASSERT_TRUE(write_synthetic_bundle(folder / "runs", young).has_value());
  std::filesystem::create_directories(folder / "runs" / "no bundle");
  auto bundles = list_bundles(folder);
  ASSERT_TRUE(bundles.has_value()) << format(bundles.error());
  ASSERT_EQ(bundles->size(), 2U) << "a folder that is no bundle is none of ours";
  EXPECT_GT(bundles->front().bytes, 1000);
  for (StoredBundle& b : *bundles) b.run.tag.clear();
  {
    const auto writer = BundleWriter::reopen(bundles->back().folder);
    ASSERT_TRUE(writer.has_value()) << format(writer.error());
    auto busy = list_bundles(folder);
    for (StoredBundle& b : *busy) b.run.tag.clear();
    const auto kept = plan_gc(*busy, {}, {0, 0}, kNow);
    EXPECT_EQ(kept.back().reason, "its run goes on");
    EXPECT_FALSE(kept.back().removes);
    const auto before = plan_gc(*bundles, {}, {30, 0}, kNow);
    EXPECT_FALSE(carry_out(before).has_value()) << "planned before the run went on";
  }
  const auto plan = plan_gc(*bundles, {}, {30, 0}, kNow);
  ASSERT_TRUE(carry_out(plan).has_value());
  const auto left = list_bundles(folder);
  ASSERT_EQ(left->size(), 1U);
  EXPECT_EQ(left->front().run.created_unix_ns, young.created_unix_ns);
  EXPECT_FALSE(carry_out(plan).has_value()) << "what is gone is not removed twice in silence";
  EXPECT_TRUE(std::filesystem::exists(folder / "runs" / "no bundle"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mbb::baselines
