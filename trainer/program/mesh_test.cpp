// Mesh arithmetic against groups written out by hand and against the definition of a partition.
#include "trainer/program/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace mbb::trainer {
namespace {

using Groups = std::vector<std::vector<int>>;

std::vector<ParallelSizes> sample_meshes() {
  return {
      {},
      {.tp = 2, .cp = 2, .pp = 2, .dp = 2},
      {.tp = 4, .pp = 3, .dp = 3},
      {.tp = 2, .dp = 4, .ep = 4},
      {.tp = 2, .cp = 2, .pp = 2, .dp = 4, .ep = 4, .etp = 2, .dp_instances = 2},
      {.cp = 4, .dp = 4, .ep = 4, .dp_instances = 2, .cp_a2a = 2},
      {.tp = 2, .cp = 1, .pp = 2, .dp = 2, .encoder_pp = 1, .encoder_tp = 1},
      {.tp = 4, .cp = 2, .pp = 1, .dp = 3, .encoder_pp = 1},
      {.tp = 3, .cp = 1, .pp = 4, .dp = 5},
  };
}

Mesh mesh_of(const ParallelSizes& sizes) {
  Result<Mesh> mesh = Mesh::make(sizes);
  EXPECT_TRUE(mesh.has_value()) << describe(sizes);
  return mesh.value_or(Mesh());
}

TEST(Mesh, EveryKindPartitionsTheWorld) {
  for (const ParallelSizes& sizes : sample_meshes()) {
    const Mesh mesh = mesh_of(sizes);
    for (const GroupKindRecord& record : kGroupKinds) {
      std::vector<int> seen;
      for (const std::vector<int>& group : mesh.groups(record.kind)) {
        EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
        for (size_t i = 0; i < group.size(); ++i) {
          seen.push_back(group[i]);
          EXPECT_EQ(mesh.group(record.kind, group[i]), group) << describe(sizes) << " " << record.name;
          EXPECT_EQ(mesh.group_size(record.kind, group[i]), static_cast<int>(group.size())) << record.name;
          EXPECT_EQ(mesh.group_index(record.kind, group[i]), static_cast<int>(i));
        }
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), static_cast<size_t>(mesh.world_size())) << describe(sizes) << " " << record.name;
      for (int r = 0; r < mesh.world_size(); ++r) EXPECT_EQ(seen[static_cast<size_t>(r)], r);
    }
  }
}

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  for (const ParallelSizes& sizes : sample_meshes()) {
    const Mesh mesh = mesh_of(sizes);
    for (int r = 0; r < mesh.world_size(); ++r) {
      const MeshCoordinates at = mesh.coordinates(r);
      EXPECT_EQ(mesh.rank(at), r);
      EXPECT_EQ(mesh.expert_rank(at), r);
    }
  }
}

TEST(Mesh, DefaultOrderWrittenOut) {
  const Mesh mesh = mesh_of({.tp = 2, .cp = 2, .pp = 2, .dp = 2});
  EXPECT_EQ(mesh.groups(GroupKind::kTp),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kCp),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kDp),
            (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kPp),
            (Groups{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kDpCp), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kTpCp), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::kModel), (Groups{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
  EXPECT_EQ(mesh.group({Axis::kTp, Axis::kPp}, 3), (std::vector<int>{2, 3, 10, 11}));
}

TEST(Mesh, ExpertsFoldOverTensorAndDataRanks) {
  // tp 2 × dp 4 = 8 ranks a stage; ep 4 with etp 1 crosses the tensor groups.
  const Mesh mesh = mesh_of({.tp = 2, .dp = 4, .ep = 4});
  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_EQ(mesh.groups(GroupKind::kEp), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::kEdp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  const Mesh etp = mesh_of({.tp = 2, .dp = 4, .ep = 2, .etp = 2});
  EXPECT_EQ(etp.groups(GroupKind::kEtp), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(etp.groups(GroupKind::kEp), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(etp.groups(GroupKind::kEdp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Mesh, InnerSizesSplitContextAndOptimizerGroups) {
  const Mesh mesh = mesh_of({.cp = 4, .dp = 4, .dp_instances = 2, .cp_a2a = 2});
  EXPECT_EQ(mesh.group(GroupKind::kCpA2a, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(mesh.group(GroupKind::kCpP2p, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(mesh.group(GroupKind::kDpCpShard, 0), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.group(GroupKind::kDpCpReplica, 3), (std::vector<int>{3, 11}));
}

TEST(Mesh, EncoderIsABlockBeforeTheDecoder) {
  // dp·cp·(encTP·encPP + decTP·decPP) = 2·(1·1 + 2·2) = 10 ranks.
  const Mesh mesh = mesh_of({.tp = 2, .pp = 2, .dp = 2, .encoder_pp = 1, .encoder_tp = 1});
  ASSERT_EQ(mesh.world_size(), 10);
  EXPECT_EQ(mesh.coordinates(1).role, MeshRole::kEncoder);
  EXPECT_EQ(mesh.coordinates(2).role, MeshRole::kDecoder);
  EXPECT_EQ(mesh.groups(GroupKind::kDp), (Groups{{0, 1}, {2, 4}, {3, 5}, {6, 8}, {7, 9}}));
  EXPECT_EQ(mesh.groups(GroupKind::kModel), (Groups{{0, 2, 3, 6, 7}, {1, 4, 5, 8, 9}}));
  EXPECT_EQ(mesh.group(GroupKind::kPp, 2), (std::vector<int>{2, 6}));
  EXPECT_EQ(mesh.rank_class_count(), 3);
}

TEST(Mesh, EmbeddingGroupTiesTheEnds) {
  const Mesh mesh = mesh_of({.tp = 2, .pp = 4});
  EXPECT_EQ(mesh.groups(GroupKind::kEmbedding), (Groups{{0, 6}, {1, 7}, {2}, {3}, {4}, {5}}));
}

TEST(Mesh, RankClassesAreRoleStageAndContextCoordinate) {
  for (const ParallelSizes& sizes : sample_meshes()) {
    const Mesh mesh = mesh_of(sizes);
    std::set<int> classes;
    for (int r = 0; r < mesh.world_size(); ++r) classes.insert(mesh.rank_class_index(r));
    EXPECT_EQ(static_cast<int>(classes.size()), mesh.rank_class_count()) << describe(sizes);
    for (const int c : classes) {
      const int first = mesh.representative(c);
      EXPECT_EQ(mesh.rank_class_index(first), c);
      for (int r = 0; r < first; ++r) EXPECT_NE(mesh.rank_class_index(r), c) << "a lower rank has the class";
    }
  }
  EXPECT_EQ(mesh_of({.tp = 8, .cp = 2, .pp = 8, .dp = 128}).rank_class_count(), 16);
}

TEST(Mesh, RefusesIllegalSizesWithTheRule) {
  const auto refused = [](const ParallelSizes& sizes, const char* part) {
    const Result<Mesh> mesh = Mesh::make(sizes);
    ASSERT_FALSE(mesh.has_value()) << describe(sizes);
    EXPECT_EQ(mesh.error().code, ErrorCode::kBadArgument);
    EXPECT_NE(mesh.error().what.find(part), std::string::npos) << mesh.error().what;
  };
  refused({.tp = 0}, "tensor_model_parallel_size is 0");
  refused({.dp = -3}, "data parallel size is -3");
  refused({.tp = 2, .dp = 2, .ep = 3}, "does not divide the 4 ranks");
  refused({.dp = 3, .dp_instances = 2}, "num_distributed_optimizer_instances 2");
  refused({.dp = 4, .ep = 4, .dp_instances = 2}, "expert data parallel size 1");
  refused({.cp = 4, .cp_a2a = 3}, "context_parallel_size 4");
  refused({.tp = 2, .encoder_tp = 1}, "without an encoder stage");
  refused({.tp = 2, .encoder_pp = 1, .encoder_tp = 4}, "above the decoder's 2");
  refused({.dp = 2, .ep = 2, .encoder_pp = 1}, "encoder block");
  refused({.tp = 1 << 20, .dp = 1 << 20}, "more than");
  refused({.encoder_pp = 1 << 30}, "more than");
}

TEST(Mesh, NamesTheGroupThatStraddlesADomain) {
  const Mesh mesh = mesh_of({.tp = 8, .pp = 2, .dp = 2});
  EXPECT_TRUE(mesh.check_inside_domain(GroupKind::kTp, 8).has_value());
  EXPECT_TRUE(mesh.check_inside_domain(GroupKind::kTpDp, 16).has_value());
  const Status status = mesh.check_inside_domain(GroupKind::kTp, 12);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("tp group of ranks 8..15"), std::string::npos) << status.error().what;
  EXPECT_FALSE(mesh.check_inside_domain(GroupKind::kTp, 0).has_value());
}

TEST(Mesh, KindNamesAreUniqueAndReadBack) {
  std::set<std::string> names;
  for (size_t i = 0; i < kGroupKinds.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kGroupKinds[i].kind), i);
    EXPECT_TRUE(names.insert(kGroupKinds[i].name).second);
    EXPECT_EQ(group_kind_named(kGroupKinds[i].name), kGroupKinds[i].kind);
  }
  EXPECT_EQ(group_kind_named("nvlink"), std::nullopt);
}

}  // namespace
}  // namespace mbb::trainer
