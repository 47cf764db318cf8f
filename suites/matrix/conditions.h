// Conditions over a cell, as `where` and `when` of a suite hold them: knobs by any spelling, `dp` and `cell`.
#pragma once

#include <string_view>

#include "profiler/base/error.h"
#include "suites/matrix/expression.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

struct Cell;

// An expression where it stands in its file, which must outlive it.
struct Condition {
  Expression expression;
  const TomlFile* file = nullptr;
  const TomlNode* node = nullptr;
};

// `what` it is called in errors: "'where'".
Result<Condition> read_condition(const TomlFile& file, const TomlNode& node, std::string_view what);
Result<bool> holds(const Condition& condition, const Cell& cell, std::string_view what);

}  // namespace mbb::suites
