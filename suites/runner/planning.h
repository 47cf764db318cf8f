// While a process only plans, a signal that asks it to stop ends it at once: nothing is half written then, and planning
// a large program takes seconds in which nobody looks at a flag.
#pragma once

namespace mbb::suites {

// A stretch of planning; stretches nest.
class Planning {
 public:
  Planning();
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  // For handlers of such signals: ends the process with this status, saying so, where it plans, and returns elsewhere.
  static void end_here(int exit_status);
};

}  // namespace mbb::suites
