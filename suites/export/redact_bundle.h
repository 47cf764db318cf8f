// A run's bundle for strangers: what names people, machines, paths and jobs is taken out, and it still verifies,
// indexes and compares.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "baselines/store/bundle_copy.h"
#include "profiler/base/error.h"

namespace mbb::suites {

struct RedactedBundle {
  baselines::BundleSize size;
  std::string replaced;               // "3 paths, 1 host"
  std::vector<std::string> left_out;  // what has no place in it at all, one thing each
};

// What is known to name nothing is kept: numbers, knobs, words of this program, of its suites and models, and
// `own_words` (lower case). Other names become placeholders, the same everywhere. Logs, command lines, values of the
// environment and a suite's own file stay behind. Series of cells whose identity held a name are the bundle's own.
Result<RedactedBundle> redact_bundle(const baselines::BundleReader& from, const std::filesystem::path& to,
                                     std::set<std::string> own_words);

}  // namespace mbb::suites
