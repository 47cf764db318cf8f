// The nightly scripts on a small suite: a planted delay turns the gate red, reports and archives are there, and its
// HTML opens in a browser without a network; the equality matrix by a seed.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class Nightly : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::ofstream(folder_ / "small.toml") << "purpose = \"one rank\"\n[base]\nmicro_batch_size = 1\n"
                                             "global_batch_size = 2\nseq_length = 16\ntrain_iters = 12\n"
                                             "[[cell]]\nname = \"one\"\n";
  }

  Answer night(int launches, const std::string& knobs = "") const {
    return shell(std::string(MBB_SOURCE_DIR) + "/ci/nightly/run -p " + program_ + " -s " +
                 (folder_ / "small.toml").string() + " -n " + std::to_string(launches) + " -o " + out().string() +
                 " -- " + knobs);
  }
  Answer run(const std::string& arguments) const {
    return shell(program_ + " " + arguments + " runs_dir=" + (out() / "runs").string() +
                 " baselines_file=" + (out() / "baselines.jsonl").string());
  }
  fs::path out() const { return folder_ / "out"; }
  // The newest night's report of that ending.
  fs::path report(const std::string& ending) const {
    fs::path newest;
    for (const auto& entry : fs::directory_iterator(out() / "reports")) newest = std::max(newest, entry.path());
    return newest / ("small." + ending);
  }
};

// The delay is four times the step itself: far beyond what a busy machine does to a thread's own time.
TEST_F(Nightly, APlantedDelayIsRedAndEverythingElseIsNot) {
  const Answer first = night(5);
  ASSERT_EQ(first.status, 0) << first.out;
  ASSERT_EQ(run("baseline accept @latest --author ada --reason 'first night'").status, 0);
  const Answer same = night(2);
  EXPECT_NE(same.status, 1) << same.out;
  EXPECT_NE(same.status, 4) << same.out;

  const auto history = nlohmann::json::parse(run("history one --metric cpu_step_time --json").out);
  ASSERT_EQ(history.at("points").size(), 2U);
  const auto delay_us = static_cast<int64_t>(4 * history.at("points")[0].at("value").get<double>() / 1000);
  const Answer slow = night(2, "debug.delay_us=" + std::to_string(delay_us));
  EXPECT_EQ(slow.status, 1) << slow.out;
  const auto json = nlohmann::json::parse(text_of(report("json")));
  for (const auto& row : json.at("rows"))
    EXPECT_EQ(row.at("verdict") == "slower", row.at("metric") == "cpu_step_time") << row;
  EXPECT_NE(text_of(report("junit.xml")).find("failures=\"1\""), std::string::npos);

  EXPECT_NE(run("history").out.find("cpu_step_time"), std::string::npos) << "a knob in the place of a series is a knob";
  // The verdict is in the store, the history, the page; the bundles are in archives and, being young, still there.
  const Answer shown = run("history one");
  EXPECT_NE(shown.out.find("slower"), std::string::npos) << shown.out;
  EXPECT_NE(text_of(report("html")).find("slower"), std::string::npos);
  EXPECT_GE(std::distance(fs::directory_iterator(out() / "archive"), fs::directory_iterator()), 4)
      << "and confirmations";
  EXPECT_NE(text_of(report("html").parent_path() / "gc.txt").find("evidence of baseline b-"), std::string::npos);
  EXPECT_NE(text_of(report("html").parent_path() / "gc.txt").find("removed 0 of"), std::string::npos);

  // Whatever the policy, the baseline's evidence stays.
  const Answer gone = run("gc --dry-run gc.keep_days=0 gc.keep_runs=0");
  EXPECT_NE(gone.out.find("would remove"), std::string::npos) << gone.out;
  EXPECT_NE(gone.out.find("evidence of baseline b-"), std::string::npos) << gone.out;
  EXPECT_FALSE(gone.has("there is no ")) << gone.out;
  const Answer elsewhere =
      shell(program_ +
            " gc --dry-run gc.keep_days=0 gc.keep_runs=0 baselines_file=nowhere runs_dir=" + (out() / "runs").string());
  EXPECT_TRUE(elsewhere.has("there is no nowhere (baselines_file), and a gate's runs are here")) << elsewhere.out;
  EXPECT_TRUE(elsewhere.has("would remove 0 of")) << elsewhere.out;
}

// What a browser saw of a page whose buttons were all pressed: its text with a last line of counts, and its console.
Answer opened(const fs::path& page, const fs::path& folder) {
  constexpr const char* kProbe =
      "<script>addEventListener('load',()=>{document.querySelectorAll('button').forEach(b=>b.click());"
      "const n=s=>document.querySelectorAll(s).length,p=document.createElement('pre');"
      "p.textContent=`asked for ${performance.getEntriesByType('resource').length}, ${n('table')} tables, "
      "${n('svg')} figures, ${n('svg[style*=\"1000%\"]')} zoomed`;document.body.append(p)})</script>";
  std::ofstream(folder / "probed.html") << text_of(page) << kProbe;
  return shell(
      "timeout 200 chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
      "--host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --user-data-dir=" +
      (folder / "profile").string() + " --dump-dom file://" + fs::absolute(folder / "probed.html").string() + " 2> " +
      (folder / "chromium.txt").string() + "; code=$?; grep ':CONSOLE' " + (folder / "chromium.txt").string() +
      "; exit $code");
}

TEST_F(Nightly, PagesOfGreenRedAmberAndBrokenNightsOpenInABrowserWithoutANetwork) {
  ASSERT_EQ(night(5).status, 0);
  const std::string green = text_of(report("html"));
  EXPECT_NE(green.find("aria-label=\"timeline\""), std::string::npos) << "a step of each run was traced";
  EXPECT_NE(green.find("aria-label=\"history\""), std::string::npos);
  ASSERT_EQ(run("baseline accept @latest --author ada --reason 'first night'").status, 0);
  std::map<std::string, fs::path> pages{{"new", report("html")}};
  const auto add = [&](const char* verdict, int status, const std::string& knobs) {
    const Answer answer = night(2, knobs);
    EXPECT_EQ(answer.status, status) << answer.out;
    pages[verdict] = report("html");
  };
  add("slower", 1, "debug.delay_us=50000");
  add("incomparable", 3, "gate.facts.rack=two gate.environment=rack");
  const std::string silent = "no number for 1 night; 1 fail the gate";
  std::ofstream(folder_ / "small.toml", std::ios::app) << "set = { seq_length = 8 }\n";
  add("broken", 4, "gate.max_silent_nights=1");
  EXPECT_NE(text_of(report("html")).find(silent), std::string::npos) << "what made the night red is on its page";
  for (const auto& [verdict, page] : pages)
    for (const char* asks : {"http:", "https:", " src=", " href=", "@import", "url(h"})
      EXPECT_EQ(text_of(page).find(asks), std::string::npos) << verdict << " asks for something beside it: " << asks;

  if (shell("command -v chromium").out.empty()) GTEST_SKIP() << "no chromium on PATH (Debian's package `chromium`)";
  for (const auto& [verdict, page] : pages) {
    const Answer seen = opened(page, folder_);
    ASSERT_EQ(seen.status, 0) << seen.out.substr(0, 2000);
    for (const std::string& part :
         {std::string("<h2>Verdicts</h2>"), ">" + verdict + "</td>", std::string("asked for 0, "),
          std::string("1 zoomed</pre>"), std::string("<h2>Timelines</h2>")})
      EXPECT_TRUE(seen.has(part)) << verdict << " lacks " << part << "\n" << seen.out.substr(seen.out.size() - 400);
    EXPECT_FALSE(seen.has("0 tables") || seen.has("0 figures")) << verdict;
    EXPECT_FALSE(seen.has(":CONSOLE")) << verdict << seen.out.substr(seen.out.find(":CONSOLE"));
  }
  // A page that would fail is seen to.
  write("bad.html", "<p>x<img src='http://elsewhere.invalid/a.png'><script>nothing()</script>");
  const Answer bad = opened(folder_ / "bad.html", folder_);
  EXPECT_TRUE(bad.has("asked for 1, 0 tables") && bad.has("nothing is not defined")) << bad.out;
}

TEST_F(Nightly, TheEqualityMatrixBySeedSaysHowToRunWhatBrokeAgain) {
  const std::string script = std::string(MBB_SOURCE_DIR) + "/ci/nightly/equality";
  const auto matrix = [&](const std::string& options) {
    return shell(script + " -p " + program_ + " -S 7 -c 0 -o " + out().string() + " -- " + options);
  };
  const Answer equal = matrix("--only 'llama-one-flat-fp32-auto-kept-plain*'");
  EXPECT_EQ(equal.status, 0) << equal.out;
  EXPECT_NE(equal.out.find("3 ok, 0 broken"), std::string::npos) << "its own seed and two others: " << equal.out;
  EXPECT_FALSE(fs::exists(out() / "runs-7"));
  const Answer broken = matrix("inject_fault=error@0 --only llama-one-flat-fp32-auto-kept-plain-seed2");
  EXPECT_EQ(broken.status, 4) << broken.out;
  EXPECT_NE(broken.out.find("replay  mbbench suite mappings-cpu --seed 7 --combinations 0"), std::string::npos)
      << broken.out;
  EXPECT_TRUE(fs::exists(out() / "runs-7")) << broken.out;
  EXPECT_EQ(shell(script + " -c many").status, 64);
}

TEST_F(Nightly, ASuiteThatMeasuresNothingLeavesReportsAndIsRed) {
  std::ofstream(folder_ / "small.toml") << "purpose = \"a memory it cannot fit\"\n[base]\nmemory.limit_gib = 0.00001\n"
                                           "micro_batch_size = 1\nglobal_batch_size = 1\ntrain_iters = 12\n"
                                           "[[cell]]\nname = \"one\"\n";
  const Answer answer = night(1);
  EXPECT_EQ(answer.status, 4) << answer.out;
  EXPECT_NE(text_of(report("junit.xml")).find("errors=\"1\""), std::string::npos) << text_of(report("junit.xml"));
  EXPECT_NE(text_of(report("json")).find("nothing was measured; one: "), std::string::npos) << answer.out;
}

TEST_F(Nightly, WhatMeasuresNothingOrCannotBeginIsNeverGreenNorSlower) {
  const std::string nightly = fs::absolute(MBB_SOURCE_DIR).string() + "/ci/nightly/run -s small.toml -n 1 ";
  write("pretends", "#!/bin/sh\necho mbbench 1\n");
  fs::permissions(folder_ / "pretends", fs::perms::owner_all);
  for (const std::string arguments : {"-o out -p /bin/true", "-o out -p /tmp", "-o out -p ./pretends"}) {
    const Answer answer = sh(nightly + arguments);
    EXPECT_EQ(answer.status, 4) << arguments << "\n" << answer.out;
  }
  const Answer nowhere = sh(nightly + "-o /proc/out -p " + program_);
  EXPECT_EQ(nowhere.status, 4) << nowhere.out;
}

TEST_F(Nightly, AGateThatCrashesIsAHarnessErrorSaidByName) {
  for (const auto& [end, said] : {std::pair{"kill -SEGV $$", "harness error: it died of SIGSEGV (exit status 139)"},
                                  {"exit 7", "harness error: exit status 7, which no gate gives"},
                                  {"exit 0", "harness error: it left no report"}}) {
    write("crashes", std::string("#!/bin/sh\n[ \"$1\" = gate ] && ") + end + "\nexec " + program_ + " \"$@\"\n");
    fs::permissions(folder_ / "crashes", fs::perms::owner_all);
    const Answer answer =
        sh(fs::absolute(MBB_SOURCE_DIR).string() + "/ci/nightly/run -s small.toml -n 1 -o out -p ./crashes");
    EXPECT_EQ(answer.status, 4) << answer.out;
    EXPECT_TRUE(answer.has(std::string("gate small: ") + said)) << answer.out;
    const std::string junit = text_of(report("junit.xml"));
    EXPECT_NE(junit.find("errors=\"1\""), std::string::npos) << junit;
    EXPECT_NE(junit.find(std::string("<error message=\"broken\">") + said), std::string::npos) << junit;
    const auto json = nlohmann::json::parse(text_of(report("json")));
    EXPECT_EQ(json.at("rows")[0].at("text"), said);
    for (const char* other : {"md", "html"}) EXPECT_NE(text_of(report(other)).find(said), std::string::npos) << other;
  }
}

TEST_F(Nightly, ASuiteThatDoesNotLoadIsAnErrorAndTheOthersRun) {
  const Answer answer = shell(std::string(MBB_SOURCE_DIR) + "/ci/nightly/run -p " + program_ + " -s nothing-here -s " +
                              (folder_ / "small.toml").string() + " -n 1 -o " + out().string());
  EXPECT_EQ(answer.status, 64) << answer.out;
  EXPECT_NE(answer.out.find("gate small: "), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("exit status 64; reports in"), std::string::npos) << answer.out;
  const fs::path missing = report("json").parent_path() / "nothing-here.junit.xml";
  EXPECT_NE(text_of(missing).find("errors=\"1\""), std::string::npos) << text_of(missing);
  const std::string page = text_of(report("json").parent_path() / "nothing-here.html");
  EXPECT_NE(page.find("no suite is called &#39;nothing-here&#39;"), std::string::npos) << page;
}

TEST_F(Nightly, SettingsAreThoseOfTheFolderItIsCalledIn) {
  write("mbbench.toml", "baselines_file = \"accepted.jsonl\"\n[gate.facts]\nimage = \"nemo:25.09\"\n");
  const std::string nightly =
      fs::absolute(MBB_SOURCE_DIR).string() + "/ci/nightly/run -p " + program_ + " -s small.toml -o out ";
  const Answer first = sh(nightly + "-n 5");
  EXPECT_EQ(first.status, 0) << first.out;
  EXPECT_TRUE(first.has("product image nemo:25.09")) << first.out;
  ASSERT_EQ(sh(program_ + " baseline accept @latest --author ada --reason first runs_dir=out/runs").status, 0);
  EXPECT_NE(text_of(report("html")).find("product image nemo:25.09"), std::string::npos);
  const auto archive_of_newest = [&] {
    const auto run = nlohmann::json::parse(text_of(report("json"))).at("run").get<std::string>();
    return out() / "archive" / (report("json").parent_path().filename().string() + "-" + run + ".tgz");
  };
  const fs::path evidence = archive_of_newest();
  const Answer second = sh(nightly + "-n 1");
  const fs::path idle = archive_of_newest();
  EXPECT_TRUE(fs::exists(idle));
  EXPECT_TRUE(second.has(" b-2")) << "held against accepted.jsonl: " << second.out;
  EXPECT_FALSE(fs::exists(out() / "baselines.jsonl"));
  // The reports and archives of the first night are old; the baseline's evidence stays.
  const Answer third = sh(nightly + "-n 1 -k 1");
  EXPECT_TRUE(third.has("reports in")) << third.out;
  EXPECT_EQ(std::distance(fs::directory_iterator(out() / "reports"), fs::directory_iterator()), 1);
  EXPECT_TRUE(fs::exists(evidence));
  EXPECT_FALSE(fs::exists(idle));
  write("mbbench.toml", "runs = 1\n");
  const Answer bad = sh(nightly + "-n 1");
  EXPECT_EQ(bad.status, 4) << bad.out;
  EXPECT_NE(text_of(report("junit.xml")).find("no knob is called"), std::string::npos) << bad.out;
}

TEST_F(Nightly, AStopIsPassedOnAndWhatHasFinishedIsArchived) {
  const Answer answer = shell("timeout -s TERM 2 " + std::string(MBB_SOURCE_DIR) + "/ci/nightly/run -p " + program_ +
                              " -s " + (folder_ / "small.toml").string() + " -n 400 -o " + out().string() +
                              "; echo status $?; pgrep -f '" + out().string() + "' | wc -l");
  EXPECT_NE(answer.out.find("exit status 75; reports in"), std::string::npos) << answer.out;
  EXPECT_NE(text_of(report("junit.xml")).find("errors=\"1\""), std::string::npos) << text_of(report("junit.xml"));
  EXPECT_NE(answer.out.find("run it again"), std::string::npos) << answer.out;
}

}  // namespace
}  // namespace mbb::suites
