// Evaluates conditions over the knobs of a cell.
#include "suites/matrix/conditions.h"

#include <fmt/format.h>

#include <utility>

#include "suites/matrix/suite.h"
#include "suites/matrix/toml_fields.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

int64_t data_parallel_size(const trainer::ParallelConfig& parallel) {
  const int64_t replica =
      parallel.tensor_model_parallel_size * parallel.context_parallel_size * parallel.pipeline_model_parallel_size;
  return parallel.gpus == 0 ? 1 : parallel.gpus / replica;
}

ExpressionValue value_of(std::string_view name, const Cell& cell) {
  if (name == "cell") return cell.name;
  if (name == "dp") return data_parallel_size(cell.config.parallel);
  const auto knob = trainer::knobs().find(name);
  MB_CHECK(knob.has_value(), fmt::format("condition with the unknown name {} was not refused", name));
  const KnobData data = (*knob)->get(&cell.config);
  if (const auto* flag = std::get_if<bool>(&data)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&data)) return *integer;
  if (const auto* number = std::get_if<double>(&data)) return *number;
  if (std::holds_alternative<KnobAuto>(data)) return KnobAuto{};
  return knob_text(data);
}

Status known_name(std::string_view name) {
  if (name == "cell" || name == "dp") return {};
  auto knob = trainer::knobs().find(name);
  if (!knob) return tl::unexpected<Error>(std::move(knob.error()));
  return {};
}

tl::unexpected<Error> error_in(const TomlFile& file, const TomlNode& node, std::string_view what,
                               const ExpressionError& error) {
  return file.error(file.inside(node, error.offset), fmt::format("in {}: {}", what, error.what), error.hint);
}

}  // namespace

Result<Condition> read_condition(const TomlFile& file, const TomlNode& node, std::string_view what) {
  MB_TRY(expect(file, node, TomlKind::kString, what));
  auto parsed = Expression::parse(node.text, known_name);
  if (!parsed) return error_in(file, node, what, parsed.error());
  return Condition{std::move(*parsed), &file, &node};
}

Result<bool> holds(const Condition& condition, const Cell& cell, std::string_view what) {
  const auto value = condition.expression.evaluate([&](std::string_view name) { return value_of(name, cell); });
  if (value) return *value;
  return error_in(*condition.file, *condition.node, fmt::format("{}, for cell '{}'", what, cell.name), value.error());
}

}  // namespace mbb::suites
