// The verdict on every real step series of the reference data, as listed in steady_state_verdicts.tsv.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "analysis/stats/stats.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

constexpr const char* kTable = MBB_SOURCE_DIR "/analysis/stats/steady_state_verdicts.tsv";

struct Verdicts {
  std::string text = "series\tsteps\tverdict\tfirst steady\tstalls\twhy\n";
  std::map<std::string, int> counts;
};

Verdicts verdicts_of(std::istream& data) {
  Verdicts all;
  std::string line;
  std::getline(data, line);
  while (std::getline(data, line)) {
    std::istringstream values(line.substr(line.rfind('\t') + 1));
    std::vector<double> steps;
    for (double value = 0; values >> value;) steps.push_back(value);
    const SteadyState state = find_steady_state(steps);
    const char* verdict = state.found                                         ? "steady"
                          : state.reason.find("too few") != std::string::npos ? "too short"
                                                                              : "unstable";
    ++all.counts[verdict];
    all.text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", line.substr(0, line.find('\t')), steps.size(), verdict,
                            state.found ? std::to_string(state.first) : "-",
                            state.found ? std::to_string(state.stalls) : "-", state.reason);
  }
  return all;
}

TEST(SteadyStateGolden, EveryRealSeriesHasItsListedVerdict) {
  std::ifstream data(env_text("MBBENCH_TEST_DATA").value_or(MBB_SOURCE_DIR "/../shared/data") +
                     "/cpd/megatron_lm/step_times.tsv");
  if (!data) GTEST_SKIP() << "the reference data is not beside the project (set MBBENCH_TEST_DATA)";
  const Verdicts now = verdicts_of(data);
  const auto listed = read_file(kTable);
  if (listed && *listed == now.text) return;
  const auto copy = std::filesystem::path(testing::TempDir()) / fmt::format("steady_state_verdicts.{}.tsv", getpid());
  std::ofstream(copy) << now.text;
  std::string counts;
  for (const auto& [verdict, count] : now.counts) counts += fmt::format(" {} {}", count, verdict);
  const auto was = split(listed.value_or(""), '\n'), is = split(now.text, '\n');
  size_t line = 0;
  while (line < was.size() && line < is.size() && was[line] == is[line]) ++line;
  FAIL() << kTable << ":" << line + 1 << " is no longer what find_steady_state says (now:" << counts << "); if that is "
         << "meant, look at each changed line and copy " << copy.string()
         << " over it\nlisted: " << (line < was.size() ? was[line] : "-")
         << "\nnow:    " << (line < is.size() ? is[line] : "-");
}

}  // namespace
}  // namespace mbb::analysis
