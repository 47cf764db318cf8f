// Asks the program and reads its "key = value" lines.
#include "suites/runner/program_build.h"

#include <map>

#include "profiler/base/text.h"
#include "suites/runner/process.h"

namespace mbb::suites {

Result<profiler::Fingerprint> with_build_of(const std::string& program, profiler::Fingerprint fingerprint) {
  std::map<std::string, std::string> theirs;
  for (const profiler::HostFact& fact : profiler::build_facts()) theirs[fact.key] = "unknown";
  ProcessOptions options;
  options.arguments = {program, "--version"};
  options.stderr_file = "/dev/null";
  options.silence_limit_ms = 30'000;
  options.on_line = [&](std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return;
    const auto fact = theirs.find(std::string(trim(line.substr(0, equals))));
    if (fact != theirs.end()) fact->second = trim(line.substr(equals + 1));
  };
  MB_ASSIGN(const ProcessEnd end, run_process(options));
  if (end.exit_status != 0 || end.signal != 0)
    return fail(ErrorCode::kNotFound, "program " + program + ": it does not run (`--version` failed)",
                "give an mbbench program that starts on this machine");
  for (profiler::HostFact& fact : fingerprint.facts)
    if (const auto found = theirs.find(fact.key); found != theirs.end()) fact.value = found->second;
  return profiler::make_fingerprint(std::move(fingerprint.facts));
}

}  // namespace mbb::suites
