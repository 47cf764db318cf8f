// Errors as values: what went wrong in the world, said so that the reader can act.
//
// Three kinds of trouble, three forms: a bug is MB_CHECK (check.h) and aborts; the world is Result<T>; what this
// machine cannot do is Skipped. No exception crosses a wing, a thread or a rank.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace mbb {

enum class ErrorCode {
  kBadArgument,  // a value the user gave breaks a rule
  kNotFound,     // a file, model, suite, knob or run that is not there
  kBadFile,      // a file that lies, is truncated, or is not what it says
  kIo,           // the operating system refused
  kOutOfMemory,  // a memory plan that does not fit
  kUnavailable,  // a device, library or permission this machine lacks
  kMismatch,     // two things that must agree do not (versions, ranks, losses)
  kRankFailed,   // a rank, here or elsewhere, ended with an error
  kTimeout,      // no progress within the limit
  kCancelled,    // stopped by a signal or by the user
  kNumerics,     // NaN, infinity, or a value outside its bound
};

// `what` says what we were doing and what was wrong, naming the thing; `hint` says what to do about it (may be empty).
struct Error {
  ErrorCode code = ErrorCode::kBadArgument;
  std::string what;
  std::string hint;

  // Puts the step we were in before the reason: "reading suite a.toml: line 3: ...".
  Error&& during(const std::string& step) && {
    what = step + ": " + what;
    return std::move(*this);
  }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string what, std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(what), std::move(hint)});
}

// Not possible on this machine, which is no fault: the reason reaches the table, the store and the report.
struct Skipped {
  std::string reason;
};

// Stable lower-case name of a code, as stored and printed: "bad-argument".
const char* name(ErrorCode code);

// One line for a person: "error: what" and, when there is one, "  hint: ...".
std::string format(const Error& error);

}  // namespace mbb

// Returns the error of `expression` from the enclosing function, or goes on.
#define MB_TRY(expression)                                                   \
  do {                                                                       \
    if (auto mb_try_result = (expression); !mb_try_result.has_value())       \
      return tl::unexpected<::mbb::Error>(std::move(mb_try_result.error())); \
  } while (false)

// MB_ASSIGN(auto x, f()): x = value of f(), or returns its error.
#define MB_CONCAT_INNER(a, b) a##b
#define MB_CONCAT(a, b) MB_CONCAT_INNER(a, b)
#define MB_ASSIGN(target, expression)                                                        \
  auto MB_CONCAT(mb_assign_, __LINE__) = (expression);                                       \
  if (!MB_CONCAT(mb_assign_, __LINE__).has_value())                                          \
    return tl::unexpected<::mbb::Error>(std::move(MB_CONCAT(mb_assign_, __LINE__).error())); \
  target = std::move(*MB_CONCAT(mb_assign_, __LINE__))
