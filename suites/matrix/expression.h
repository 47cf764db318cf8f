// Conditions of a suite file: `where = "tp * pp <= 32"`, `when = "recipe == 'bf16' and not (tp > 1)"`.
//
// Integers, numbers, strings in either quote, true, false, names of knobs; + - * / % on numbers (/ and % of integers
// are whole, as in C), comparisons, and, or, not, parentheses. Text and numbers never compare; overflow and division by
// zero are errors. Errors carry the offset in the text where they were seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob.h"

namespace mbb::suites {

// KnobAuto equals the string 'auto' and nothing else.
using ExpressionValue = std::variant<KnobAuto, bool, int64_t, double, std::string>;

struct ExpressionError {
  size_t offset = 0;  // bytes from the start of the text
  std::string what;
  std::string hint;
};
template <typename T>
using ExpressionResult = tl::expected<T, ExpressionError>;

class Expression {
 public:
  // `known` says whether a name may be used; its error's what and hint are passed on.
  static ExpressionResult<Expression> parse(std::string_view text,
                                            const std::function<Status(std::string_view)>& known);

  // True or false; a result that is neither is an error. `lookup` gives the value of a name that `known` accepted.
  ExpressionResult<bool> evaluate(const std::function<ExpressionValue(std::string_view)>& lookup) const;

  const std::string& text() const { return text_; }

  // A node of the tree; children by index, always smaller than the node's own.
  struct Node {
    enum class Kind {
      kLiteral,
      kName,
      kNot,
      kNegate,
      kOr,
      kAnd,
      kEqual,
      kUnequal,
      kLess,
      kLessEqual,
      kGreater,
      kGreaterEqual,
      kAdd,
      kSubtract,
      kMultiply,
      kDivide,
      kRemainder
    };
    Kind kind = Kind::kLiteral;
    size_t offset = 0;
    ExpressionValue literal{};
    std::string name{};
    size_t left = 0;
    size_t right = 0;
  };

 private:
  std::string text_;
  std::vector<Node> nodes_;
};

}  // namespace mbb::suites
