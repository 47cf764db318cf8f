// Parses by descent and evaluates the tree: see expression.h.
#include "suites/matrix/expression.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

using Node = Expression::Node;
using Kind = Expression::Node::Kind;
using Value = ExpressionValue;

constexpr size_t kLengthLimit = 4096;
constexpr int kDepthLimit = 64;

tl::unexpected<ExpressionError> wrong(size_t offset, std::string what, std::string hint = {}) {
  return tl::unexpected<ExpressionError>(ExpressionError{offset, std::move(what), std::move(hint)});
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

struct Operator {
  std::string_view text;
  Kind kind;
  int level;  // binds tighter the larger
};

// Longer spellings before their beginnings.
constexpr Operator kOperators[] = {
    {"or", Kind::kOr, 1},        {"and", Kind::kAnd, 2},         {"==", Kind::kEqual, 3},   {"!=", Kind::kUnequal, 3},
    {"<=", Kind::kLessEqual, 3}, {">=", Kind::kGreaterEqual, 3}, {"<", Kind::kLess, 3},     {">", Kind::kGreater, 3},
    {"+", Kind::kAdd, 4},        {"-", Kind::kSubtract, 4},      {"*", Kind::kMultiply, 5}, {"/", Kind::kDivide, 5},
    {"%", Kind::kRemainder, 5},
};
constexpr int kNotLevel = 3;  // not a == b  is  not (a == b)
constexpr int kComparison = 3;
constexpr int kNegateLevel = 6;

class Parser {
 public:
  Parser(std::string_view text, const std::function<Status(std::string_view)>& known) : text_(text), known_(known) {}

  ExpressionResult<std::vector<Node>> run() {
    if (text_.size() > kLengthLimit) return wrong(0, fmt::format("a condition of more than {} bytes", kLengthLimit));
    auto root = binary(1, 0);
    if (!root) return tl::unexpected<ExpressionError>(root.error());
    blanks();
    if (at_ < text_.size()) return wrong(at_, fmt::format("expected an operator or the end, not '{}'", word_here()));
    return std::move(nodes_);
  }

 private:
  using Index = ExpressionResult<size_t>;

  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  // What stands here, for a message.
  std::string word_here() const {
    size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    return printable(text_.substr(at_, end > at_ ? end - at_ : 1));
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    const size_t end = at_ + word.size();
    if (is_letter(word[0]) && end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) return false;
    at_ = end;
    return true;
  }

  std::optional<Operator> peek_operator(int level) {
    blanks();
    const size_t start = at_;
    for (const Operator& op : kOperators) {
      if (!take_word(op.text)) continue;
      at_ = start;
      if (op.level >= level) return op;
      return std::nullopt;
    }
    return std::nullopt;
  }

  size_t add(Node node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }

  Index binary(int level, int depth) {
    if (depth > kDepthLimit) return wrong(at_, "a condition nested too deeply");
    auto left = unary(level, depth);
    if (!left) return left;
    for (auto op = peek_operator(level); op; op = peek_operator(level)) {
      const size_t offset = at_;
      at_ += op->text.size();
      auto right = binary(op->level + 1, depth + 1);
      if (!right) return right;
      left = add({.kind = op->kind, .offset = offset, .left = *left, .right = *right});
      const auto next = op->level == kComparison ? peek_operator(kComparison) : std::nullopt;
      if (next && next->level == kComparison)
        return wrong(at_, "comparisons do not chain", "join two of them with 'and'");
    }
    return left;
  }

  Index unary(int level, int depth) {
    blanks();
    const size_t offset = at_;
    if (take_word("not")) {
      if (level > kNotLevel) return wrong(offset, "'not' needs parentheses here", "write (not ...)");
      auto operand = binary(kNotLevel, depth + 1);
      return operand ? Index(add({.kind = Kind::kNot, .offset = offset, .left = *operand})) : operand;
    }
    if (take_word("-")) {
      auto operand = binary(kNegateLevel, depth + 1);
      return operand ? Index(add({.kind = Kind::kNegate, .offset = offset, .left = *operand})) : operand;
    }
    return primary(depth);
  }

  Index primary(int depth) {
    if (at_ >= text_.size()) return wrong(at_, "the condition ends where a value is expected");
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      auto inner = binary(1, depth + 1);
      if (!inner) return inner;
      blanks();
      if (!take_word(")")) return wrong(at_, "expected ')'");
      return inner;
    }
    if (c == '\'' || c == '"') return quoted(c);
    if (is_digit(c)) return number();
    if (is_letter(c)) return name();
    return wrong(at_, fmt::format("expected a value, not '{}'", word_here()));
  }

  Index quoted(char quote) {
    const size_t offset = at_;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return wrong(offset, "a string that does not end");
    const std::string content(text_.substr(offset + 1, end - offset - 1));
    at_ = end + 1;
    return add({.kind = Kind::kLiteral, .offset = offset, .literal = content});
  }

  Index number() {
    const size_t offset = at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool exponent_sign =
          (c == '-' || c == '+') && at_ > offset && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
      if (!is_digit(c) && !is_letter(c) && c != '.' && !exponent_sign) break;
      ++at_;
    }
    const std::string_view digits = text_.substr(offset, at_ - offset);
    if (const auto whole = parse_int(digits)) return add({.kind = Kind::kLiteral, .offset = offset, .literal = *whole});
    if (const auto real = parse_double(digits))
      return add({.kind = Kind::kLiteral, .offset = offset, .literal = *real});
    return wrong(offset, fmt::format("'{}' is no number", printable(digits)));
  }

  Index name() {
    const size_t offset = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.')) ++at_;
    const std::string word(text_.substr(offset, at_ - offset));
    if (word == "true" || word == "false")
      return add({.kind = Kind::kLiteral, .offset = offset, .literal = word == "true"});
    if (word == "and" || word == "or") return wrong(offset, fmt::format("expected a value, not '{}'", word));
    if (const Status status = known_(word); !status) return wrong(offset, status.error().what, status.error().hint);
    return add({.kind = Kind::kName, .offset = offset, .name = word});
  }

  std::string_view text_;
  const std::function<Status(std::string_view)>& known_;
  size_t at_ = 0;
  std::vector<Node> nodes_;
};

const char* kind_of(const Value& value) {
  if (std::holds_alternative<KnobAuto>(value)) return "auto";
  if (std::holds_alternative<bool>(value)) return "true or false";
  if (std::holds_alternative<std::string>(value)) return "text";
  return "a number";
}

bool is_number(const Value& value) {
  return std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
}

double as_double(const Value& value) {
  const auto* whole = std::get_if<int64_t>(&value);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
}

class Evaluator {
 public:
  Evaluator(const std::vector<Node>& nodes, const std::function<Value(std::string_view)>& lookup)
      : nodes_(nodes), lookup_(lookup) {}

  ExpressionResult<bool> condition(size_t index) const {
    const auto value = eval(index);
    if (!value) return tl::unexpected<ExpressionError>(value.error());
    if (const auto* flag = std::get_if<bool>(&*value)) return *flag;
    return wrong(nodes_[index].offset, fmt::format("expected a condition, not {}", kind_of(*value)),
                 "compare it with something: tp > 1");
  }

 private:
  using Evaluated = ExpressionResult<Value>;

  Evaluated eval(size_t index) const {
    const Node& node = nodes_[index];
    switch (node.kind) {
      case Kind::kLiteral: return node.literal;
      case Kind::kName: return lookup_(node.name);
      case Kind::kOr:
      case Kind::kAnd: return logic(node);
      case Kind::kNot: {
        const auto operand = condition(node.left);
        return operand ? Evaluated(!*operand) : tl::unexpected<ExpressionError>(operand.error());
      }
      case Kind::kNegate: return negate(node);
      default: break;
    }
    const auto left = eval(node.left);
    if (!left) return left;
    const auto right = eval(node.right);
    if (!right) return right;
    if (node.kind == Kind::kEqual || node.kind == Kind::kUnequal) return equality(node, *left, *right);
    if (!is_number(*left) || !is_number(*right)) {
      return wrong(node.offset, fmt::format("expected two numbers, not {} and {}", kind_of(*left), kind_of(*right)));
    }
    if (std::holds_alternative<int64_t>(*left) && std::holds_alternative<int64_t>(*right))
      return whole(node, std::get<int64_t>(*left), std::get<int64_t>(*right));
    return real(node, as_double(*left), as_double(*right));
  }

  Evaluated logic(const Node& node) const {
    const auto left = condition(node.left);
    if (!left) return tl::unexpected<ExpressionError>(left.error());
    if (*left == (node.kind == Kind::kOr)) return *left;  // decided
    const auto right = condition(node.right);
    return right ? Evaluated(*right) : tl::unexpected<ExpressionError>(right.error());
  }

  Evaluated negate(const Node& node) const {
    const auto operand = eval(node.left);
    if (!operand) return operand;
    if (!is_number(*operand))
      return wrong(node.offset, fmt::format("expected a number after '-', not {}", kind_of(*operand)));
    if (const auto* real_value = std::get_if<double>(&*operand)) return -*real_value;
    return whole(node, 0, std::get<int64_t>(*operand));
  }

  Evaluated equality(const Node& node, const Value& left, const Value& right) const {
    const auto is_auto = [](const Value& v) { return std::holds_alternative<KnobAuto>(v); };
    const auto says_auto = [&](const Value& v) { return is_auto(v) || v == Value(std::string("auto")); };
    bool equal = false;
    if (is_auto(left) || is_auto(right)) {
      equal = says_auto(left) && says_auto(right);
    } else if (is_number(left) && is_number(right)) {
      equal = left.index() == right.index() ? left == right : as_double(left) == as_double(right);
    } else if (left.index() == right.index()) {
      equal = left == right;
    } else if (left != Value(std::string("auto")) && right != Value(std::string("auto"))) {
      return wrong(node.offset, fmt::format("{} and {} never compare", kind_of(left), kind_of(right)));
    }
    return equal == (node.kind == Kind::kEqual);
  }

  template <typename T>
  static std::optional<bool> compared(Kind kind, T left, T right) {
    switch (kind) {
      case Kind::kLess: return left < right;
      case Kind::kLessEqual: return left <= right;
      case Kind::kGreater: return left > right;
      case Kind::kGreaterEqual: return left >= right;
      default: return std::nullopt;
    }
  }

  static Evaluated whole(const Node& node, int64_t left, int64_t right) {
    if (const auto flag = compared(node.kind, left, right)) return *flag;
    int64_t result = 0;
    bool overflow = false;
    switch (node.kind) {
      case Kind::kAdd: overflow = __builtin_add_overflow(left, right, &result); break;
      case Kind::kNegate:
      case Kind::kSubtract: overflow = __builtin_sub_overflow(left, right, &result); break;
      case Kind::kMultiply: overflow = __builtin_mul_overflow(left, right, &result); break;
      default:
        if (right == 0) return wrong(node.offset, "division by zero");
        if (right == -1) {  // INT64_MIN / -1 traps
          overflow = node.kind == Kind::kDivide && __builtin_sub_overflow(int64_t{0}, left, &result);
        } else {
          result = node.kind == Kind::kDivide ? left / right : left % right;
        }
    }
    if (overflow) return wrong(node.offset, "a number too large for 64 bits");
    return result;
  }

  static Evaluated real(const Node& node, double left, double right) {
    if (const auto flag = compared(node.kind, left, right)) return *flag;
    switch (node.kind) {
      case Kind::kAdd: return left + right;
      case Kind::kSubtract: return left - right;
      case Kind::kMultiply: return left * right;
      default:
        if (right == 0) return wrong(node.offset, "division by zero");
        return node.kind == Kind::kDivide ? left / right : std::fmod(left, right);
    }
  }

  const std::vector<Node>& nodes_;
  const std::function<Value(std::string_view)>& lookup_;
};

}  // namespace

ExpressionResult<Expression> Expression::parse(std::string_view text,
                                               const std::function<Status(std::string_view)>& known) {
  auto nodes = Parser(text, known).run();
  if (!nodes) return tl::unexpected<ExpressionError>(nodes.error());
  Expression expression;
  expression.text_ = std::string(text);
  expression.nodes_ = std::move(*nodes);
  return expression;
}

ExpressionResult<bool> Expression::evaluate(const std::function<ExpressionValue(std::string_view)>& lookup) const {
  return Evaluator(nodes_, lookup).condition(nodes_.size() - 1);
}

}  // namespace mbb::suites
