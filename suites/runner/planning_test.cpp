// A signal ends a process that plans, and only raises a flag in one that does not.
#include "suites/runner/planning.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

namespace mbb::suites {
namespace {

void handler(int) {
  Planning::end_here(75);
}

// Exit status of a process that gets SIGTERM inside or behind nested stretches, and ends with 3 when it goes on.
int status_of(bool inside) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGTERM, handler);
    std::optional<Planning> outer(std::in_place);
    { const Planning inner; }
    if (!inside) outer.reset();
    raise(SIGTERM);
    _exit(3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Planning, EndsAtASignalOnlyWhileItLasts) {
  EXPECT_EQ(status_of(true), 75);
  EXPECT_EQ(status_of(false), 3);
}

}  // namespace
}  // namespace mbb::suites
