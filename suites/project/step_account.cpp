// Sums of op times and ceilings over a step's walk.
#include "suites/project/step_account.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"

namespace mbb::suites {
namespace {

using namespace trainer;  // NOLINT: this file sums over the trainer's ops

double total(const std::vector<AccountRow>& rows, double AccountRow::*field) {
  double sum = 0;
  for (const AccountRow& row : rows) sum += row.*field;
  return sum;
}

// Rates as they were measured: no fitted factor, no start of a kernel.
CostTable unfitted(CostTable table) {
  for (TermFacts& term : table.terms) term.factor = 1;
  table.kernel_us = 0;
  return table;
}

// The group of an op kind that people ask after by name; empty: none.
std::string group_of(std::string_view kind) {
  static const std::map<std::string_view, const char*> groups = {
      {"expert_bias", "routing"},       {"expert_counts", "routing"},  {"expert_load", "routing"},
      {"kept_experts", "routing"},      {"segment_counts", "routing"}, {"dispatch_plan", "routing"},
      {"receive_plan", "routing"},      {"merge_pieces", "routing"},   {"permute", "permutation"},
      {"permute_grad", "permutation"},  {"combine", "permutation"},    {"combine_grad", "permutation"},
      {"unpermute", "permutation"},     {"adamw", "optimizer"},        {"grad_scale", "optimizer"},
      {"grad_square_sum", "optimizer"},
  };
  if (kind.starts_with("router")) return "routing";
  if (kind.starts_with("grouped_gemm")) return "grouped_gemm";
  const auto found = groups.find(kind);
  return found == groups.end() ? "" : found->second;
}

std::vector<AccountRow> named(std::map<std::string, AccountRow> rows) {
  std::vector<AccountRow> list;
  for (auto& [name, row] : rows) {
    row.name = name;
    list.push_back(std::move(row));
  }
  return list;
}

std::string line(const AccountRow& row, double step_ms) {
  return fmt::format(
      "  {:<52} x{:<5} {:9.3f} ms {:5.1f} % {:8.3f} at the ceiling {:8.3f} lost {:7.1f} TFLOP/s {:6.3f} TB/s\n",
      row.name, row.count, row.ms, 100 * row.ms / step_ms, row.ceiling_ms, row.lost_ms(),
      row.ms > 0 ? row.flops / row.ms * 1e-9 : 0.0, row.ms > 0 ? row.bytes / row.ms * 1e-9 : 0.0);
}

}  // namespace

double StepAccount::ops_ms() const {
  return total(parts, &AccountRow::ms);
}
double StepAccount::ceiling_ms() const {
  return total(parts, &AccountRow::ceiling_ms);
}

double StepAccount::forward_backward_ceiling_ms() const {
  double ms = ceiling_ms();
  for (const AccountRow& row : groups)
    if (row.name == "optimizer") ms -= row.ceiling_ms;
  return ms;
}

Result<StepAccount> account_step(const CostTable& table, const Program& program, std::span<const int64_t> op_ns,
                                 double step_ms) {
  const CostTable rates = unfitted(table);
  StepAccount account;
  account.step_ms = step_ms;
  std::map<CostTerm, AccountRow> parts;
  std::map<std::string, AccountRow> kinds, groups;
  size_t at = 0;
  MB_TRY(walk(program, [&](int, const Call&, int, const Op& op) -> Status {
    if (op.kind->communicates)
      return fail(ErrorCode::kBadArgument, op.path + " communicates: a step of one rank is accounted for");
    if (at == op_ns.size())
      return fail(ErrorCode::kBadArgument, fmt::format("{} times are fewer than the step has ops", op_ns.size()));
    const OpView view{program, op};
    const OpCost cost = op_cost(rates, view, GroupPlace{});
    const double bytes = op_bytes(view), copy_ms = bytes / rates.copy_gb_s * 1e-6;
    const double ms = static_cast<double>(op_ns[at++]) * 1e-6;
    const double ceiling_ms = cost.term == CostTerm::kMemory ? copy_ms : std::max(copy_ms, cost.ns * 1e-6);
    const std::string kind = op.role == Role::kNone ? std::string(op.kind->name) : cost_key(view);
    const std::string group = group_of(op.kind->name);
    std::vector<AccountRow*> rows = {&parts[cost.term], &kinds[kind]};
    if (!group.empty()) rows.push_back(&groups[group]);
    for (AccountRow* row : rows) {
      row->count += 1, row->ms += ms, row->ceiling_ms += ceiling_ms;
      row->flops += op_flops(view), row->bytes += bytes;
    }
    return {};
  }));
  if (at != op_ns.size())
    return fail(ErrorCode::kBadArgument, fmt::format("{} times are more than the step's {} ops", op_ns.size(), at));
  for (auto& [term, row] : parts) {
    row.name = name(term);
    account.parts.push_back(std::move(row));
  }
  account.kinds = named(std::move(kinds));
  account.groups = named(std::move(groups));
  std::stable_sort(account.kinds.begin(), account.kinds.end(),
                   [](const AccountRow& a, const AccountRow& b) { return a.ms > b.ms; });
  return account;
}

std::string format(const StepAccount& account, size_t most) {
  std::string text;
  for (const AccountRow& row : account.parts) text += line(row, account.step_ms);
  text += "\n";
  for (const AccountRow& row : account.groups) text += line(row, account.step_ms);
  text += "\n";
  for (size_t i = 0; i < std::min(most, account.kinds.size()); ++i) text += line(account.kinds[i], account.step_ms);
  return text + fmt::format(
                    "  step {:.2f} ms = {:.2f} at the ceilings + {:.2f} lost in ops + {:.2f} between ops; "
                    "step efficiency {:.3f}, floor ratio {:.3f}\n",
                    account.step_ms, account.ceiling_ms(), account.ops_ms() - account.ceiling_ms(),
                    account.between_ops_ms(), account.step_efficiency(), account.floor_ratio());
}

}  // namespace mbb::suites
