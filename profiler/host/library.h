// Whether a shared library that this program opens at run time is there, and what version it says it has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

struct LibraryFacts {
  std::string path;     // where the loader found it
  std::string version;  // as the library says; empty when it has no call for that
};

// How a library tells its version: the function's name and the shape of its answer.
struct VersionCall {
  enum class Shape { kNone, kReturnsSize, kWritesInt } shape = Shape::kNone;
  const char* function = "";
  // An answer of 22803 is 2.28.3 with {10000, 100, 1}; a factor of 0 ends the list.
  long factors[3] = {0, 0, 0};
};

// Opens the first of `names` (sonames or paths) that the loader finds, asks its version, and closes it. The error holds
// what the loader said about the first name.
Result<LibraryFacts> find_library(const std::vector<std::string>& names, const VersionCall& call);

// A program on PATH; empty when there is none.
std::string find_program(const std::string& name);

// Who will hold CUPTI in the processes we start, by the environment that tools set for their targets and by the
// libraries they put into this one: at most one subscriber is served per process. Empty: nobody.
std::string cupti_holder();
// Who holds it when CUPTI refuses: what it `said`, which may be nothing or "<not provided>", else the same.
std::string cupti_holder(std::string_view said);

}  // namespace mbb::profiler
