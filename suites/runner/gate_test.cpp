// The gate over made-up nights: epochs and bridges, equal builds, expiry, silence, and runs that are no evidence.
#include "suites/runner/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "analysis/gate/harness.h"
#include "baselines/store/store.h"
#include "suites/runner/gate_fixture_test.h"

namespace mbb::suites {
namespace {

using baselines::Cell;

TEST_F(GateOverNights, ANewEnvironmentIsAmberUntilTheOldProductRanInIt) {
  const Stored accepted = run_of({"r-1"});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  const Stored tonight = run_of({"r-2", 2, "new", "6.2", 112});

  auto report = judge(tonight);
  EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, Verdict::kIncomparable);
  EXPECT_EQ(analysis::gate_exit_status(report), 3);
  EXPECT_EQ(row(report, "cpu_step_time").verdict.text,
            "a new epoch since baseline b-1 (kernel.release: 6.1 -> 6.2); 0 of 5 bridge launches: run the old product "
            "(old) here with `mbbench gate SUITE --bridge PROGRAM`");

  keep(run_of({"r-3", 2, "another", "6.2", 112, kBridgeCommand}));
  EXPECT_EQ(analysis::gate_exit_status(judge(tonight)), 3) << "launches of another product bridge nothing";
  keep(run_of({"r-4", 1, "old", "6.1", 112, kBridgeCommand}));
  EXPECT_EQ(analysis::gate_exit_status(judge(tonight)), 3) << "nor do launches in the old environment";

  keep(run_of({"r-5", 2, "old", "6.2", 112, kBridgeCommand}));
  report = judge(tonight);
  EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, Verdict::kSame) << row(report, "cpu_step_time").verdict.text;
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find("The environment alone made +12.00 %"), std::string::npos) << report.warnings[0];
  EXPECT_NE(report.warnings[0].find("run r-5"), std::string::npos) << report.warnings[0];

  // The product's own change is seen beside the environment's.
  report = judge(run_of({"r-6", 2, "new", "6.2", 112 * 0.95}));
  EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, Verdict::kFaster);
}

TEST_F(GateOverNights, OnlyABaselineOfAnotherEnvironmentWaitsForABridge) {
  const Stored there = run_of({"r-1"}), here = run_of({"r-2", 2, "old", "6.2"});
  const auto waits = [&](const std::vector<Pin>& pins) {
    const Pin* pin =
        pin_to_bridge(pins, "identity", "cpu_step_time", here.fingerprint.class_hash, here.epoch, request_.now_unix_ns);
    return pin == nullptr ? std::string("none") : pin->id;
  };
  Pin theirs = pin_of(there), ours = pin_of(here), expired = theirs;
  ours.id = "b-2";
  expired.expires_unix_ns = request_.now_unix_ns - kDay;
  EXPECT_EQ(waits({}), "none");
  EXPECT_EQ(waits({theirs}), "b-1");
  EXPECT_EQ(waits({ours}), "none");
  EXPECT_EQ(waits({expired}), "none");
  EXPECT_EQ(waits({ours, theirs}), "none") << "the gate judges by the one that stands here";
  ours.ended_by = "ada: no longer";
  EXPECT_EQ(waits({theirs, ours}), "b-1");
}

TEST_F(GateOverNights, PatternsThatMatchNoFactAreSaidAndTheUsualOnesAreNot) {
  const Stored accepted = run_of({"r-1"});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  RunOptions options;
  options.roles = {{"build.commit", "build.checks", "image", "comit*"}, {"kernel.release", "gpu.*", "rack"}};
  options.facts = {{"image", "nemo:25.09"}};
  const auto report = gate_run(run_of({"r-2", 2, "new"}), {}, request_, options);
  ASSERT_TRUE(report.has_value()) << format(report.error());
  const std::string facts = " matches no fact of run r-2; its facts are build.commit, cpu.model, kernel.release";
  EXPECT_EQ(report->warnings, (std::vector<std::string>{"gate.facts: 'image'" + facts, "gate.product: 'comit*'" + facts,
                                                        "gate.environment: 'rack'" + facts}));
}

TEST_F(GateOverNights, FactsThatTheBaselineLacksAreSaidAndThoseThatOnlyAcceptingLackedCount) {
  const auto with = [](Night night, std::vector<profiler::HostFact> facts) {
    Stored run = run_of(night);
    facts.insert(facts.end(), run.fingerprint.facts.begin(), run.fingerprint.facts.end());
    const auto roled = profiler::apply_roles(profiler::make_fingerprint(std::move(facts)), kRoles);
    run.fingerprint = roled->fingerprint;
    return run;
  };
  const Stored accepted = with({"r-1"}, {{"image", "a"}}),
               tonight = with({"r-2", 1, "old", "6.1", 97}, {{"image", "a"}});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  request_.pins[0].product = "as other settings told it";
  ASSERT_TRUE(tell_products(request_.store_file, {}, kRoles, request_.pins));
  EXPECT_EQ(request_.pins[0].product, profiler::product_hash(accepted.fingerprint, kRoles));
  EXPECT_EQ(row(judge(tonight), "cpu_step_time").verdict.verdict, Verdict::kIncomparable);
  EXPECT_TRUE(judge(tonight).warnings.empty());

  const std::string why = ": whether the product or the environment is the same cannot be told";
  EXPECT_EQ(judge(with({"r-2", 1, "old"}, {{"image", "a"}, {"rack", "7"}})).warnings,
            std::vector<std::string>{
                "gate.facts: rack: declared tonight, not for baseline b-1 (run r-1); accept a run that has it" + why});
  EXPECT_EQ(judge(run_of({"r-2", 1, "old"})).warnings,
            std::vector<std::string>{
                "gate.facts: image: declared for baseline b-1 (run r-1), not tonight; declare it again" + why});
}

TEST_F(GateOverNights, WhereNoFactIsTheProductsNoVerdictIsTheMachines) {
  const Stored accepted = run_of({"r-1"});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  RunOptions options;
  options.roles = {{"comit"}, {"kernel.release"}};
  request_.pins[0].product = profiler::product_hash(accepted.fingerprint, options.roles);
  const auto report = gate_run(run_of({"r-2", 2, "new", "6.1", 112}), {}, request_, options);
  ASSERT_TRUE(report.has_value()) << format(report.error());
  EXPECT_EQ(row(*report, "cpu_step_time").verdict.verdict, Verdict::kInconclusive)
      << row(*report, "cpu_step_time").verdict.text;
}

TEST_F(GateOverNights, EqualBuildAndConfigurationIsNoProductVerdict) {
  const Stored accepted = run_of({"r-1"});
  request_.pins = {pin_of(accepted)};
  auto report = judge(run_of({"r-2", 2, "old", "6.1", 90}));
  EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, Verdict::kIncomparable);
  EXPECT_NE(row(report, "cpu_step_time").verdict.text.find("same build and configuration"), std::string::npos);
  EXPECT_EQ(judge(run_of({"r-3", 2, "old", "6.1", 100})).rows[0].verdict.verdict, Verdict::kSame);

  Stored other = run_of({"r-4", 2, "old", "6.1", 90});
  other.cells[0].program_hash = "another";
  EXPECT_EQ(row(judge(other), "cpu_step_time").verdict.verdict, Verdict::kFaster) << "another program is another work";
  EXPECT_EQ(row(judge(run_of({"r-5", 2, "new", "6.1", 90})), "cpu_step_time").verdict.verdict, Verdict::kFaster);
}

TEST_F(GateOverNights, SlowerStandsOnlyWhenFreshLaunchesConfirmIt) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  const auto report = judge(run_of({"r-2", 2, "new", "6.1", 110}));
  EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, Verdict::kInconclusive);
  EXPECT_NE(row(report, "cpu_step_time").verdict.text.find("not confirmed"), std::string::npos);
  EXPECT_EQ(analysis::gate_exit_status(report), 2);
}

TEST_F(GateOverNights, BaselinesWarnAFortnightBeforeTheyExpire) {
  Pin pin = pin_of(run_of({"r-1"}));
  const Stored tonight = run_of({"r-2", 9, "new"});
  pin.expires_unix_ns = request_.now_unix_ns + 15 * kDay;
  request_.pins = {pin};
  EXPECT_TRUE(judge(tonight).warnings.empty());
  request_.pins[0].expires_unix_ns = request_.now_unix_ns + 13 * kDay;
  ASSERT_EQ(judge(tonight).warnings.size(), 1U);
  EXPECT_EQ(judge(tonight).warnings[0], "baseline b-1 of one cpu_step_time ends in 13 days: accept a new one");
  request_.pins[0].expires_unix_ns = request_.now_unix_ns - kDay;
  const auto expired = judge(tonight);
  EXPECT_EQ(row(expired, "cpu_step_time").verdict.verdict, Verdict::kInconclusive) << "never green";
  EXPECT_NE(row(expired, "cpu_step_time").verdict.text.find("baseline b-1 expired on "), std::string::npos);
}

TEST_F(GateOverNights, ACellThatStaysSilentFails) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(run_of({"r-1", 0}));
  int64_t day = 1;
  for (const auto& [id, verdict, status] : {std::tuple{"r-2", Verdict::kInconclusive, 2},
                                            {"r-3", Verdict::kInconclusive, 2},
                                            {"r-4", Verdict::kBroken, 4}}) {
    Stored night = run_of({id, day++, "new"});
    Cell beside = night.cells[0];
    beside.name = "beside", beside.identity_hash = "beside";
    night.cells[0].status = baselines::CellStatus::kSkipped;
    night.cells.push_back(beside);
    const auto report = judge(night);
    EXPECT_EQ(row(report, analysis::kRunRow).verdict.verdict, verdict) << row(report, analysis::kRunRow).verdict.text;
    EXPECT_EQ(analysis::gate_exit_status(report), status) << id;
    keep(night);
  }
}

TEST_F(GateOverNights, AnotherSuitesCellOfThatNameIsNotMissed) {
  Pin ours = pin_of(run_of({"r-1"})), other = ours;
  ours.suite = "small";
  other.id = "b-0", other.suite = "large", other.identity_hash = "other";
  request_.pins = {other, ours};
  Stored night = run_of({"r-2", 1});
  const auto report = judge(night);
  EXPECT_TRUE(std::none_of(report.rows.begin(), report.rows.end(), [](const auto& r) { return r.against == "b-0"; }));
  other.identity_hash = ours.identity_hash;  // both suites have the very cell
  request_.pins = {other, ours};
  night.cells[0].identity_hash = "changed";
  EXPECT_EQ(row(judge(night), analysis::kRunRow).against, "b-1") << "nor does it hide ours";
  request_.pins[1].suite.clear();  // of a line that does not say
  EXPECT_EQ(row(judge(night), analysis::kRunRow).against, "b-1");
}

TEST_F(GateOverNights, CellsThatOnlyAndSkipLeaveOutAreNotSilentAndADayIsOneNight) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(run_of({"r-1", 0}));
  const auto partial = [&](const char* id, int64_t day, std::vector<profiler::CapturedValue> argv) {
    Stored night = run_of({id, day, "new"});
    night.cells[0].name = "beside", night.cells[0].identity_hash = "beside";
    night.planned_cells = {"beside"};
    night.argv = std::move(argv);
    return night;
  };
  const auto rows_of_one = [&](const Stored& night) {
    const auto report = judge(night);
    return std::count_if(report.rows.begin(), report.rows.end(), [](const auto& r) { return r.cell == "one"; });
  };
  int64_t day = 1;
  for (const auto& argv : {std::vector<profiler::CapturedValue>{{"", "gate"}, {"--only", ""}, {"", "beside"}},
                           {{"--only", "bes*"}},
                           {{"--skip", ""}, {"", "one"}},
                           {{"--skip", "one"}}}) {
    const Stored night = partial("r-2", day++, argv);
    EXPECT_EQ(rows_of_one(night), 0);
    keep(night);
  }
  // Left out on all nights but this one, which has the whole suite and lacks the cell.
  EXPECT_EQ(row(judge(partial("r-3", day, {{"", "gate"}})), analysis::kRunRow).verdict.text,
            "no number for 1 night; 3 fail the gate (gate.max_silent_nights)");
  for (const char* id : {"r-4", "r-5", "r-6"}) {
    Stored again = partial(id, day, {});
    again.created_unix_ns += id[2];
    EXPECT_EQ(row(judge(again), analysis::kRunRow).verdict.verdict, Verdict::kInconclusive) << "one day is one night";
    keep(again);
  }
}

TEST_F(GateOverNights, AnExpiredBaselineFailsAfterAsManyNightsAsASilentCell) {
  const Stored accepted = run_of({"r-1"});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  request_.pins[0].expires_unix_ns = kStart + 3 * kDay / 2;
  int64_t day = 1;
  for (const auto& [id, verdict, nights] : {std::tuple{"r-2", Verdict::kInconclusive, "1 night;"},
                                            {"r-3", Verdict::kInconclusive, "1 night;"},
                                            {"r-4", Verdict::kInconclusive, "2 nights;"},
                                            {"r-5", Verdict::kBroken, "3 nights;"}}) {
    const Stored night = run_of({id, day++, "new", "6.1", 120});
    const auto report = judge(night);
    EXPECT_EQ(row(report, "cpu_step_time").verdict.verdict, verdict) << id;
    EXPECT_NE(row(report, "cpu_step_time").verdict.text.find(nights), std::string::npos)
        << row(report, "cpu_step_time").verdict.text;
    keep(night);
  }
}

TEST_F(GateOverNights, NightsThatLostAStepAreNoEvidence) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  Stored lost = run_of({"r-2", 1, "new", "6.1", 130});
  lost.cells[0].launches[2].steps.erase(lost.cells[0].launches[2].steps.begin() + 7);
  keep(lost);
  const auto verdict = row(judge(run_of({"r-3", 2, "new"})), "cpu_step_time").verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kSame) << verdict.text;
  EXPECT_EQ(verdict.launches, 5U) << verdict.text;
  // Nor do they stand for the old product in a new environment.
  Stored bridge = run_of({"r-4", 2, "old", "6.2", 112, kBridgeCommand});
  bridge.cells[0].launches[4].steps.pop_back();
  keep(bridge);
  EXPECT_EQ(row(judge(run_of({"r-5", 3, "new", "6.2", 112})), "cpu_step_time").verdict.verdict, Verdict::kIncomparable);
}

TEST_F(GateOverNights, AConfirmationThatExcludedAChangeEndsTheNightsBeforeIt) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(run_of({"r-2", 1, "new", "6.1", 104}));
  keep(run_of({"r-3", 2, "new", "6.1", 104}));
  keep(run_of({"r-4", 3, "mended"}));
  const Stored tonight = run_of({"r-6", 4, "mended"});
  EXPECT_EQ(row(judge(tonight), "cpu_step_time").verdict.verdict, Verdict::kInconclusive) << "suspected, unconfirmed";
  Stored confirmation = run_of({"r-5", 3, "mended", "6.1", 100, kConfirmCommand});
  confirmation.created_unix_ns += 1000;
  keep(confirmation);
  const auto verdict = row(judge(tonight), "cpu_step_time").verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kSame) << verdict.text;
  EXPECT_EQ(verdict.nights, 1U) << verdict.text;
  // One that found the change, or that lost a step, ends nothing.
  confirmation = run_of({"r-5", 3, "new", "6.1", 104, kConfirmCommand});
  confirmation.created_unix_ns += 1000;
  keep(confirmation);
  EXPECT_NE(row(judge(tonight), "cpu_step_time").verdict.verdict, Verdict::kSame);
}

TEST_F(GateOverNights, AConfirmedRegressionIsRedSinceItsFirstNightUntilItIsGoneOrAccepted) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  const Stored tonight = run_of({"r-6", 4, "newer", "6.1", 101});
  keep(judged({"r-2", 1, "new", "6.1", 101}, Verdict::kSlower));
  keep(judged({"r-3", 2, "new", "6.1", 101}, Verdict::kInconclusive));
  Stored lost = run_of({"r-4", 3, "new", "6.1", 101});
  lost.cells[0].launches[2].steps.pop_back();
  keep(lost);
  const auto red = row(judge(tonight), "cpu_step_time");
  EXPECT_EQ(red.verdict.verdict, Verdict::kSlower) << red.verdict.text;
  EXPECT_EQ(red.verdict.nights, 3U) << red.verdict.text;
  EXPECT_EQ(red.red_since, "r-2");
  EXPECT_TRUE(red.verdict.text.ends_with("; red since 2026-09-22 (run r-2, product new)")) << red.verdict.text;
  EXPECT_NE(analysis::gate_json(judge(tonight)).find("\"red_since\": \"r-2\""), std::string::npos);

  const auto mended = row(judge(run_of({"r-6", 4, "mended"})), "cpu_step_time").verdict;
  EXPECT_EQ(mended.verdict, Verdict::kSame) << mended.text;
  EXPECT_NE(mended.text.find("; it had been red since 2026-09-22"), std::string::npos) << mended.text;

  const auto unconfirmed = [&](const char* why) {
    const auto verdict = row(judge(tonight), "cpu_step_time").verdict;
    EXPECT_EQ(verdict.verdict, Verdict::kInconclusive) << why << ": " << verdict.text;
  };
  request_.pins[0].id = "b-2";
  unconfirmed("the new baseline has no red night");
  request_.pins[0].id = "b-1";
  keep(judged({"r-5", 3, "mended"}, Verdict::kSame));
  unconfirmed("it was gone, and begins anew");
}

TEST_F(GateOverNights, ARedIsNamedInANewEnvironmentAndWhenItsBaselineExpiredOrItDoesNotSettle) {
  keep(run_of({"r-1"}));
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "new", "6.1", 101}, Verdict::kSlower));
  const std::string since = "; not known to have ended: red since 2026-09-22 (run r-2, product new)";
  const auto told = [&](const Stored& tonight, Verdict verdict) {
    const auto report = judge(tonight);
    const auto& one = report.rows.front();
    EXPECT_EQ(one.verdict.verdict, verdict) << one.verdict.text;
    EXPECT_NE(one.verdict.text.find(since), std::string::npos) << one.verdict.text;
    EXPECT_EQ(one.red_since, "r-2");
    EXPECT_EQ(analysis::gate_exit_status(report, {Verdict::kSlower, Verdict::kBroken}), 1);
  };
  told(run_of({"r-3", 2, "new", "6.2", 101}), Verdict::kIncomparable);
  Stored unstable = run_of({"r-3", 2, "new"});
  unstable.cells[0].status = baselines::CellStatus::kUnstable;
  told(unstable, Verdict::kUnstable);
  request_.pins[0].expires_unix_ns = request_.now_unix_ns - kDay;
  told(run_of({"r-3", 2, "new"}), Verdict::kInconclusive);
}

TEST_F(GateOverNights, TheBaselinesProductAfterAnotherThatWasRedIsJudgedByItsOwnNights) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  for (const char* commit : {"new", "old"}) {
    keep(judged({"r-2", 1, commit, "6.1", 103}, Verdict::kSlower));
    const auto verdict = row(judge(run_of({"r-4", 3, "old", "6.1", 103})), "cpu_step_time").verdict;
    EXPECT_EQ(verdict.verdict, Verdict::kIncomparable) << commit << ": " << verdict.text;
    EXPECT_EQ(verdict.nights, *commit == 'n' ? 1U : 2U) << verdict.text;
    EXPECT_NE(verdict.text.find("baseline: the machine changed, not the product"), std::string::npos) << verdict.text;
  }
  // A rollback is green on its first night, however little the newest nights stand out of those before.
  for (const double red : {103.0, 100.5}) {
    keep(judged({"r-2", 1, "new", "6.1", red}, Verdict::kSlower));
    const auto verdict = row(judge(run_of({"r-4", 3, "old", "6.1", 100.2})), "cpu_step_time").verdict;
    EXPECT_EQ(verdict.verdict, Verdict::kSame) << red << ": " << verdict.text;
    EXPECT_NE(verdict.text.find("it had been red since"), std::string::npos) << verdict.text;
  }
  // The machine's own episode is over when tonight alone shows it.
  for (const char* id : {"r-2", "r-3"}) keep(judged({id, id[2] - '1', "old", "6.1", 100.5}, Verdict::kSlower));
  const auto over = row(judge(run_of({"r-4", 3, "old", "6.1", 100.2})), "cpu_step_time").verdict;
  EXPECT_EQ(over.verdict, Verdict::kSame) << over.text;
  EXPECT_EQ(over.nights, 1U) << over.text;
  keep(judged({"r-2", 1, "new", "6.1", 101}, Verdict::kSlower));
  keep(judged({"r-3", 2, "new", "6.1", 101}, Verdict::kSlower));
  const auto worse = row(judge(run_of({"r-4", 3, "newer", "6.1", 101})), "cpu_step_time").verdict;
  EXPECT_EQ(worse.verdict, Verdict::kSlower) << "another product: " << worse.text;
}

TEST_F(GateOverNights, AMachinesChangeThatTheBaselinesProductShowedIsNotBlamedOnTheNextOne) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  Stored confirmation = run_of({"r-3", 1, "old", "6.1", 102, kConfirmCommand});
  confirmation.created_unix_ns += 1000;
  keep(judged({"r-2", 1, "old", "6.1", 102}, Verdict::kIncomparable));
  keep(confirmation);
  const auto first = row(judge(run_of({"r-4", 2, "new", "6.1", 102})), "cpu_step_time").verdict;
  EXPECT_EQ(first.verdict, Verdict::kInconclusive) << first.text;
  EXPECT_EQ(first.nights, 1U) << first.text;

  const auto told = [&](double ms) {
    keep(judged({"r-4", 2, "new", "6.1", ms}, Verdict::kSlower));
    return row(judge(run_of({"r-5", 3, "new", "6.1", ms})), "cpu_step_time").verdict;
  };
  const auto as_slow = told(102);
  EXPECT_EQ(as_slow.verdict, Verdict::kIncomparable) << as_slow.text;
  EXPECT_NE(as_slow.text.find("; the machine changed, not the product, as it had for the baseline's own product on "
                              "2026-09-22 (run r-2), against which this is +0.00 %"),
            std::string::npos)
      << as_slow.text;
  const auto slower = told(105);
  EXPECT_EQ(slower.verdict, Verdict::kSlower) << slower.text;
  EXPECT_NE(slower.text.find("; the machine changed too"), std::string::npos) << slower.text;
}

TEST_F(GateOverNights, NightsThatTheMachineExcusedAreNotThoseOfAThirdProduct) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "old", "6.1", 102}, Verdict::kIncomparable));
  keep(judged({"r-3", 2, "another", "6.1", 102}, Verdict::kIncomparable));
  keep(judged({"r-4", 3, "new", "6.1", 103.5}, Verdict::kSlower));
  const auto verdict = row(judge(run_of({"r-5", 4, "new", "6.1", 103.5})), "cpu_step_time").verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kSlower) << verdict.text;
  EXPECT_EQ(verdict.nights, 2U) << verdict.text;
  EXPECT_NEAR(verdict.change, 0.035, 0.0002) << verdict.text;
}

// The machine became faster, and the product slower by as much.
TEST_F(GateOverNights, ASlowerProductIsNotTheSameOnAMachineThatBecameFaster) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "old", "6.1", 97}, Verdict::kIncomparable));
  const auto hidden = row(judge(run_of({"r-3", 2, "new", "6.1", 100})), "cpu_step_time").verdict;
  EXPECT_EQ(hidden.verdict, Verdict::kIncomparable) << hidden.text;
  EXPECT_NE(hidden.text.find("; the machine changed, as it had for the baseline's own product on 2026-09-22 (run r-2)"),
            std::string::npos)
      << hidden.text;
  keep(judged({"r-2", 1, "old", "6.1", 103}, Verdict::kIncomparable));
  const auto back = row(judge(run_of({"r-3", 2, "new", "6.1", 100})), "cpu_step_time").verdict;
  EXPECT_EQ(back.verdict, Verdict::kSame) << "a slow machine's night is over: " << back.text;
}

// Before the bridge a night of the old product was held against the baseline of another environment.
TEST_F(GateOverNights, NightsBeforeABridgeExcuseNoProduct) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "old", "6.2", 112}, Verdict::kIncomparable));
  keep(run_of({"r-3", 2, "old", "6.2", 112, kBridgeCommand}));
  keep(run_of({"r-4", 3, "old", "6.2", 112, kBridgeCommand}));
  keep(judged({"r-5", 4, "new", "6.2", 112.8}, Verdict::kSlower));
  const auto verdict = row(judge(run_of({"r-6", 5, "new", "6.2", 112.8})), "cpu_step_time").verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kSlower) << verdict.text;
  EXPECT_EQ(verdict.text.find("the machine changed"), std::string::npos) << verdict.text;
}

TEST_F(GateOverNights, AChangedConfigurationIsAnotherProduct) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  const auto delayed = [](const Night& night, Verdict verdict) {
    Stored run = judged(night, verdict);
    run.cells[0].knobs.push_back({.key = "debug.delay_us", .value = "9", .source = "suite"});
    return run;
  };
  for (const char* id : {"r-2", "r-3"}) keep(delayed({id, id[2] - '1', "old", "6.1", 110}, Verdict::kSlower));
  const auto verdict = row(judge(run_of({"r-4", 3, "old", "6.1", 100})), "cpu_step_time").verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kSame) << verdict.text;
  EXPECT_NEAR(verdict.night_sigma, 0.001, 1e-6) << "its end is no noise of nights: " << verdict.text;
}

TEST_F(GateOverNights, AMachineThatIsAsItWasExcusesNoProduct) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "old", "6.1", 90}, Verdict::kIncomparable));
  const auto told = [&] { return row(judge(run_of({"r-4", 3, "new", "6.1", 90})), "cpu_step_time").verdict; };
  EXPECT_EQ(told().verdict, Verdict::kIncomparable) << told().text;
  keep(judged({"r-3", 2, "another"}, Verdict::kSame));
  EXPECT_EQ(told().verdict, Verdict::kFaster) << told().text;
}

TEST_F(GateOverNights, ABaselineThatIsNoLongerThereIsMissed) {
  keep(judged({"r-1", 1}, Verdict::kSame));
  auto lost = row(judge(run_of({"r-2", 2})), "cpu_step_time");
  EXPECT_EQ(lost.verdict.verdict, Verdict::kInconclusive) << lost.verdict.text;
  EXPECT_TRUE(lost.verdict.text.starts_with("the baselines file lacks b-1, which run r-1 was held against"));
  EXPECT_EQ(lost.against, "b-1");
  keep(judged({"r-2", 2}, Verdict::kInconclusive));
  keep(judged({"r-3", 3}, Verdict::kInconclusive));
  lost = row(judge(run_of({"r-4", 4})), "cpu_step_time");
  EXPECT_EQ(lost.verdict.verdict, Verdict::kBroken) << "three nights: " << lost.verdict.text;
  EXPECT_NE(lost.verdict.text.find("which run r-1 was held against"), std::string::npos) << lost.verdict.text;
  Pin ended = pin_of(run_of({"r-1"}));
  ended.ended_by = "ada: no longer";
  request_.pins = {ended};
  EXPECT_EQ(row(judge(run_of({"r-4", 4})), "cpu_step_time").verdict.verdict, Verdict::kNew) << "it was ended";
  request_.pins = {};
  keep(judged({"r-5", 5}, Verdict::kNew, ""));
  EXPECT_EQ(row(judge(run_of({"r-6", 6})), "cpu_step_time").verdict.verdict, Verdict::kNew) << "it never had one";
}

TEST_F(GateOverNights, CellsThatAreOneSeriesAreSaid) {
  Stored tonight = run_of({"r-1"});
  EXPECT_TRUE(judge(tonight).warnings.empty());
  tonight.cells.push_back(tonight.cells[0]);
  tonight.cells[1].name = "two";
  const auto report = judge(tonight);
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_TRUE(report.warnings[0].starts_with("one, two are one series")) << report.warnings[0];
  tonight.cells[1].identity_hash = "another";
  EXPECT_TRUE(judge(tonight).warnings.empty());
}

TEST_F(GateOverNights, ARegressionThatIsOlderThanTheNightsThatCountKeepsItsFirstNight) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  std::vector<std::string> ids;
  for (size_t day = 0; day <= kHistoryNights + 1; ++day) ids.push_back("r-day" + std::to_string(day));
  for (size_t day = 1; day < ids.size(); ++day)
    keep(judged({ids[day].c_str(), static_cast<int64_t>(day), "new", "6.1", 101}, Verdict::kSlower));
  const auto red = row(judge(run_of({"r-2", static_cast<int64_t>(ids.size()), "new", "6.1", 101})), "cpu_step_time");
  EXPECT_EQ(red.verdict.verdict, Verdict::kSlower) << red.verdict.text;
  EXPECT_EQ(red.verdict.nights, kHistoryNights + 1) << red.verdict.text;
  EXPECT_EQ(red.red_since, "r-day1");
}

TEST_F(GateOverNights, GatesOfOtherCellsDoNotMakeARedForgotten) {
  request_.pins = {pin_of(run_of({"r-1"}))};
  keep(judged({"r-2", 1, "new", "6.1", 101}, Verdict::kSlower));
  std::vector<std::string> ids;
  for (size_t n = 0; n <= kHistoryNights; ++n) ids.push_back("r-other" + std::to_string(n));
  for (size_t n = 0; n < ids.size(); ++n) {
    Stored other = run_of({ids[n].c_str(), 2, "new"});
    other.created_unix_ns += static_cast<int64_t>(n);
    other.cells[0].name = "two", other.cells[0].identity_hash = "two";
    keep(other);
  }
  const auto red = row(judge(run_of({"r-3", 3, "new", "6.1", 101})), "cpu_step_time");
  EXPECT_EQ(red.verdict.verdict, Verdict::kSlower) << red.verdict.text;
  EXPECT_EQ(red.verdict.nights, 2U) << red.verdict.text;
  EXPECT_EQ(red.red_since, "r-2");
}

TEST_F(GateOverNights, ALossOfZeroOrBelowIsComparedByItsDifference) {
  const auto with_loss = [](const Night& night, double loss, double spread) {
    Stored run = run_of(night);
    for (auto& launch : run.cells[0].launches) launch.steps.back().loss = loss + spread * (launch.index % 3);
    return run;
  };
  const auto judged_loss = [&](double before, double tonight, double spread = 0.0) {
    request_.pins = {pin_of(with_loss({"r-1"}, before, spread), "last_loss")};
    return row(judge(with_loss({"r-2", 2, "new"}, tonight, spread)), "last_loss").verdict;
  };
  for (const double loss : {0.0, -0.4, -250.0}) {
    const auto same = judged_loss(loss, loss, 0.0001);
    EXPECT_EQ(same.verdict, Verdict::kSame) << loss << ": " << same.text;
    EXPECT_EQ(judged_loss(loss, loss - 0.05 * std::max(1.0, -loss)).verdict, Verdict::kFaster) << loss;
    EXPECT_TRUE(judged_loss(loss, loss + 0.05 * std::max(1.0, -loss)).text.find("; suspected") != std::string::npos)
        << loss;
  }
  EXPECT_EQ(judged_loss(0.3, -4.0).verdict, Verdict::kFaster) << "better than a ratio can say";
  EXPECT_NE(judged_loss(0.01, 0.0105).text.find("; suspected"), std::string::npos);
  keep(with_loss({"r-0", 1, "new"}, -0.001, 0.0));
  EXPECT_NE(judged_loss(0.01, 0.02).text.find("; suspected"), std::string::npos)
      << "one loss below 0 makes no difference to what a positive baseline's percent is";
  std::filesystem::remove_all(folder_), std::filesystem::create_directories(folder_);
  EXPECT_NE(judged_loss(-250, -250).text.find("; % of 250, as values of 0 or below have no ratios"), std::string::npos);
  EXPECT_EQ(judged_loss(2.5, 2.5).text.find("no ratios"), std::string::npos);
}

TEST_F(GateOverNights, ATruncatedCommandIsAMissingStep) {
  Stored accepted = run_of({"r-1"});
  accepted.cells[0].knobs = {{.key = "command.run", .value = "train", .source = "suite"}};
  accepted.cells[0].result_class = baselines::ResultClass::kMeasured;
  request_.pins = {pin_of(accepted, "step_time")};
  request_.pins[0].steps = 30;
  Stored tonight = accepted;
  tonight.id = tonight.cells[0].run = "r-2", tonight.created_unix_ns += kDay;
  EXPECT_EQ(row(judge(tonight), "step_time").verdict.verdict, Verdict::kSame);
  for (auto& launch : tonight.cells[0].launches) launch.steps.resize(12);
  const auto report = judge(tonight);
  EXPECT_EQ(analysis::gate_exit_status(report), 4);
  EXPECT_EQ(report.rows[0].verdict.text, "launch 0: 12 steps were recorded, where those it is held against have 30");
  // As an earlier night it is no evidence either.
  keep(tonight);
  Stored next = accepted;
  next.id = next.cells[0].run = "r-3", next.created_unix_ns += 2 * kDay;
  EXPECT_EQ(row(judge(next), "step_time").verdict.nights, 1U);
}

TEST_F(GateOverNights, ACommandThatEndedBeforeASteadyStateIsAMissingStepToo) {
  Stored accepted = run_of({"r-1"}), tonight = run_of({"r-2", 2, "new"});
  for (Stored* run : {&accepted, &tonight}) run->cells[0].knobs = {{.key = "command.run", .value = "train"}};
  request_.pins = {pin_of(accepted)};
  request_.pins[0].steps = 30;
  tonight.cells[0].status = baselines::CellStatus::kUnstable;
  tonight.cells[0].reason = "no step time";
  EXPECT_EQ(analysis::gate_exit_status(judge(tonight)), 2) << "all steps are there";
  for (auto& launch : tonight.cells[0].launches) launch.steps.resize(5);
  const auto report = judge(tonight);
  EXPECT_EQ(analysis::gate_exit_status(report), 4);
  EXPECT_EQ(row(report, analysis::kRunRow).verdict.text,
            "launch 0: 5 steps were recorded, where those it is held against have 30");
}

TEST_F(GateOverNights, AFirstNightOfAnUnknownProductIsSaid) {
  Stored first = run_of({"r-1"});
  EXPECT_TRUE(judge(first).warnings.empty());
  first.cells[0].knobs = {{.key = "command.run", .value = "train"}};
  const auto report = judge(first);
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find("gate.facts does not say which product that is"), std::string::npos);
}

TEST_F(GateOverNights, ASkippedCellIsSaidAndSilentInANewEpochToo) {
  const Stored accepted = run_of({"r-1"});
  keep(accepted);
  request_.pins = {pin_of(accepted)};
  Stored tonight = run_of({"r-2", 2, "new", "6.2"});
  Cell skipped = tonight.cells[0];
  tonight.cells[0].identity_hash = "another";
  tonight.cells[0].name = "two";
  skipped.status = baselines::CellStatus::kSkipped;
  skipped.reason = "needs 1 GPU; this machine has none";
  tonight.cells.push_back(skipped);
  const auto report = judge(tonight);
  EXPECT_EQ(row(report, analysis::kRunRow).cell, "one");
  EXPECT_EQ(row(report, analysis::kRunRow).verdict.text,
            "no number for 1 night; 3 fail the gate (gate.max_silent_nights)");
  EXPECT_EQ(report.warnings, std::vector<std::string>{"skipped: one: needs 1 GPU; this machine has none"});
}

TEST_F(GateOverNights, AMetricThatWentMissingIsBroken) {
  request_.pins = {pin_of(run_of({"r-1"})), pin_of(run_of({"r-1"}), "peak_memory")};
  Stored tonight = run_of({"r-2", 2, "new"});
  EXPECT_EQ(row(judge(tonight), "peak_memory").verdict.verdict, Verdict::kSame);
  tonight.cells[0].memory.clear();
  const auto report = judge(tonight);
  EXPECT_EQ(row(report, "peak_memory").verdict.verdict, Verdict::kBroken);
  EXPECT_EQ(analysis::gate_exit_status(report), 4);
}

TEST_F(GateOverNights, WhatMeasuredNothingIsNeverGreen) {
  Stored tonight = run_of({"r-2", 2});
  tonight.cells[0].status = baselines::CellStatus::kSkipped;
  EXPECT_EQ(analysis::gate_exit_status(judge(tonight)), 4) << "every cell skipped";
  tonight.cells.clear();
  EXPECT_EQ(analysis::gate_exit_status(judge(tonight)), 4) << "no cell";
}

TEST_F(GateOverNights, ACellThatBrokeOrNeverSettledHasOneCaseWithTheCause) {
  Pin again = pin_of(run_of({"r-1"}), "peak_memory");
  again.id = "b-2";
  request_.pins = {pin_of(run_of({"r-1"})), pin_of(run_of({"r-1"}), "peak_memory"), again};
  keep(run_of({"r-1", 0}));
  Stored tonight = run_of({"r-2", 1, "new"});
  tonight.cells[0].status = baselines::CellStatus::kBroken;
  tonight.cells[0].reason = "the loss of step 40 is nan";
  auto report = judge(tonight);
  ASSERT_EQ(report.rows.size(), 1U) << analysis::gate_junit(report);
  EXPECT_EQ(report.rows[0].verdict.verdict, Verdict::kBroken);
  EXPECT_EQ(report.rows[0].verdict.text, "the loss of step 40 is nan");
  EXPECT_EQ(report.rows[0].against, "b-1");
  EXPECT_EQ(analysis::gate_junit(report).find("<skipped"), std::string::npos);

  int64_t day = 1;
  for (const auto& [id, verdict] :
       {std::pair{"r-3", Verdict::kUnstable}, {"r-4", Verdict::kUnstable}, {"r-5", Verdict::kBroken}}) {
    tonight = run_of({id, day++, "new"});
    tonight.cells[0].status = baselines::CellStatus::kUnstable;
    tonight.cells[0].reason = "no steady state";
    report = judge(tonight);
    ASSERT_EQ(report.rows.size(), 1U) << analysis::gate_junit(report);
    EXPECT_EQ(report.rows[0].verdict.verdict, verdict) << report.rows[0].verdict.text;
    EXPECT_TRUE(report.rows[0].verdict.text.starts_with("no steady state; no number for "))
        << report.rows[0].verdict.text;
    keep(tonight);
  }

  tonight = run_of({"r-6", day, "new"});
  tonight.cells[0].memory.clear();
  report = judge(tonight);
  EXPECT_EQ(
      std::count_if(report.rows.begin(), report.rows.end(), [](const auto& r) { return r.metric == "peak_memory"; }), 1)
      << "however many baselines have it";
}

TEST_F(GateOverNights, AMissingStepAndANanAreHarnessErrors) {
  const auto broken = [&](void (*spoil)(baselines::Launch&)) {
    Stored tonight = run_of({"r-2", 2});
    spoil(tonight.cells[0].launches[3]);
    const auto report = judge(tonight);
    EXPECT_EQ(report.rows.size(), 1U) << "no metric of such a cell is judged";
    EXPECT_EQ(analysis::gate_exit_status(report), 4);
    return report.rows[0].verdict.text;
  };
  EXPECT_EQ(broken([](baselines::Launch& l) { l.steps.erase(l.steps.begin() + 7); }),
            "launch 3: step 7 is missing: step 8 stands in its place");
  EXPECT_EQ(broken([](baselines::Launch& l) { l.steps.pop_back(); }), "launch 3: 29 of 30 steps were recorded");
  EXPECT_EQ(broken([](baselines::Launch& l) { l.steps[4].loss = std::nan(""); }),
            "launch 3: the loss of step 4 is nan");
  EXPECT_EQ(broken([](baselines::Launch& l) { l.steps[4].wall_ns = 0; }), "launch 3: step 4 has no time");
  EXPECT_EQ(broken([](baselines::Launch& l) { l.steps.clear(); }), "launch 3: no step was recorded");
}

}  // namespace
}  // namespace mbb::suites
