// A user's command that crashes, loses a step, prints a NaN or ends early is no evidence to any command that counts
// launches; a file or a run that is named twice counts once.
#include <gtest/gtest.h>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

// A trainer steered by the file `ctl`: n steps of ms milliseconds, each longer than the one before by the fraction
// `drift`, without step `skip`, a NaN at step `nan`, the exit status `rc`, steps `late` times as long. With `after`,
// all but ms only from that launch on, which `count` counts.
constexpr const char* kTrainer = R"(n=40 ms=100 drift=0 skip=0 nan=0 rc=0 after=0 late=1
seed=${1:-0}
count=$(cat count 2>/dev/null || echo 0); echo $((count + 1)) > count
. ./ctl
[ "${2:-1}" = 5 ] && skip=20
[ "$count" -lt "$after" ] && n=40 drift=0 skip=0 nan=0 rc=0 late=1
awk -v n=$n -v ms=$ms -v late=$late -v drift=$drift -v skip=$skip -v nan=$nan -v seed=$seed 'BEGIN {
  for (i = 1; i <= n; ++i)
    if (i != skip)
      printf "{\"step\": %d, \"step_time_ms\": %.4f, \"gpus\": 1, \"device\": \"NVIDIA H100 80GB HBM3\", \"loss\": %s}\n",
        i, ms * late * (1 + drift) ^ i * (1 + 0.0005 * ((seed * 7) % 5) + 0.0002 * ((i * 3) % 5)),
        i == nan ? "NaN" : sprintf("%.4f", 2 + 1 / i)
}'
exit $rc
)";

class Evidence : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write("trainer.sh", kTrainer);
    write("ctl", "");
    write("fake.toml", "purpose = \"a fake trainer\"\n[command]\nrun = \"cd " + folder_.string() +
                           " && sh trainer.sh {launch} {seed}\"\nlog = \"jsonl\"\n[[cell]]\nname = \"c\"\n");
  }
  // The trainer as steered, from the first launch of the command on, or from the `after`th.
  Answer with(const std::string& ctl, const std::string& arguments) const {
    write("ctl", ctl + "\n");
    fs::remove(folder_ / "count");
    return run(arguments);
  }
  void accept_a_night() const {
    const Answer first = with("", "gate fake.toml --launches 5 --quiet");
    ASSERT_EQ(first.status, 0) << first.out;
    const Answer accepted = run("baseline accept @latest --author ada --reason 'first night'");
    ASSERT_EQ(accepted.status, 0) << accepted.out;
  }
};

TEST_F(Evidence, ConfirmingLaunchesThatBreakAreToldAndNeverConfirm) {
  accept_a_night();
  const std::string gate = "gate fake.toml --launches 2 --quiet";
  const Answer lost = with("ms=110 skip=7 after=2", gate);
  EXPECT_EQ(lost.status, 4) << lost.out;
  EXPECT_TRUE(lost.has("the launches to confirm it are no evidence: launch 0: step 7 is missing")) << lost.out;
  const Answer crashed = with("ms=110 rc=3 after=2", gate);
  EXPECT_EQ(crashed.status, 4) << crashed.out;
  EXPECT_TRUE(crashed.has("the command ended with exit status 3")) << crashed.out;
  const Answer nan = with("ms=110 nan=7 after=2", gate);
  EXPECT_EQ(nan.status, 4) << nan.out;
  EXPECT_TRUE(nan.has("the loss of step 7 is nan")) << nan.out;
}

TEST_F(Evidence, AcceptingTheNewestRunAfterARedNightAcceptsTheNight) {
  const std::string gate = "gate fake.toml --quiet gate.facts.image=", evidence = " --author ada --reason right";
  ASSERT_EQ(with("", gate + "v1").status, 0);
  ASSERT_EQ(run("baseline accept @latest gate.facts.image=v1" + evidence).status, 0);
  const Answer red = with("ms=110", gate + "v2");
  EXPECT_EQ(red.status, 1) << red.out;
  const Answer with_it = run("baseline accept @2 --with @latest" + evidence);
  EXPECT_EQ(with_it.status, 64) << with_it.out;
  EXPECT_TRUE(with_it.has("confirmed a night and is none")) << with_it.out;
  const Answer accepted = run("baseline accept @latest gate.facts.image=v2" + evidence);
  EXPECT_EQ(accepted.status, 0) << accepted.out;
  EXPECT_TRUE(accepted.has("only ran suspected cells of run r-")) << accepted.out;
  EXPECT_EQ(with("ms=110", gate + "v2").status, 0);
}

TEST_F(Evidence, ANightThatWasStoppedWhileItConfirmedHasNoGreenStatus) {
  accept_a_night();
  const Answer stopped =
      with("ms=110; [ $count -lt 2 ] || { kill -TERM $(awk '/^PPid/ { print $2 }' /proc/$PPID/status); sleep 60; }",
           "gate fake.toml --launches 2 --quiet");
  EXPECT_EQ(stopped.status, 75) << stopped.out;
  EXPECT_TRUE(stopped.has("stopped while suspected cells were run again")) << stopped.out;
  const Answer listed = run("list runs");
  EXPECT_TRUE(listed.has("exit 75")) << listed.out;
}

TEST_F(Evidence, AnEmptiedBaselinesFileIsNoNewSeries) {
  accept_a_night();
  ASSERT_EQ(with("", "gate fake.toml --quiet").status, 0);
  write("mbbench-baselines.jsonl", "");
  const Answer lost = with("ms=110", "gate fake.toml --quiet");
  EXPECT_EQ(lost.status, 2) << lost.out;
  EXPECT_TRUE(lost.has("the baselines file lacks b-")) << lost.out;
  ASSERT_EQ(run("baseline accept @latest --author ada --reason anew").status, 0);
  EXPECT_EQ(with("ms=110", "gate fake.toml --quiet").status, 0);
}

TEST_F(Evidence, AbSaysWhatBothArmsTook) {
  const std::string ctl = "[ \"$2\" != 2 ] || ms=103", ab = "ab seed=0 seed=2 fake.toml --budget 3 --quiet";
  const Answer text = with(ctl, ab), json = with(ctl, ab + " --json");
  EXPECT_EQ(text.status, 1) << text.out;
  EXPECT_TRUE(text.has("100.0 ms  103.0 ms  +3.00 %")) << text.out;
  EXPECT_TRUE(json.has(R"("a": 100040000, "b": 103041)")) << json.out;
  EXPECT_TRUE(json.has(R"("unit": "ns", "change": 0.03)") || json.has(R"("unit": "ns", "change": 0.029)")) << json.out;
}

TEST_F(Evidence, ATruncatedTrainerIsBrokenAndBridgesNothing) {
  accept_a_night();
  const Answer shorter = with("n=8", "gate fake.toml --launches 2 --quiet");
  EXPECT_EQ(shorter.status, 4) << shorter.out;
  EXPECT_TRUE(shorter.has("8 steps were recorded, where those it is held against have 40")) << shorter.out;
  const Answer here = run("gate fake.toml --launches 2 --quiet --bridge this");
  EXPECT_EQ(here.status, 4) << here.out;
  EXPECT_TRUE(here.has("nothing to bridge: baseline b-")) << here.out;
  EXPECT_FALSE(run("list runs").has("gate-bridge")) << "refused before anything ran";
  const std::string elsewhere = " gate.facts.rack=two gate.environment=rack";
  const Answer amber = with("", "gate fake.toml --launches 2 --quiet" + elsewhere);
  EXPECT_EQ(amber.status, 3) << amber.out;
  EXPECT_TRUE(amber.has("--bridge this` and the gate.facts that it has")) << amber.out;
  const Answer bridge = with("skip=7", "gate fake.toml --launches 2 --quiet --bridge this" + elsewhere);
  EXPECT_EQ(bridge.status, 4) << bridge.out;
  EXPECT_TRUE(bridge.has("0 baselines have a bridge, and not those of cell c: launch 0: step 7 is missing"))
      << bridge.out;
  const Answer few = with("", "gate fake.toml --launches 2 --quiet --bridge this" + elsewhere);
  EXPECT_EQ(few.status, 0) << few.out;
  EXPECT_TRUE(few.has("0 baselines have a bridge")) << few.out;
  EXPECT_TRUE(few.has("2 have 2 of 5 bridge launches")) << few.out;
  const Answer enough = with("", "gate fake.toml --launches 3 --quiet --bridge this" + elsewhere);
  EXPECT_EQ(enough.status, 0) << enough.out;
  EXPECT_TRUE(enough.has("2 baselines have a bridge into this epoch")) << enough.out;
}

TEST_F(Evidence, ATrainerThatWentFurtherIsHeldToTheLossOfTheSameStep) {
  accept_a_night();
  const Answer further = with("n=80", "gate fake.toml --launches 2 --quiet");
  EXPECT_EQ(further.status, 0) << further.out;
  EXPECT_TRUE(further.has("2 same")) << "its last loss is 0.6 % lower: " << further.out;
}

TEST_F(Evidence, NoiseAndAbGiveNoNumberOfSuchLaunches) {
  const Answer lost = with("skip=5", "noise fake.toml --launches 2 --quiet");
  EXPECT_EQ(lost.status, 4) << lost.out;
  EXPECT_TRUE(lost.has("step 5 is missing")) << lost.out;
  EXPECT_FALSE(lost.has("step_time")) << lost.out;
  const Answer nan = with("nan=5", "noise fake.toml --launches 2 --quiet");
  EXPECT_EQ(nan.status, 4) << nan.out;
  EXPECT_FALSE(nan.has("step_time")) << nan.out;
  const Answer ab = with("", "ab seed=1 seed=5 fake.toml --budget 3 --quiet");
  EXPECT_EQ(ab.status, 4) << ab.out;
  EXPECT_TRUE(ab.has("B (seed=5): launch 0: step 20 is missing")) << ab.out;
  const Answer shorter = with("n=8 after=1", "ab this this fake.toml --budget 3 --quiet");
  EXPECT_EQ(shorter.status, 4) << shorter.out;
  EXPECT_TRUE(shorter.has("8 steps were recorded, where those it is held against have 40")) << shorter.out;
}

TEST_F(Evidence, NoiseSaysWhyALaunchHasNoStepTime) {
  const Answer swings = with("drift=0.02", "noise fake.toml --launches 2 --quiet");
  EXPECT_TRUE(swings.has("no step time: launch 0: no steady state: the steps drift")) << swings.out;
  const Answer one = with("drift=0.02 after=2", "noise fake.toml --launches 3 --quiet");
  EXPECT_TRUE(one.has("c, no step_time of launch 2: no steady state")) << one.out;
}

TEST_F(Evidence, NoiseNamesACellWithALaunchFarFromTheOthers) {
  const Answer apart = with("late=1.6 after=2", "noise fake.toml --launches 3 --quiet");
  EXPECT_TRUE(apart.has("c: one launch is far from another")) << apart.out;
  EXPECT_TRUE(apart.has("100.0 ms..160.4 ms")) << apart.out;
  const Answer json = with("late=1.6 after=2", "noise fake.toml --launches 3 --quiet --json");
  EXPECT_TRUE(json.has(R"("launches": 3, "mean": 120)")) << json.out;
  EXPECT_TRUE(json.has(R"("fastest": 1000)")) << json.out;
  EXPECT_TRUE(json.has(R"("unit": "ns", "sigma": 0.2)")) << json.out;
  const Answer alike = with("", "noise fake.toml --launches 3 --quiet");
  EXPECT_FALSE(alike.has("far from another")) << alike.out;
}

TEST_F(Evidence, TheSameLaunchesCountOnce) {
  accept_a_night();
  const Answer twice = run("baseline accept @1 --with @1 --author ada --reason again");
  EXPECT_EQ(twice.status, 64) << twice.out;
  EXPECT_TRUE(twice.has("is given twice")) << twice.out;
  ASSERT_EQ(sh("sh trainer.sh 1 > l1.jsonl && sh trainer.sh 2 > l2.jsonl && cp l1.jsonl copy.jsonl").status, 0);
  const Answer named = run("import l1.jsonl l2.jsonl ./l1.jsonl --cell x");
  EXPECT_EQ(named.status, 64) << named.out;
  EXPECT_TRUE(named.has("l1.jsonl is given twice")) << named.out;
  const Answer copied = run("import l1.jsonl copy.jsonl --cell x");
  EXPECT_EQ(copied.status, 64) << copied.out;
  EXPECT_TRUE(copied.has("the same log, byte for byte")) << copied.out;
  EXPECT_EQ(run("import l1.jsonl l2.jsonl --cell x").status, 0);
}

TEST_F(Evidence, ImportsThatNameNoModelAreSeriesOfTheirOwn) {
  ASSERT_EQ(sh("for i in 1 2 3 4 5; do sh trainer.sh $i > l$i.jsonl; done; echo ms=500 > ctl; "
               "for i in 1 2 3 4 5; do sh trainer.sh $i > other$i.jsonl; done")
                .status,
            0);
  ASSERT_EQ(run("import l1.jsonl l2.jsonl l3.jsonl l4.jsonl l5.jsonl --cell m").status, 0);
  ASSERT_EQ(run("baseline accept @latest --author ada --reason first").status, 0);
  ASSERT_EQ(run("import other1.jsonl other2.jsonl other3.jsonl other4.jsonl other5.jsonl --cell other").status, 0);
  const Answer other = run("gate --run @latest");
  EXPECT_TRUE(other.has("no baseline")) << other.out;
  EXPECT_EQ(other.status, 0) << other.out;
  const Answer history = run("history m");
  EXPECT_EQ(history.status, 0) << history.out;
  EXPECT_TRUE(history.has("m step_time")) << history.out;
  EXPECT_TRUE(run("list series").has("other"));
}

TEST_F(Evidence, AnImportedLogIsOfTheProductThatIsDeclared) {
  ASSERT_EQ(sh("for i in 1 2 3 4 5; do sh trainer.sh $i > l$i.jsonl; done; echo ms=110 > ctl; "
               "for i in 1 2 3 4 5; do sh trainer.sh $i > later$i.jsonl; done")
                .status,
            0);
  const std::string first = " gate.facts.image=v1", second = " gate.facts.image=v2";
  ASSERT_EQ(run("import l1.jsonl l2.jsonl l3.jsonl l4.jsonl l5.jsonl --cell m" + first).status, 0);
  ASSERT_EQ(run("baseline accept @latest --author ada --reason first" + first).status, 0);
  EXPECT_TRUE(sh("cat mbbench-baselines.jsonl").has("\"build\":\"image v1\""));
  const std::string later = "import later1.jsonl later2.jsonl later3.jsonl later4.jsonl later5.jsonl --cell m";
  ASSERT_EQ(run(later).status, 0);
  const Answer unknown = run("gate --run @latest" + second);
  EXPECT_TRUE(unknown.has("gate.facts: 'image' matches no fact of run r-")) << unknown.out;
  EXPECT_TRUE(unknown.has("gate.facts does not say which product that is")) << unknown.out;
  ASSERT_EQ(run(later + first).status, 0);
  const Answer same = run("gate --run @latest" + first);
  EXPECT_EQ(same.status, 2) << "nobody can launch an imported log again: " << same.out;
  EXPECT_TRUE(same.has("; suspected, not confirmed: no fresh launches")) << same.out;
  EXPECT_TRUE(same.has(" +10.")) << "by how much: " << same.out;
  EXPECT_TRUE(same.has("product image v1")) << same.out;
  EXPECT_FALSE(same.has("does not say which product")) << same.out;
}

TEST_F(Evidence, AMachineThatBecameSlowerIsNotTheNextProductsFault) {
  const std::string gate = "gate fake.toml --quiet gate.facts.image=";
  ASSERT_EQ(with("", gate + "v1").status, 0);
  ASSERT_EQ(run("baseline accept @latest --author ada --reason first gate.facts.image=v1").status, 0);
  const Answer own = with("ms=102", gate + "v1");
  EXPECT_EQ(own.status, 3) << own.out;
  const Answer next = with("ms=102", gate + "v2");
  EXPECT_EQ(next.status, 3) << next.out;
  EXPECT_TRUE(next.has("over 1 night, 5 launches")) << next.out;
  EXPECT_TRUE(next.has("; the machine changed, not the product, as it had for the baseline's own product on "))
      << next.out;
  const Answer slower = with("ms=106", gate + "v3");
  EXPECT_EQ(slower.status, 1) << slower.out;
  EXPECT_TRUE(slower.has("; the machine changed too, as it had for the baseline's own product on ")) << slower.out;
}

TEST_F(Evidence, WhatIsTheEnvironmentFromTonightOnIsSaidAndIsNoProduct) {
  const std::string facts = " gate.facts.image=v1 gate.facts.rack=two";
  ASSERT_EQ(with("", "gate fake.toml --quiet" + facts).status, 0);
  ASSERT_EQ(run("baseline accept @latest --author ada --reason first" + facts).status, 0);
  const std::string gate = "gate fake.toml --quiet gate.environment=rack" + facts;
  const Answer amber = with("", gate);
  EXPECT_EQ(amber.status, 3) << amber.out;
  EXPECT_TRUE(amber.has("others count as the environment now: gate.environment = rack)")) << amber.out;
  EXPECT_TRUE(amber.has("the old product (image v1)")) << amber.out;
  const Answer history = run("history c");
  EXPECT_TRUE(history.has("image v1, rack two")) << "when nothing said that it is the environment: " << history.out;
  EXPECT_TRUE(history.has("image v1 ")) << history.out;
  EXPECT_EQ(with("", gate + " --bridge this").status, 0);
  const Answer bridged = with("", gate);
  EXPECT_TRUE(bridged.has("a new epoch (the facts are equal, ")) << bridged.out;
}

TEST_F(Evidence, CellsOfOneCommandLineThatNamesThemAreSeriesOfTheirOwn) {
  write("two.toml", "purpose = \"two\"\n[command]\nrun = \"cd " + folder_.string() +
                        " && sh trainer.sh {launch} # {cell}\"\nlog = \"jsonl\"\n[[cell]]\nname = \"one\"\n[[cell]]\n"
                        "name = \"two\"\n");
  const Answer first = with("", "gate two.toml --launches 2 --quiet");
  ASSERT_EQ(first.status, 0) << first.out;
  ASSERT_EQ(run("baseline accept @latest --only one --author ada --reason first").status, 0);
  const Answer second = with("", "gate two.toml --launches 2 --quiet --only two");
  EXPECT_EQ(second.status, 0) << second.out;
  EXPECT_TRUE(second.has("2 new")) << "cell two has no baseline, and cell one was left out: " << second.out;
}

TEST_F(Evidence, ACellThatAnotherSuiteHasByNameIsNotMissed) {
  ASSERT_EQ(sh("sed 's/ {seed}/ {seed} 1/' fake.toml > other.toml").status, 0);
  accept_a_night();
  const Answer other = with("", "gate other.toml --launches 5 --quiet gate.max_silent_nights=1");
  EXPECT_EQ(other.status, 0) << "its own baseline is to come: " << other.out;
  EXPECT_TRUE(other.has("2 new")) << other.out;
  ASSERT_EQ(run("baseline accept @latest --author ada --reason other").status, 0);
  for (const char* suite : {"fake", "other"}) {
    const Answer both = with("", "gate " + std::string(suite) + ".toml --launches 5 --quiet gate.max_silent_nights=1");
    EXPECT_EQ(both.status, 0) << both.out;
    EXPECT_TRUE(both.has("2 same")) << both.out;
  }
}

}  // namespace
}  // namespace mbb::suites
