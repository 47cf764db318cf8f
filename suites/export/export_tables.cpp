// CSV tables and the JSON document.
#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "baselines/store/record_text.h"
#include "profiler/base/csv.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/export.h"

namespace mbb::suites {
namespace {

std::string number(double value) {
  return value == value ? format_exact(value) : "";
}

// One CSV row.
void row(std::string& out, const std::vector<std::string>& fields) {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out += ',';
    append_csv_field(out, fields[i]);
  }
  out += '\n';
}

// Appends a launch's table with cell and launch before each row and the cell's class behind it; the header comes once.
void append_table(std::string& out, const std::string& table, const baselines::Cell& cell, int launch) {
  bool header = true;
  for (const std::string_view line : split(table, '\n')) {
    if (line.empty()) continue;
    if (header && out.empty()) out = "cell,launch," + std::string(line) + ",class\n";
    if (!header) {
      append_csv_field(out, cell.name);
      out += fmt::format(",{},{},", launch, line);
      append_csv_field(out, class_label(cell));
      out += '\n';
    }
    header = false;
  }
}

void append_memory(std::string& out, const std::string& cell, const std::string& launch,
                   const std::vector<baselines::MemoryMap>& maps) {
  for (const baselines::MemoryMap& map : maps) {
    for (const auto& c : map.categories)
      row(out, {cell, launch, map.rank_class, "category", c.category, c.category, "", std::to_string(c.planned_bytes),
                std::to_string(c.measured_bytes), "", "", "", ""});
    for (const auto& t : map.tensors.empty() ? map.live_at_peak : map.tensors)
      row(out, {cell, launch, map.rank_class, map.tensors.empty() ? "live at peak" : "tensor", t.path, t.category,
                t.offset >= 0 ? std::to_string(t.offset) : "", std::to_string(t.bytes), "", t.first_writer,
                t.last_reader, std::to_string(t.from), std::to_string(t.to)});
  }
}

// Time of every (kernel, op) over the traced steps.
Status append_kernels(std::string& out, const ExportSource& source, const baselines::Cell& cell,
                      const baselines::Launch& launch) {
  for (const std::string& name : launch.trace_files) {
    MB_ASSIGN(const profiler::Trace trace,
              profiler::read_trace(source.reader.launch_file(cell.name, launch.index, name)));
    struct Sum {
      int64_t calls = 0, ns = 0;
    };
    std::map<std::tuple<int32_t, std::string, std::string, std::string>, Sum> sums;
    for (const profiler::Span& span : trace.spans) {
      if (span.kind == profiler::SpanKind::kHost || span.step == profiler::kNoStep) continue;
      Sum& sum = sums[{trace.rank_of(span), trace.text(span.name), trace.text(span.op), profiler::name(span.kind)}];
      ++sum.calls;
      sum.ns += span.end_ns - span.start_ns;
    }
    for (const auto& [key, sum] : sums) {
      const auto& [rank, kernel, op, kind] = key;
      row(out, {cell.name, std::to_string(launch.index), std::to_string(rank), kernel, op, kind,
                std::to_string(sum.calls), std::to_string(sum.ns), class_label(cell)});
    }
  }
  return {};
}

Result<nlohmann::json> table_json(const std::string& text) {
  nlohmann::json rows = nlohmann::json::array();
  MB_ASSIGN(const CsvTable table, CsvTable::parse(text));
  for (size_t r = 0; r < table.rows(); ++r) {
    nlohmann::json one;
    for (size_t c = 0; c < table.columns().size(); ++c) {
      const std::string& field = table.text(r, static_cast<int>(c));
      if (const auto whole = parse_int(field))
        one[table.columns()[c]] = *whole;
      else if (const auto real = parse_double(field))
        one[table.columns()[c]] = *real;
      else
        one[table.columns()[c]] = field;
    }
    rows.push_back(std::move(one));
  }
  return rows;
}

Result<nlohmann::json> launch_json(const baselines::Launch& launch) {
  nlohmann::json one = nlohmann::json::parse(baselines::launch_text(launch));
  MB_ASSIGN(one["steps"], table_json(baselines::steps_text(launch.steps)));
  MB_ASSIGN(one["ops"], table_json(baselines::ops_text(launch.ops)));
  one["memory"] = nlohmann::json::parse(baselines::memory_text(launch.memory))["maps"];
  return one;
}

}  // namespace

Result<std::vector<std::string>> export_csv(const ExportSource& source, const std::filesystem::path& to) {
  std::string metrics, steps, ops, memory, kernels;
  row(metrics, {"cell", "class", "status", "metric", "value", "low", "high", "unit", "launches", "interval"});
  row(memory, {"cell", "launch", "rank_class", "row", "path", "category", "offset", "bytes_planned_or_own",
               "bytes_measured", "first_writer", "last_reader", "from", "to"});
  row(kernels, {"cell", "launch", "rank", "kernel", "op", "kind", "calls", "total_ns", "class"});
  const std::string no_kernels = kernels;
  if (source.run.cells.empty())
    return fail(ErrorCode::kNotFound, fmt::format("run {} holds no finished cell", source.run.id),
                "finish it with --resume; its cells are rows once they are done");
  for (const baselines::Cell& cell : source.run.cells) {
    if (!source.cell.empty() && cell.name != source.cell) continue;
    for (const baselines::Metric& m : cell.metrics)
      row(metrics, {cell.name, class_label(cell), name(cell.status), m.name, number(m.value), number(m.low),
                    number(m.high), m.unit, std::to_string(m.launches), m.interval});
    append_memory(memory, cell.name, "plan", cell.memory);
    for (const baselines::Launch& launch : cell.launches) {
      append_table(steps, baselines::steps_text(launch.steps), cell, launch.index);
      append_table(ops, baselines::ops_text(launch.ops), cell, launch.index);
      append_memory(memory, cell.name, std::to_string(launch.index), launch.memory);
      MB_TRY(append_kernels(kernels, source, cell, launch));
    }
  }
  MB_TRY(make_dirs(to));
  std::vector<std::string> files;
  const auto write = [&](const char* name, const std::string& text) -> Status {
    const std::string file = to / name;
    MB_TRY(write_file(file, text));
    files.push_back(file);
    return {};
  };
  MB_TRY(write("metrics.csv", metrics));
  if (!steps.empty()) MB_TRY(write("steps.csv", steps));
  if (!ops.empty()) MB_TRY(write("ops.csv", ops));
  MB_TRY(write("memory.csv", memory));
  if (kernels != no_kernels) MB_TRY(write("kernels.csv", kernels));
  return files;
}

Result<std::vector<std::string>> export_json(const ExportSource& source, const std::filesystem::path& to) {
  nlohmann::json document;
  document["run"] = nlohmann::json::parse(baselines::run_text(source.run, baselines::kBundleVersion));
  document["cells"] = nlohmann::json::array();
  for (const baselines::Cell& cell : source.run.cells) {
    if (!source.cell.empty() && cell.name != source.cell) continue;
    nlohmann::json one = {{"config", nlohmann::json::parse(baselines::cell_config_text(cell))},
                          {"result", nlohmann::json::parse(baselines::cell_result_text(cell))},
                          {"launches", nlohmann::json::array()}};
    for (const baselines::Launch& launch : cell.launches) {
      MB_ASSIGN(nlohmann::json launched, launch_json(launch));
      one["launches"].push_back(std::move(launched));
    }
    document["cells"].push_back(std::move(one));
  }
  if (to.has_parent_path()) MB_TRY(make_dirs(to.parent_path()));
  MB_TRY(write_file(to, document.dump(1) + "\n"));
  return std::vector<std::string>{to};
}

}  // namespace mbb::suites
