// Each launcher by the variables it sets.
#include "trainer/comm/process_place.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace mbb::trainer {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// The environment holds these of the launchers' variables and no others.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : {"MBBENCH_RANK",
                             "MBBENCH_RANKS",
                             "MBBENCH_MEET_AT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NODELIST",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "PMI_RANK",
                             "PMI_SIZE"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_.emplace_back(name, value);
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const std::string& name : set_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Variables before_;
  std::vector<std::string> set_;
};

std::optional<ProcessPlace> place_of(const Variables& variables) {
  const Environment environment(variables);
  const auto place = process_place();
  EXPECT_TRUE(place.has_value()) << (place ? "" : place.error().what);
  return place ? *place : std::nullopt;
}

std::string refusal_of(const Variables& variables) {
  const Environment environment(variables);
  const auto place = process_place();
  EXPECT_FALSE(place_if_any().has_value());
  return place ? "accepted" : place.error().what;
}

TEST(ProcessPlaces, AreNothingForAProcessAlone) {
  EXPECT_FALSE(place_of({}));
  EXPECT_FALSE(place_of({{"WORLD_SIZE", "1"}, {"RANK", "0"}}));
  EXPECT_FALSE(place_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "4"}})) << "a batch script is no step of srun";
}

TEST(ProcessPlaces, OfMpirun) {
  const auto place = place_of({{"OMPI_COMM_WORLD_RANK", "5"},
                               {"OMPI_COMM_WORLD_SIZE", "8"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, Launcher::kMpi);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_size, 4);
  EXPECT_FALSE(place->one_host);
  EXPECT_EQ(place->rendezvous, "") << "MPI knows";
}

TEST(ProcessPlaces, OfTorchrun) {
  const Variables variables{{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "night"}};
  const auto place = place_of(variables);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, Launcher::kTorchrun);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->size, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_size, 2);
  EXPECT_FALSE(place->one_host);
  EXPECT_EQ(place->rendezvous, "node7:29501") << "torchrun's store holds its own port";
  EXPECT_EQ(place->job, "night");
  Variables elsewhere = variables;
  elsewhere.emplace_back("MBBENCH_MEET_AT", "file:/shared/here");
  EXPECT_EQ(place_of(elsewhere)->rendezvous, "file:/shared/here");
}

TEST(ProcessPlaces, OfSrun) {
  const auto place = place_of({{"SLURM_PROCID", "6"},
                               {"SLURM_STEP_NUM_TASKS", "16"},
                               {"SLURM_LOCALID", "6"},
                               {"SLURM_STEP_NUM_NODES", "2"},
                               {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                               {"SLURM_JOB_ID", "1234"},
                               {"SLURM_STEP_ID", "2"},
                               {"SLURM_STEP_NODELIST", "gpu[017-018]"},
                               {"PMI_SIZE", "16"},
                               {"PMI_RANK", "6"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, Launcher::kSlurm);
  EXPECT_EQ(place->rank, 6);
  EXPECT_EQ(place->size, 16);
  EXPECT_EQ(place->local_rank, 6);
  EXPECT_EQ(place->local_size, 8);
  EXPECT_FALSE(place->one_host);
  EXPECT_EQ(place->rendezvous, "gpu017:28640");
  EXPECT_EQ(place->job, "slurm 1234.2");
  const auto one_host = place_of({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"}});
  ASSERT_TRUE(one_host);
  EXPECT_TRUE(one_host->one_host);
  EXPECT_EQ(one_host->local_size, 2);
}

TEST(ProcessPlaces, OfPmi) {
  const auto place = place_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, Launcher::kMpi);
  EXPECT_EQ(place->rank, 1);
  EXPECT_FALSE(place->one_host) << "it does not say";
}

TEST(ProcessPlaces, OfOurOwnRanks) {
  const auto place = place_of({{"MBBENCH_RANK", "1"}, {"MBBENCH_RANKS", "2"}, {"MBBENCH_MEET_AT", "file:/run/meet"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, Launcher::kOwn);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_TRUE(place->one_host);
  EXPECT_EQ(place->rendezvous, "file:/run/meet");
}

TEST(ProcessPlaces, ThatContradictThemselvesAreRefused) {
  EXPECT_EQ(refusal_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}}),
            "torchrun says that this is rank 4 of 4, and 4 of 4 on its host");
  EXPECT_EQ(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "4"}}),
            "WORLD_SIZE is set, and MASTER_ADDR or MASTER_PORT is not");
  EXPECT_EQ(refusal_of({{"MBBENCH_RANK", "0"}, {"MBBENCH_RANKS", "2"}}),
            "MBBENCH_RANKS is set, and MBBENCH_MEET_AT is not");
  EXPECT_NE(refusal_of({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK"),
            std::string::npos);
}

TEST(ProcessPlaces, ReadSlurmsListsOfHosts) {
  EXPECT_EQ(first_host("node03"), "node03");
  EXPECT_EQ(first_host("node03,node07"), "node03");
  EXPECT_EQ(first_host("node[03-07,12],login"), "node03");
  EXPECT_EQ(first_host("rack[2,4]-gpu,x"), "rack2-gpu");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace mbb::trainer
