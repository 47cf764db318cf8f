// What another program's build is, as it says itself (`mbbench --version`).
#pragma once

#include <string>

#include "profiler/base/error.h"
#include "profiler/host/fingerprint.h"

namespace mbb::suites {

// The fingerprint with the build facts of `program` in the place of ours. A program that does not tell them (one older
// than this) has the value "unknown"; one that does not start is an error.
Result<profiler::Fingerprint> with_build_of(const std::string& program, profiler::Fingerprint fingerprint);

}  // namespace mbb::suites
