// Reads the stored programs and sets their ops side by side.
#include "analysis/report/program_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/report/op_groups.h"
#include "profiler/base/text.h"

namespace mbb::analysis {

namespace {

using Json = nlohmann::json;
using Ops = std::map<std::string, ProgramOp>;

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& list(const Json& object, const char* key) {
  static const Json kNone = Json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kNone;
}

void add_class(const Json& rank_class, Ops& ops, std::map<std::string, std::set<std::string>>& streams) {
  const auto summary = rank_class.find("summary");
  const double gpus = summary != rank_class.end() ? std::max(1.0, number(*summary, "gpus")) : 1.0;
  for (const Json& segment : list(rank_class, "segments"))
    for (const Json& op : list(segment, "ops")) {
      const std::string path = grouped_path(text(op, "path"));
      if (path.empty()) continue;
      const double runs = number(op, "runs") * gpus;
      ProgramOp& sum = ops[path];
      sum.kind = text(op, "kind");
      sum.runs += runs;
      sum.flops += runs * number(op, "flops");
      sum.bytes += runs * number(op, "bytes");
      sum.wire_bytes += runs * number(op, "wire_bytes");
      streams[path].insert(text(op, "stream"));
    }
}

Result<Ops> ops_of(const std::string& program) {
  const Json json = Json::parse(program, nullptr, false);
  if (json.is_discarded() || !json.is_object() || text(json, "format") != "mbbench-program")
    return fail(ErrorCode::kBadFile, "the stored program is no program.json of mbbench");
  Ops ops;
  std::map<std::string, std::set<std::string>> streams;
  for (const Json& rank_class : list(json, "rank_classes")) add_class(rank_class, ops, streams);
  for (auto& [path, op] : ops) op.streams = join({streams[path].begin(), streams[path].end()}, ", ");
  return ops;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

bool equal(const ProgramOp& a, const ProgramOp& b) {
  return a.kind == b.kind && a.streams == b.streams && near(a.runs, b.runs) && near(a.flops, b.flops) &&
         near(a.bytes, b.bytes) && near(a.wire_bytes, b.wire_bytes);
}

// "4" where both sides are the same, else "4 -> 8"; "-" on a side that lacks the op.
template <typename Format>
Value change(const OpDifference& op, double ProgramOp::*of, const Format& format) {
  const double from = op.before.*of, to = op.after.*of;
  const auto side = [&](bool there, double value) { return there ? format(value) : std::string("-"); };
  if (op.in_old && op.in_new && near(from, to)) return {.text = format(to), .number = to - from};
  return {.text = side(op.in_old, from) + " -> " + side(op.in_new, to), .number = to - from};
}

}  // namespace

Result<ProgramDiff> program_diff(const std::string& before, const std::string& after) {
  MB_ASSIGN(const Ops old_ops, ops_of(before));
  MB_ASSIGN(const Ops new_ops, ops_of(after));
  std::map<std::string, OpDifference> by_path;
  for (const auto& [path, op] : old_ops) by_path[path] = {path, true, false, op, {}};
  for (const auto& [path, op] : new_ops) {
    OpDifference& one = by_path[path];
    one.path = path;
    one.in_new = true;
    one.after = op;
  }
  ProgramDiff diff;
  for (auto& [path, op] : by_path) {
    if (op.in_old && op.in_new && equal(op.before, op.after))
      ++diff.equal;
    else
      diff.ops.push_back(std::move(op));
  }
  const auto moved = [](const OpDifference& op) { return std::abs(op.after.bytes - op.before.bytes); };
  std::stable_sort(diff.ops.begin(), diff.ops.end(), [&](const OpDifference& a, const OpDifference& b) {
    const bool a_one = a.in_old != a.in_new, b_one = b.in_old != b.in_new;
    return a_one != b_one ? a_one : moved(a) > moved(b);
  });
  return diff;
}

Table program_table(const ProgramDiff& diff, const std::string& cell, size_t rows) {
  Table table{
      .id = "program", .title = cell + ": what differs in the step program", .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"op", "op"},
                   {"kind", "kind"},
                   {"stream", "stream"},
                   {"runs", "runs a step", Align::kRight},
                   {"flops", "FLOPs", Align::kRight},
                   {"bytes", "bytes", Align::kRight},
                   {"wire", "sent", Align::kRight}};
  const auto both = [](const OpDifference& op, std::string ProgramOp::*of) {
    if (!op.in_old) return op.after.*of;
    if (!op.in_new || op.before.*of == op.after.*of) return op.before.*of;
    return op.before.*of + " -> " + op.after.*of;
  };
  for (const OpDifference& op : diff.ops) {
    if (table.rows.size() == rows) break;
    const std::string mark = !op.in_old ? "+ " : !op.in_new ? "- " : "  ";
    table.rows.push_back(
        {{{.text = mark + op.path},
          {.text = both(op, &ProgramOp::kind)},
          {.text = both(op, &ProgramOp::streams)},
          change(op, &ProgramOp::runs, [](double v) { return fmt::format("{:.0f}", v); }),
          change(op, &ProgramOp::flops, [](double v) { return v > 0 ? format_count(v, "F") : std::string("0"); }),
          change(op, &ProgramOp::bytes, [](double v) { return format_bytes_decimal(v); }),
          change(op, &ProgramOp::wire_bytes, [](double v) { return format_bytes_decimal(v); })}});
  }
  if (diff.ops.size() > rows) table.footer.push_back(fmt::format("{} more differ.", diff.ops.size() - rows));
  table.footer.push_back(fmt::format("{} ops differ, {} are equal; sums over a step and all GPUs, + new, - gone.",
                                     diff.ops.size(), diff.equal));
  return table;
}

}  // namespace mbb::analysis
