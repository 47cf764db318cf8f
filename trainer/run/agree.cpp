// Lines of every rank, compared by rank 0.
#include "trainer/run/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "profiler/base/text.h"
#include "profiler/host/fingerprint.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {
namespace {

constexpr size_t kMostListed = 6;
constexpr std::string_view kBuild = "build.", kProgram = "program=";

struct Differences {
  std::vector<std::string> first, other;  // of rank 0 and of the other rank
};

Differences differences(const std::string& first, const std::string& other) {
  const auto lines = split(first, '\n'), theirs = split(other, '\n');
  Differences found;
  for (size_t i = 0; i < std::max(lines.size(), theirs.size()); ++i) {
    const std::string_view a = i < lines.size() ? lines[i] : "nothing", b = i < theirs.size() ? theirs[i] : "nothing";
    if (a == b || (a.starts_with(kProgram) && !found.first.empty())) continue;  // knobs that differ say more
    found.first.push_back(printable(a));
    found.other.push_back(printable(b));
    if (a.starts_with(kBuild)) break;  // another build has other knobs
  }
  return found;
}

std::string listed(const std::vector<std::string>& lines) {
  std::string text =
      join({lines.begin(), lines.begin() + static_cast<long>(std::min(lines.size(), kMostListed))}, ", ");
  if (lines.size() > kMostListed) text += fmt::format(" and {} more", lines.size() - kMostListed);
  return text;
}

}  // namespace

Status check_equal(std::span<const std::string> of_rank) {
  const auto differs = [&](const std::string& theirs) { return theirs != of_rank[0]; };
  const auto odd = std::find_if(of_rank.begin(), of_rank.end(), differs);
  if (odd == of_rank.end()) return {};
  const Differences found = differences(of_rank[0], *odd);
  const auto others = std::count_if(odd + 1, of_rank.end(), differs);
  return fail(ErrorCode::kMismatch,
              fmt::format("rank {} has {} where rank 0 has {}{}", odd - of_rank.begin(), listed(found.other),
                          listed(found.first), others == 0 ? "" : fmt::format("; {} more differ from rank 0", others)),
              "start every process with the same program, arguments, settings files and MBBENCH_ variables");
}

Status agree(Communicator& everyone, const Config& config, const StepPrograms& programs) {
  std::string mine;
  for (const profiler::HostFact& fact : profiler::build_facts()) mine += fmt::format("{}={}\n", fact.key, fact.value);
  mine += knobs().to_lines(config);
  // Files that knobs name may differ from host to host.
  mine += fmt::format("{}{}", kProgram, program_hash(programs));
  MB_ASSIGN(const std::vector<std::string> all, gather_at_first(everyone, mine));
  return all.empty() ? Status() : check_equal(all);
}

}  // namespace mbb::trainer
