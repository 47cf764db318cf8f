// Names of error codes and the one-line form of an error.
#include "profiler/base/error.h"

namespace mbb {

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kBadArgument: return "bad-argument";
    case ErrorCode::kNotFound: return "not-found";
    case ErrorCode::kBadFile: return "bad-file";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kOutOfMemory: return "out-of-memory";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kRankFailed: return "rank-failed";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kNumerics: return "numerics";
  }
  return "unknown";
}

std::string format(const Error& error) {
  std::string line = "error: " + error.what;
  if (!error.hint.empty()) line += "\n  hint: " + error.hint;
  return line;
}

}  // namespace mbb
