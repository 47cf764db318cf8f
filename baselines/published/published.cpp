// Training speeds that others have published: reading the table and finding rows in it.
#include "baselines/published/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "profiler/base/check.h"
#include "profiler/base/csv.h"

namespace mbb::baselines {

// training_speeds.csv as text; the build makes its definition.
extern const std::string_view kTrainingSpeeds;

namespace {

struct TextColumn {
  const char* name;
  std::string PublishedRow::*member;
};
constexpr TextColumn kTexts[] = {
    {"source", &PublishedRow::source},
    {"date", &PublishedRow::date},
    {"release", &PublishedRow::release},
    {"hardware", &PublishedRow::hardware},
    {"model", &PublishedRow::model},
    {"model_id", &PublishedRow::model_id},
    {"variant", &PublishedRow::variant},
    {"precision", &PublishedRow::precision},
    {"precision_published", &PublishedRow::precision_published},
    {"sharding", &PublishedRow::sharding},
    {"recompute", &PublishedRow::recompute},
    {"attention_flops", &PublishedRow::attention_flops},
    {"note", &PublishedRow::note},
};

struct CountColumn {
  const char* name;
  std::int64_t PublishedRow::*member;
};
constexpr CountColumn kCounts[] = {
    {"gpus", &PublishedRow::gpus},
    {"global_batch", &PublishedRow::global_batch},
    {"micro_batch", &PublishedRow::micro_batch},
    {"seq_length", &PublishedRow::seq_length},
    {"tp", &PublishedRow::tp},
    {"pp", &PublishedRow::pp},
    {"cp", &PublishedRow::cp},
    {"vpp", &PublishedRow::vpp},
    {"ep", &PublishedRow::ep},
    {"etp", &PublishedRow::etp},
};

struct FigureColumn {
  const char* name;
  double PublishedRow::*member;
};
constexpr FigureColumn kFigures[] = {
    {"tokens_per_s_per_gpu", &PublishedRow::tokens_per_s_per_gpu},
    {"tflops_per_gpu", &PublishedRow::tflops_per_gpu},
    {"mfu_percent", &PublishedRow::mfu_percent},
    {"causal_tflops_per_gpu", &PublishedRow::causal_tflops_per_gpu},
};

Result<int> column_of(const CsvTable& table, const char* name) {
  const int column = table.column(name);
  if (column >= 0) return column;
  return fail(ErrorCode::kBadFile, fmt::format("line 1: the column {} is missing", name));
}

bool same_precision(const std::string& asked, const std::string& has) {
  if (asked.empty() || asked == has) return true;
  return asked == "fp8" && has.find("fp8") != std::string::npos;
}

}  // namespace

Result<std::vector<PublishedRow>> parse_published(std::string_view csv) {
  MB_ASSIGN(const CsvTable table, CsvTable::parse(csv));
  std::vector<PublishedRow> rows(table.rows());
  for (const TextColumn& text : kTexts) {
    MB_ASSIGN(const int column, column_of(table, text.name));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*text.member = table.text(i, column);
  }
  for (const CountColumn& count : kCounts) {
    MB_ASSIGN(const int column, column_of(table, count.name));
    for (std::size_t i = 0; i < rows.size(); ++i) MB_TRY(table.read(i, column, rows[i].*count.member));
  }
  for (const FigureColumn& figure : kFigures) {
    MB_ASSIGN(const int column, column_of(table, figure.name));
    for (std::size_t i = 0; i < rows.size(); ++i) MB_TRY(table.read(i, column, rows[i].*figure.member));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].source.empty() || rows[i].model.empty() || rows[i].hardware.empty()) {
      return fail(ErrorCode::kBadFile, fmt::format("line {}: source, model or hardware is empty", table.line(i)));
    }
  }
  return rows;
}

const std::vector<PublishedRow>& published_rows() {
  static const std::vector<PublishedRow> rows = [] {
    auto parsed = parse_published(kTrainingSpeeds);
    MB_CHECK(parsed.has_value(), "the built-in table: " + parsed.error().what);
    return std::move(*parsed);
  }();
  return rows;
}

std::vector<PublishedRow> find_published(const PublishedQuery& query) {
  std::vector<PublishedRow> found;
  for (const PublishedRow& row : published_rows()) {
    const bool fits = (query.model_id.empty() || query.model_id == row.model_id) &&
                      (query.hardware.empty() || query.hardware == row.hardware) &&
                      (query.gpus == 0 || query.gpus == row.gpus) && same_precision(query.precision, row.precision) &&
                      (query.with_variants || row.variant.empty());
    if (fits) found.push_back(row);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const PublishedRow& a, const PublishedRow& b) { return a.date > b.date; });
  return found;
}

}  // namespace mbb::baselines
