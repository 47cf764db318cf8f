// Two GPUs: every mapping of two ranks trains through NCCL like one rank of the oracle, a process a GPU, as graphs and
// op by op. This program starts itself again for the ranks, which train one case after another.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/comm/process_place.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/equal_training_test.h"

namespace mbb::trainer::cuda {
namespace {

struct Case {
  const Mapping* mapping;
  Recipe recipe;
  bool graphs;

  std::string name() const {
    const char* r = recipe == Recipe::kFp32 ? "fp32" : recipe == Recipe::kBf16 ? "bf16" : "fp8";
    return fmt::format("{} {} {}", mapping->name, r, graphs ? "graphs" : "op by op");
  }
  Config config() const {
    Config c = base_of(*mapping);
    mapping->map(c);
    c.precision.recipe = recipe;
    c.host.device = trainer::Device::kCuda;
    c.host.enable_cuda_graph = graphs;
    return c;
  }
};

// Those of two ranks. An exchange by counts reads them on the host, which graphs cannot.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [recipe, graphs] :
       {std::pair{Recipe::kFp32, true}, {Recipe::kBf16, true}, {Recipe::kFp8Current, true}, {Recipe::kFp32, false}})
    for (const Mapping& mapping : kMappings) {
      const Case c{&mapping, recipe, graphs};
      if (recipe == Recipe::kFp8Current && mapping.family != nullptr) continue;
      const bool counts = c.config().parallel.moe_exchange == MoeExchange::kCounts;
      const auto layout = resolve(c.config());
      if (layout && layout->mesh.world_size() == 2 && graphs != counts) all.push_back(c);
    }
  return all;
}

Status sample_of(const Layout& layout, int64_t index, std::span<int32_t> tokens) {
  return structured_sample(index, tokens, static_cast<int32_t>(layout.model.vocab_size));
}

Result<std::vector<StepReport>> steps_of(const Config& config, bool processes) {
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  TrainOptions options;
  options.processes = processes;
  options.no_progress_ms = 30'000;
  MB_ASSIGN(TrainResult result,
            train(
                layout, programs,
                [&](int64_t index, std::span<int32_t> tokens) { return sample_of(layout, index, tokens); }, options));
  return result.steps;
}

// How far the oracle's losses are from those of one fp32 rank, and the device's.
Result<std::string> verdict(const Case& c, const std::vector<StepReport>& device) {
  Config base = base_of(*c.mapping);
  MB_ASSIGN(const auto exact, steps_of(base, false));
  double bound = 1e-4;
  if (c.recipe != Recipe::kFp32) {
    base.precision.recipe = c.recipe;
    c.mapping->map(base);
    MB_ASSIGN(const auto oracle, steps_of(base, false));
    bound = std::max(2.0 * furthest(oracle, exact), 2e-3);
  }
  const double error = furthest(device, exact);
  return fmt::format("{} {}: losses within {:.2g} of {:.2g}", error < bound ? "GOOD" : "WRONG", c.name(), error, bound);
}

// One case after another, from the one that the file `next` names on.
TEST(NcclRank, DISABLED_TrainsTheCases) {
  const auto first = process_place();
  if (!first || !*first) GTEST_SKIP() << "not started as a rank";
  const std::filesystem::path folder = (*first)->rendezvous.substr(std::string_view("file:").size());
  const std::vector<Case> all = cases();
  for (size_t i = static_cast<size_t>(*parse_int(trim(read_file(folder / "next").value()))); i < all.size(); ++i) {
    setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet-{}", folder.string(), i).c_str(), 1);
    const auto steps = steps_of(all[i].config(), true);
    if (!steps) {
      fmt::print("FAILED {} on rank {}: {}\n", all[i].name(), (*first)->rank, format(steps.error()));
      std::fflush(stdout);
      _exit(1);
    }
    if ((*first)->rank != 0) continue;
    const auto said = verdict(all[i], *steps);
    fmt::print("{}\n", said ? *said : format(said.error()));
    std::fflush(stdout);
    EXPECT_TRUE(write_file(folder / "next", std::to_string(i + 1)));
  }
  std::fflush(stdout);
  _exit(0);
}

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Starts a rank of the test and gives its process.
pid_t start_rank(int rank, const std::filesystem::path& folder, const char* test) {
  char own[PATH_MAX] = {};
  if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) return -1;
  const pid_t process = fork();
  if (process != 0) return process;
  setenv("MBBENCH_RANK", std::to_string(rank).c_str(), 1);
  setenv("MBBENCH_RANKS", "2", 1);
  setenv("MBBENCH_MEET_AT", ("file:" + folder.string()).c_str(), 1);
  const int out = open((folder / std::to_string(rank)).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  const std::string filter = fmt::format("--gtest_filter={}", test);
  execl(own, own, "--gtest_also_run_disabled_tests", filter.c_str(), nullptr);
  _exit(127);
}

std::filesystem::path fresh_folder(const char* name) {
  const std::filesystem::path folder = testing::TempDir() + fmt::format("nccl-{}-{}", name, getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(NcclRanks, EveryMappingOfTwoTrainsLikeOneRankOfTheOracle) {
  if (devices() < 2) GTEST_SKIP() << "two GPUs are needed, " << devices() << " found";
  const std::filesystem::path folder = fresh_folder("cases");
  const size_t count = cases().size();
  ASSERT_GT(count, 40U);
  for (size_t next = 0; next < count;) {
    ASSERT_TRUE(write_file(folder / "next", std::to_string(next)));
    const pid_t ranks[] = {start_rank(0, folder, "NcclRank.DISABLED_TrainsTheCases"),
                           start_rank(1, folder, "NcclRank.DISABLED_TrainsTheCases")};
    for (const pid_t rank : ranks) waitpid(rank, nullptr, 0);
    const auto reached = static_cast<size_t>(*parse_int(trim(read_file(folder / "next").value())));
    next = std::max(next, reached);
    if (next < count) ++next;  // the one that failed is told of below
  }
  std::string said;
  for (const char* rank : {"0", "1"})
    if (const auto text = read_file(folder / rank)) said += *text;
  size_t good = 0;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("GOOD")) ++good;
    if (line.starts_with("GOOD") || line.starts_with("WRONG") || line.starts_with("FAILED")) fmt::print("{}\n", line);
  }
  EXPECT_EQ(good, count) << said;
  std::filesystem::remove_all(folder);
}

// A rank that is killed in the middle of its work ends the other, which waits on the device, with its name.
TEST(NcclRank, DISABLED_IsKilled) {
  const auto place = process_place();
  if (!place || !*place) GTEST_SKIP() << "not started as a rank";
  const std::filesystem::path folder = (*place)->rendezvous.substr(std::string_view("file:").size());
  setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet", folder.string()).c_str(), 1);
  Config c = Case{&kMappings[1], Recipe::kBf16, true}.config();
  c.train.train_iters = 1'000'000;
  c.debug.inject_fault = "kill@1";
  const auto begin = std::chrono::steady_clock::now();
  const auto steps = steps_of(c, true);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("ENDED after {:.1f} s: {}\n", took.count(), steps ? "well" : format(steps.error()));
  std::fflush(stdout);
  _exit(0);
}

TEST(NcclRanks, AKilledRankEndsTheOtherWithItsName) {
  if (devices() < 2) GTEST_SKIP() << "two GPUs are needed, " << devices() << " found";
  const std::filesystem::path folder = fresh_folder("killed");
  const pid_t ranks[] = {start_rank(0, folder, "NcclRank.DISABLED_IsKilled"),
                         start_rank(1, folder, "NcclRank.DISABLED_IsKilled")};
  for (const pid_t rank : ranks) waitpid(rank, nullptr, 0);
  const std::string said = read_file(folder / "0").value();
  fmt::print("{}\n", said.substr(std::min(said.size(), said.find("ENDED"))));
  EXPECT_NE(said.find("ENDED"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 at"), std::string::npos) << said;
  EXPECT_NE(said.find("its process ended without a word"), std::string::npos) << said;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mbb::trainer::cuda
