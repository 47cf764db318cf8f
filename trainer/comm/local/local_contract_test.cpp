// The communicator contract on rank threads, alone, in subgroups at once, and in groups whose order is not the world's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "trainer/comm/communicator_contract.h"
#include "trainer/comm/local/run_ranks.h"

namespace mbb::trainer {
namespace {

std::string text(const Status& status) {
  return status.has_value() ? "ok" : format(status.error());
}

class LocalContract : public testing::TestWithParam<int> {};

TEST_P(LocalContract, EveryCollectiveAndDTypeMatchesItsDefinition) {
  const uint64_t seed = std::random_device{}();
  const Status status = run_ranks(GetParam(), [&](World& world) -> Status {
    std::vector<int> all;
    for (int r = 0; r < world.size(); ++r) all.push_back(r);
    MB_ASSIGN(auto comm, world.group(GroupKind::kWorld, all));
    return contract::check_contract(*comm, seed);
  });
  EXPECT_EQ(text(status), "ok") << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(GroupSizes, LocalContract, testing::Values(1, 2, 3, 4, 5));

TEST(LocalContractGroups, GroupsOfAMeshWorkSideBySide) {
  const Result<Mesh> mesh = Mesh::make({.tp = 2, .cp = 1, .pp = 2, .dp = 2});
  ASSERT_TRUE(mesh.has_value());
  const Status status = run_ranks(8, [&](World& world) -> Status {
    for (const GroupKind kind : {GroupKind::kTp, GroupKind::kDp, GroupKind::kPp, GroupKind::kModel}) {
      MB_ASSIGN(auto comm, world.group(kind, *mesh));
      MB_TRY(contract::check_contract(*comm, 11));
    }
    return {};
  });
  EXPECT_EQ(text(status), "ok");
}

TEST(LocalContractGroups, GroupOrderNeedNotBeTheWorlds) {
  const Status status = run_ranks(4, [](World& world) -> Status {
    if (world.rank() == 1) return {};
    MB_ASSIGN(auto comm, world.group(GroupKind::kCp, {3, 0, 2}));
    if (comm->rank() != (world.rank() == 3 ? 0 : world.rank() == 0 ? 1 : 2))
      return fail(ErrorCode::kMismatch, "rank in the group is not its place in the list");
    return contract::check_contract(*comm, 5);
  });
  EXPECT_EQ(text(status), "ok");
}

TEST(LocalContractGroups, FurtherCommunicatorsOfAGroupAreIndependent) {
  const Status status = run_ranks(2, [](World& world) -> Status {
    MB_ASSIGN(auto first, world.group(GroupKind::kPp, {0, 1}));
    MB_ASSIGN(auto second, world.group(GroupKind::kPp, {0, 1}));
    const int peer = 1 - world.rank();
    int32_t own[2] = {world.rank() * 10, world.rank() * 10 + 1};
    int32_t got[2] = {-1, -1};
    MB_TRY(first->send(&own[0], 1, DType::kI32, peer, PipeDirection::kForward));
    MB_TRY(second->send(&own[1], 1, DType::kI32, peer, PipeDirection::kForward));
    MB_TRY(second->recv(&got[1], 1, DType::kI32, peer, PipeDirection::kForward));
    MB_TRY(first->recv(&got[0], 1, DType::kI32, peer, PipeDirection::kForward));
    if (got[0] != peer * 10 || got[1] != peer * 10 + 1) return fail(ErrorCode::kMismatch, "messages crossed");
    return {};
  });
  EXPECT_EQ(text(status), "ok");
}

TEST(LocalContractGroups, ReductionsRoundOnceAndKeepNan) {
  const Status status = run_ranks(3, [](World& world) -> Status {
    MB_ASSIGN(auto comm, world.group(GroupKind::kDp, {0, 1, 2}));
    // In f32 arithmetic (2^25 + 1) - 2^25 is 0.
    const float parts[3] = {0x1p25f, 1.0f, -0x1p25f};
    float sum = 0;
    MB_TRY(comm->all_reduce(&parts[world.rank()], &sum, 1, DType::kF32));
    if (sum != 1.0f) return fail(ErrorCode::kNumerics, fmt::format("f32 sum is {}", sum));
    const Bf16 halves[3] = {to_bf16(256.0f), to_bf16(1.0f), to_bf16(1.0f)};
    Bf16 half_sum;
    MB_TRY(comm->all_reduce(&halves[world.rank()], &half_sum, 1, DType::kBf16));
    if (to_float(half_sum) != 258.0f) return fail(ErrorCode::kNumerics, "bf16 sum rounds between members");
    const float with_nan[3] = {1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f};
    MB_TRY(comm->all_reduce(&with_nan[world.rank()], &sum, 1, DType::kF32, ReduceOp::kMax));
    if (!std::isnan(sum)) return fail(ErrorCode::kNumerics, "a maximum hides a NaN");
    return {};
  });
  EXPECT_EQ(text(status), "ok");
}

}  // namespace
}  // namespace mbb::trainer
