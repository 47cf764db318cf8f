// Layouts that context parallelism needs: queries and key-values of packed qkv apart, heads as blocks of rows that an
// all-to-all can send, chunks of the sequence in order.
#include <fmt/core.h>

#include <numeric>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

int64_t width(const ColumnAttrs& a) {
  return std::accumulate(a.parts.begin(), a.parts.end(), int64_t{0});
}

// in: x [.., sum of parts]; out: one [.., part] each.
Result<std::vector<TensorSpec>> split_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ColumnAttrs>(attrs);
  if (in[0]->shape.cols() != width(a))
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} has not the {} columns of its parts", in[0]->shape.str(), width(a)));
  std::vector<TensorSpec> out;
  for (int64_t part : a.parts) out.push_back({in[0]->shape.with_last(part), in[0]->dtype});
  return out;
}

// The other way.
Result<std::vector<TensorSpec>> join_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ColumnAttrs>(attrs);
  if (in.size() != a.parts.size())
    return fail(ErrorCode::kBadArgument, fmt::format("{} matrices for {} parts", in.size(), a.parts.size()));
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i]->shape.cols() != a.parts[i] || in[i]->shape.rows() != in[0]->shape.rows())
      return fail(ErrorCode::kBadArgument,
                  fmt::format("part {} is {}, must have {} columns", i, in[i]->shape.str(), a.parts[i]));
  return std::vector<TensorSpec>{{in[0]->shape.with_last(width(a)), in[0]->dtype}};
}

void split_grad(GradContext& c) {
  std::vector<TensorId> grads;
  for (size_t i = 0; i < c.op().out.size(); ++i) {
    grads.push_back(c.grad(i));
    MB_CHECK(grads.back() != kNoTensor, "a part of " + c.op().path + " has no gradient");
  }
  c.emit_grad(0, kJoinColumns, "bwd", grads, c.op().attrs);
}

void join_grad(GradContext& c) {
  std::vector<TensorId> out;
  for (size_t i = 0; i < c.op().in.size(); ++i) out.push_back(c.declare_grad(i, fmt::format("bwd.{}", i)));
  c.emit_grad(0, kSplitColumns, "bwd", {c.grad()}, c.op().attrs, {.out = out});
  for (size_t i = 1; i < out.size(); ++i) c.set_grad(i, out[i]);
}

// in: x [n, .., columns]; out: [pieces·n, .., columns / pieces].
Result<std::vector<TensorSpec>> to_rows_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ColumnAttrs>(attrs);
  for (int64_t part : a.parts)
    if (part % a.pieces != 0 || in[0]->shape.cols() != width(a))
      return fail(ErrorCode::kBadArgument,
                  fmt::format("{} pieces of a part of {} columns in {}", a.pieces, part, in[0]->shape.str()));
  Shape out = in[0]->shape.with_last(width(a) / a.pieces);
  out[0] *= a.pieces;
  return std::vector<TensorSpec>{{out, in[0]->dtype}};
}

// The other way.
Result<std::vector<TensorSpec>> to_columns_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<ColumnAttrs>(attrs);
  if (in[0]->shape.cols() * a.pieces != width(a) || in[0]->shape[0] % a.pieces != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} is not {} blocks of {} columns", in[0]->shape.str(), a.pieces, width(a)));
  Shape out = in[0]->shape.with_last(width(a));
  out[0] /= a.pieces;
  return std::vector<TensorSpec>{{out, in[0]->dtype}};
}

void to_rows_grad(GradContext& c) {
  c.emit_grad(0, kRowsToColumns, "bwd", {c.grad()}, c.op().attrs);
}
void to_columns_grad(GradContext& c) {
  c.emit_grad(0, kColumnsToRows, "bwd", {c.grad()}, c.op().attrs);
}

// in: one tensor or several, one behind the other; out: their runs of rows in another order.
Result<std::vector<TensorSpec>> reorder_shape(Inputs in, const Attrs& attrs) {
  const auto& a = std::get<RunAttrs>(attrs);
  const int64_t runs = a.ring > 0 ? a.ring : static_cast<int64_t>(a.order.size());
  Shape all = in[0]->shape;
  all[0] *= static_cast<int64_t>(in.size());
  if (all[0] != a.run * runs || in[0]->shape[0] % a.run != 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} is not {} runs of {} rows", all.str(), runs, a.run));
  return std::vector<TensorSpec>{{all, in[0]->dtype}};
}

void reorder_grad(GradContext& c) {
  RunAttrs back = c.attrs<RunAttrs>();
  MB_CHECK(back.ring == 0 && c.op().in.size() == 1,
           "runs out of a ring are put in order by a pass, which nothing differentiates");
  const std::vector<int64_t> order = back.order;
  for (size_t i = 0; i < order.size(); ++i) back.order[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  c.emit_grad(0, kReorderRuns, "bwd", {c.grad()}, back);
}

void to_rows_cases(std::vector<OpCase>& all) {
  all.push_back({"columns_to_rows/qkv", &kColumnsToRows, {{{3, 2, 12}}}, ColumnAttrs{{8, 4}, 2}});
}
void to_columns_cases(std::vector<OpCase>& all) {
  all.push_back({"rows_to_columns/qkv", &kRowsToColumns, {{{6, 2, 6}}}, ColumnAttrs{{8, 4}, 2}});
}
void reorder_cases(std::vector<OpCase>& all) {
  all.push_back({"reorder_runs/four", &kReorderRuns, {{{8, 2, 3}}}, RunAttrs{2, {0, 2, 3, 1}}});
}

void split_cases(std::vector<OpCase>& all) {
  all.push_back({"split_columns/three", &kSplitColumns, {{{3, 2, 9}}}, ColumnAttrs{{4, 2, 3}}, false});
}
void join_cases(std::vector<OpCase>& all) {
  all.push_back({"join_columns/two", &kJoinColumns, {{{3, 2, 4}}, {{3, 2, 5}}}, ColumnAttrs{{4, 5}}});
}

}  // namespace

const OpKind kSplitColumns{.name = "split_columns",
                           .shape = split_shape,
                           .grad = split_grad,
                           .cpu = cpu_split_columns,
                           .cuda = "split_columns",
                           .cases = split_cases};
const OpKind kJoinColumns{.name = "join_columns",
                          .shape = join_shape,
                          .grad = join_grad,
                          .cpu = cpu_join_columns,
                          .cuda = "join_columns",
                          .cases = join_cases};
const OpKind kColumnsToRows{.name = "columns_to_rows",
                            .shape = to_rows_shape,
                            .grad = to_rows_grad,
                            .cpu = cpu_columns_to_rows,
                            .cuda = "columns_to_rows",
                            .cases = to_rows_cases};
const OpKind kRowsToColumns{.name = "rows_to_columns",
                            .shape = to_columns_shape,
                            .grad = to_columns_grad,
                            .cpu = cpu_rows_to_columns,
                            .cuda = "rows_to_columns",
                            .cases = to_columns_cases};
const OpKind kReorderRuns{.name = "reorder_runs",
                          .shape = reorder_shape,
                          .grad = reorder_grad,
                          .cpu = cpu_reorder_runs,
                          .cuda = "reorder_runs",
                          .cases = reorder_cases};

}  // namespace mbb::trainer
