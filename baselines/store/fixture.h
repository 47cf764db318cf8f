// A made-up run with every kind of record in it, for tests and for trying the viewer; it always says that it is made
// up.
#pragma once

#include <cstdint>
#include <filesystem>

#include "baselines/store/records.h"

namespace mbb::baselines {

struct SyntheticOptions {
  std::uint64_t seed = 1;  // equal options give equal runs
  std::int64_t created_unix_ns = 1'780'000'000'000'000'000;
  std::string tag;
  int cells = 3;  // ok cells; two more are added, one skipped and one broken
  int launches = 3;
  int steps = 20;
  int layers = 4;         // op rows and tensors grow with them
  double step_ns = 20e6;  // of the first cell; each next one is 10 % slower
};

// A run named after seed and time, whose `synthetic` field says so.
Run make_synthetic_run(const SyntheticOptions& options = {});

// Writes it as a finished bundle below `parent` and returns its folder.
Result<std::filesystem::path> write_synthetic_bundle(const std::filesystem::path& parent,
                                                     const SyntheticOptions& options = {});

}  // namespace mbb::baselines
