// Names, labels and hashes of records.
#include "baselines/store/records.h"

#include <gtest/gtest.h>

namespace mbb::baselines {
namespace {

Cell cell_with(std::vector<KnobValue> knobs) {
  Cell cell;
  cell.model = "llama-quickstart";
  cell.knobs = std::move(knobs);
  return cell;
}

TEST(Records, NamesRoundTrip) {
  for (auto value : {ResultClass::kMeasured, ResultClass::kGhost, ResultClass::kProjected, ResultClass::kFunctionalCpu})
    EXPECT_EQ(parse_result_class(name(value)).value(), value);
  for (auto value : {CellStatus::kOk, CellStatus::kSkipped, CellStatus::kBroken, CellStatus::kUnstable})
    EXPECT_EQ(parse_cell_status(name(value)).value(), value);
  for (auto value : {Verdict::kSlower, Verdict::kSame, Verdict::kFaster, Verdict::kNew, Verdict::kInconclusive,
                     Verdict::kUnstable, Verdict::kIncomparable, Verdict::kBroken})
    EXPECT_EQ(parse_verdict(name(value)).value(), value);
  const auto wrong = parse_cell_status("okay");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().what, "\"okay\" is no cell status");
  EXPECT_EQ(wrong.error().hint, "one of: ok, skipped, broken, unstable");
}

TEST(Records, IdentityFollowsIdentityKnobsOnly) {
  const KnobValue tp{"tp", "2", "suite", "", 0, true};
  const KnobValue pp{"pp", "4", "suite", "", 0, true};
  const KnobValue log{"log_interval", "1", "default", "", 0, false};
  const std::string base = identity_hash(cell_with({tp, pp, log}));
  EXPECT_EQ(base.size(), 16U);
  EXPECT_EQ(base, identity_hash(cell_with({log, pp, tp}))) << "order does not matter";
  KnobValue other_log = log;
  other_log.value = "9";
  KnobValue from_user = tp;
  from_user.source = "user";
  EXPECT_EQ(base, identity_hash(cell_with({from_user, pp, other_log}))) << "nor source, nor other knobs";
  KnobValue tp4 = tp;
  tp4.value = "4";
  EXPECT_NE(base, identity_hash(cell_with({tp4, pp, log})));
  Cell projected = cell_with({tp, pp, log});
  projected.result_class = ResultClass::kProjected;
  EXPECT_NE(base, identity_hash(projected)) << "classes never share a series";
  projected = cell_with({tp, pp, log});
  projected.numerics_only = true;
  EXPECT_NE(base, identity_hash(projected));
}

TEST(Records, IdentityFollowsTheDataWhereItsHashIsKnown) {
  Cell cell = cell_with({{"tp", "2", "suite", "", 0, true}});
  const std::string unknown = identity_hash(cell);
  cell.data_hash = "0123";
  const std::string one = identity_hash(cell);
  cell.data_hash = "4567";
  EXPECT_NE(one, identity_hash(cell));
  EXPECT_NE(one, unknown);
}

TEST(Records, IdentityKeepsNeighbouringTextsApart) {
  EXPECT_NE(identity_hash(cell_with({{"a", "bc", "", "", 0, true}})),
            identity_hash(cell_with({{"ab", "c", "", "", 0, true}})));
}

TEST(Records, ClassLabelNamesDeviceAndCount) {
  Cell cell;
  EXPECT_EQ(class_label(cell), "functional/cpu");
  cell.result_class = ResultClass::kMeasured;
  cell.device = "NVIDIA H100 80GB HBM3";
  cell.devices = 8;
  EXPECT_EQ(class_label(cell), "measured/NVIDIA H100 80GB HBM3×8");
  cell.numerics_only = true;
  EXPECT_EQ(class_label(cell), "measured/NVIDIA H100 80GB HBM3×8+numerics-only");
  for (const ResultClass one :
       {ResultClass::kMeasured, ResultClass::kGhost, ResultClass::kProjected, ResultClass::kFunctionalCpu})
    for (const bool numerics_only : {false, true}) {
      cell.result_class = one;
      cell.numerics_only = numerics_only;
      Cell back;
      EXPECT_TRUE(take_class_label(class_label(cell), back)) << class_label(cell);
      EXPECT_EQ(class_label(back), class_label(cell));
    }
  Cell uncounted;
  uncounted.result_class = ResultClass::kMeasured;
  uncounted.device = "unknown device";
  EXPECT_EQ(class_label(uncounted), "measured/unknown device") << "no number is guessed";
  Cell again;
  EXPECT_TRUE(take_class_label("measured/unknown device", again));
  EXPECT_EQ(class_label(again), "measured/unknown device");
  for (const char* other :
       {"", "measured", "measured/", "measured/×8", "measured/H100×", "measured/H100×x", "replayed", "ghost/x"}) {
    Cell untouched;
    EXPECT_FALSE(take_class_label(other, untouched)) << other;
    EXPECT_EQ(class_label(untouched), "functional/cpu");
  }
}

TEST(Records, RunIdIsUtcTimeAndNonce) {
  EXPECT_EQ(new_run_id(1'795'824'060'000'000'000, 0xabcd), "r-20261128-0001-abcd");
}

TEST(Records, LossChecksumSeesOneBit) {
  std::vector<Step> steps(3);
  steps[0].loss = 1.0;
  steps[1].loss = 2.0;
  steps[2].loss = 0.0;
  const std::string before = loss_checksum(steps);
  steps[2].loss = -0.0;
  EXPECT_NE(before, loss_checksum(steps));
}

TEST(Records, CellNamesAreFolderNames) {
  EXPECT_TRUE(check_cell_name("tp4-pp8_vpp=5.x+").has_value());
  for (const char* bad : {"", ".hidden", "..", "a/b", "a b", "a\n", "é"}) EXPECT_FALSE(check_cell_name(bad)) << bad;
  EXPECT_FALSE(check_cell_name(std::string(121, 'a')));
}

}  // namespace
}  // namespace mbb::baselines
