// Becoming a sibling is one exec: nothing of this program stays.
#include "suites/cli/sibling.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "profiler/base/file.h"
#include "suites/runner/process.h"

namespace mbb::suites {

Result<int> become(const std::string& program, const std::vector<std::string>& arguments, const std::string& remedy) {
  MB_ASSIGN(const std::string self, own_program());
  std::vector<std::string> all{self.substr(0, self.rfind('/') + 1) + program};
  if (!file_exists(all.front()))
    return fail(ErrorCode::kUnavailable, fmt::format("{} was not built", all.front()), remedy);
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(all.front().c_str(), argv.data());
  return fail(ErrorCode::kIo, fmt::format("starting {}: {}", all.front(), std::strerror(errno)));
}

}  // namespace mbb::suites
