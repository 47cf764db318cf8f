// The README's rule of exit statuses, row by row: what nothing is called is a bad command line (64), what is called
// rightly and is not there is a bad file (4).
#include <gtest/gtest.h>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class Statuses : public ProgramTest {};

constexpr const char* kUsage[] = {
    "nosuch",
    "show",
    "show @latest --nosuch",
    "suite nosuch",
    "gate nosuch",
    "gate nosuch --junit-xml j.xml",
    "noise nosuch",
    "ab this this nosuch",
    "tune suite=nosuch",
    "suite quickstart --only nosuch",
    "suite quickstart --skip nosuch",
    "gate quickstart --only nosuch",
    "suite quickstart --require nosuch",
    "suite quickstart --hardware nosuch",
    "suite llama3-70b-fp8 --hardware nosuch --dry-run",
    "run --hardware nosuch",
    "project --hardware nosuch",
    "advise model=llama3-8b gpus=8 --hardware nosuch",
    "diagnose @latest --hardware nosuch",
    "run model=nosuch",
    "explain model=nosuch",
    "project model=nosuch",
    "advise model=nosuch gpus=8",
    "run nosuch=1",
    "run tp=abc",
    "run tp=3",
    "run recipe=nosuch",
    "run --command true --log nosuch",
    "MBBENCH_TP=abc run",
    "config nosuch=1",
    "list nosuch",
    "help nosuch",
    "baseline nosuch",
    "export @latest --format nosuch",
    "export @latest --format bundle --output ''",
    "export @latest --format bundle --output .",
    "export @latest --format csv --redact",
    "import a.log --log nosuch",
    "history --metric nosuch",
    "compare @latest @latest --fail-on nosuch",
    "gate quickstart --fail-on nosuch",
};

constexpr const char* kNotThere[] = {
    "suite ./nosuch.toml",
    "gate nosuch.toml",
    "run model=./nosuch.json",
    "advise model=./nosuch.json gpus=8",
    "run data.path=nosuch train_iters=1",
    "project --costs nosuch.toml",
    "import nosuch.log",
    "index nosuch",
    "show @nosuch",
    "show @99",
    "show nosuch",
    "show ./nosuch",
    "show @latest --cell nosuch",
    "compare @nosuch @latest",
    "compare @latest @latest --cell nosuch",
    "diagnose @nosuch",
    "diagnose @latest --cell nosuch",
    "export @nosuch --format csv",
    "export @nosuch --format bundle",
    "export @latest --format csv --cell nosuch",
    "gate --run @nosuch",
    "baseline accept @nosuch --author a --reason r",
    "suite quickstart --resume",
    "suite quickstart --resume --run nosuch",
    "history nosuch",
    "suite ./bad.toml --dry-run",
    "gate bad.toml",
    "noise bad.toml",
    "ab this this bad.toml",
};

TEST_F(Statuses, FollowTheReadmesRule) {
  ASSERT_EQ(run("run train_iters=2 --quiet").status, 0);
  write("a.log", "no step here\n");
  write("bad.toml", "purpose = \"p\"\n[base]\ntp = 3\n[[cell]]\nname = \"c\"\nset = { recipe = \"nosuch\" }\n");
  const auto expect = [this](const std::string& arguments, int status) {
    const bool sets = arguments.starts_with("MBBENCH_");
    const size_t end = sets ? arguments.find(' ') + 1 : 0;
    const Answer answer = sh(arguments.substr(0, end) + program_ + " " + arguments.substr(end));
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
  };
  for (const char* arguments : kUsage) expect(arguments, 64);
  for (const char* arguments : kNotThere) expect(arguments, 4);
}

}  // namespace
}  // namespace mbb::suites
