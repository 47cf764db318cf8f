// Accounts of a step: sums close, lost time is found where it was put, bad times are refused.
#include "suites/project/step_account.h"

#include <gtest/gtest.h>

#include "suites/project/projector.h"
#include "trainer/program/walk.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

using namespace trainer;  // NOLINT: this file builds a program of the trainer's

struct Built {
  StepPrograms programs;
  CostTable table;
  std::vector<int64_t> ns;  // 1 us an op
};

Built built(const std::string& model) {
  Config config;
  config.model.name = model;
  config.model.num_layers = 2;
  config.train.seq_length = 1024;
  config.train.global_batch_size = 2;
  config.precision.recipe = Recipe::kBf16;
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  auto table = find_costs("h100-sxm");
  EXPECT_TRUE(table.has_value());
  Built b{std::move(*programs), std::move(*table), {}};
  walk(b.programs.programs[0], [&](int, const Call&, int, const Op&) { b.ns.push_back(1000); });
  return b;
}

const AccountRow* find(const std::vector<AccountRow>& rows, const std::string& name) {
  for (const AccountRow& row : rows)
    if (row.name == name) return &row;
  return nullptr;
}

TEST(StepAccount, SumsCloseAndSlowOpsAreFound) {
  Built b = built("llama3-8b");
  const Program& program = b.programs.programs[0];
  const auto before = account_step(b.table, program, b.ns, 20.0);
  ASSERT_TRUE(before.has_value()) << before.error().what;
  double parts = 0, kinds = 0;
  int count = 0;
  for (const AccountRow& row : before->parts) parts += row.ceiling_ms, count += row.count;
  for (const AccountRow& row : before->kinds) kinds += row.ceiling_ms;
  EXPECT_EQ(count, static_cast<int>(b.ns.size()));
  EXPECT_NEAR(before->ops_ms(), 1e-3 * count, 1e-9);
  EXPECT_NEAR(parts, kinds, 1e-9);
  EXPECT_NEAR(before->between_ops_ms() + before->ops_ms(), 20.0, 1e-9);
  EXPECT_NEAR(before->floor_ratio(), parts / 20.0, 1e-12);
  for (const char* part : {"gemm", "attention", "memory"}) EXPECT_NE(find(before->parts, part), nullptr) << part;

  // One norm 5 ms slower: lost in the norms and among the memory-bound ops, nowhere else.
  size_t at = 0, norm = 0;
  walk(program, [&](int, const Call&, int, const Op& op) {
    if (op.kind->name == "rmsnorm") norm = at;
    ++at;
  });
  b.ns[norm] += 5'000'000;
  const auto after = account_step(b.table, program, b.ns, 20.0);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->kinds[0].name, "rmsnorm");
  EXPECT_NEAR(after->kinds[0].lost_ms() - find(before->kinds, "rmsnorm")->lost_ms(), 5.0, 1e-9);
  EXPECT_NEAR(find(after->parts, "memory")->lost_ms() - find(before->parts, "memory")->lost_ms(), 5.0, 1e-9);
  EXPECT_NEAR(find(after->parts, "gemm")->ms, find(before->parts, "gemm")->ms, 1e-12);
  EXPECT_NE(format(*after, 3).find("step efficiency"), std::string::npos);
}

// A ceiling is a measured rate: fitted factors and kernels' starts do not enter.
TEST(StepAccount, CeilingsAreNotFitted) {
  Built b = built("llama3-8b");
  const auto before = account_step(b.table, b.programs.programs[0], b.ns, 20.0);
  for (TermFacts& term : b.table.terms) term.factor = 2;
  b.table.kernel_us = 100;
  const auto after = account_step(b.table, b.programs.programs[0], b.ns, 20.0);
  ASSERT_TRUE(before && after);
  EXPECT_NEAR(before->ceiling_ms(), after->ceiling_ms(), 1e-9);
}

TEST(StepAccount, ExpertsHaveAPartOfTheirOwn) {
  const Built b = built("mixtral-8x7b");
  const auto account = account_step(b.table, b.programs.programs[0], b.ns, 100.0);
  ASSERT_TRUE(account.has_value()) << account.error().what;
  ASSERT_NE(find(account->parts, "grouped_gemm"), nullptr);
  EXPECT_GT(find(account->parts, "grouped_gemm")->ceiling_ms, find(account->parts, "gemm")->ceiling_ms / 10);

  // Routing, permutation and optimizer are told apart and printed, however many kinds are.
  const std::string text = format(*account, 1);
  for (const char* group : {"routing", "permutation", "grouped_gemm", "optimizer"}) {
    ASSERT_NE(find(account->groups, group), nullptr) << group;
    EXPECT_NE(text.find(group), std::string::npos) << group;
  }
  EXPECT_EQ(find(account->groups, "grouped_gemm")->count, find(account->parts, "grouped_gemm")->count);
  EXPECT_EQ(find(account->groups, "permutation")->count % 2, 0);
  EXPECT_NEAR(account->forward_backward_ceiling_ms() + find(account->groups, "optimizer")->ceiling_ms,
              account->ceiling_ms(), 1e-9);
}

TEST(StepAccount, TimesThatAreNotTheWalksAreRefused) {
  Built b = built("llama3-8b");
  b.ns.pop_back();
  EXPECT_EQ(account_step(b.table, b.programs.programs[0], b.ns, 20.0).error().code, ErrorCode::kBadArgument);
  b.ns.resize(b.ns.size() + 2, 1);
  EXPECT_EQ(account_step(b.table, b.programs.programs[0], b.ns, 20.0).error().code, ErrorCode::kBadArgument);
}

}  // namespace
}  // namespace mbb::suites
