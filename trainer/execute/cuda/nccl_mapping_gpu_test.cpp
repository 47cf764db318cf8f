// Several GPUs: every mapping of two, four and eight ranks, as far as there are GPUs, trains through NCCL like one rank
// of the oracle, a process a GPU, as graphs and op by op. This program starts itself again for the ranks, which train
// one case after another.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/comm/process_place.h"
#include "trainer/comm/socket/rank_of_this_program_test.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/near_fp32_test.h"
#include "trainer/run/train.h"

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
    Config c = mapped(*mapping, recipe);
    c.host.device = trainer::Device::kCuda;
    c.host.enable_cuda_graph = graphs;
    return c;
  }
};

// Those of so many ranks. An exchange by counts reads them on the host, which graphs cannot.
std::vector<Case> cases(Recipe recipe, bool graphs, int ranks) {
  std::vector<Case> all;
  for (const Mapping& mapping : kMappings) {
    if (!mapping.takes(recipe)) continue;
    const Case c{&mapping, recipe, graphs};
    const bool counts = mapped(mapping, recipe).parallel.moe_exchange == MoeExchange::kCounts;
    if (graphs && counts) continue;
    const auto layout = resolve(c.config());
    if (!layout) ADD_FAILURE() << c.name() << ": " << format(layout.error());
    if (layout && layout->mesh.world_size() == ranks) all.push_back(c);
  }
  return all;
}

Status sample_of(const Layout& layout, int64_t index, std::span<int32_t> tokens) {
  return structured_sample(index, tokens, static_cast<int32_t>(layout.model.vocab_size));
}

Result<std::vector<StepReport>> steps_of(const Config& config, bool processes, int64_t no_progress_ms = 30'000) {
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  TrainOptions options;
  options.processes = processes;
  options.no_progress_ms = no_progress_ms;
  options.on_stuck = [](const Error& error) {
    fmt::print("STUCK: {}\n", format(error));
    std::fflush(stdout);
    _exit(0);
  };
  MB_ASSIGN(TrainResult result,
            train(
                layout, programs,
                [&](int64_t index, std::span<int32_t> tokens) { return sample_of(layout, index, tokens); }, options));
  return result.steps;
}

// How far the oracle's losses are from those of one fp32 rank, and the device's.
Result<std::string> verdict(const Case& c, const std::vector<StepReport>& device) {
  const Config base = base_of(*c.mapping, c.recipe);
  Status status;
  const auto losses = [&](const Config& oracle) {
    const auto steps = steps_of(oracle, false);
    if (!steps) status = tl::unexpected<Error>(steps.error());
    return steps ? losses_of(*steps) : std::vector<double>{};
  };
  const bool rounds = c.recipe != Recipe::kFp32;
  const Fp32Draws fp32(base, losses, rounds ? 6 : 1);  // other ranks wait meanwhile
  double bound = 1e-4;
  if (rounds) bound = near_fp32_bound(fp32.own_distance(mapped(*c.mapping, c.recipe)));
  const double error = furthest(losses_of(device), fp32.first());
  MB_TRY(status);
  return fmt::format("{} {}: losses within {:.2g} of {:.2g}", error < bound ? "GOOD" : "WRONG", c.name(), error, bound);
}

// One case after another, from the one that the file `next` names on.
void train_cases(Recipe recipe, bool graphs) {
  const auto first = process_place();
  if (!first || !*first) GTEST_SKIP() << "not started as a rank";
  const std::vector<Case> all = cases(recipe, graphs, (*first)->size);
  const std::filesystem::path folder = (*first)->rendezvous.substr(std::string_view("file:").size());
  for (size_t i = static_cast<size_t>(*parse_int(trim(read_file(folder / "next").value()))); i < all.size(); ++i) {
    setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet-{}", folder.string(), i).c_str(), 1);
    // As a launch sets it; NCCL itself goes by what it read first.
    all[i].config().memory.nccl_cta_policy == CtaPolicy::kZero ? setenv("NCCL_CTA_POLICY", "2", 1)
                                                               : unsetenv("NCCL_CTA_POLICY");
    const auto begin = std::chrono::steady_clock::now();
    const auto steps = steps_of(all[i].config(), true);
    if (!steps) {
      fmt::print("FAILED {} on rank {}: {}\n", all[i].name(), (*first)->rank, format(steps.error()));
      std::fflush(stdout);
      _exit(1);
    }
    if ((*first)->rank != 0) continue;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto said = verdict(all[i], *steps);
    fmt::print("{}, {:.1f} s\n", said ? *said : format(said.error()), took.count());
    std::fflush(stdout);
    EXPECT_TRUE(write_file(folder / "next", std::to_string(i + 1)));
  }
  std::fflush(stdout);
  _exit(0);
}

TEST(NcclRank, DISABLED_Fp32Graphs) {
  train_cases(Recipe::kFp32, true);
}
TEST(NcclRank, DISABLED_Bf16Graphs) {
  train_cases(Recipe::kBf16, true);
}
TEST(NcclRank, DISABLED_Fp8Graphs) {
  train_cases(Recipe::kFp8Current, true);
}
TEST(NcclRank, DISABLED_Fp32OpByOp) {
  train_cases(Recipe::kFp32, false);
}
TEST(NcclRank, DISABLED_Bf16OpByOp) {
  train_cases(Recipe::kBf16, false);
}
TEST(NcclRank, DISABLED_Fp8OpByOp) {
  train_cases(Recipe::kFp8Current, false);
}

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::filesystem::path fresh_folder(const char* name) {
  const std::filesystem::path folder = testing::TempDir() + fmt::format("nccl-{}-{}", name, getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

// Waits for all, and kills what is left after `limit`; meanwhile lines of rank 0's log go to the terminal, so that a
// test that is ended has said how far it came.
void wait_for(const std::vector<pid_t>& ranks, const std::filesystem::path& log,
              std::chrono::seconds limit = std::chrono::minutes(15)) {
  const auto last = std::chrono::steady_clock::now() + limit;
  size_t shown = 0, left = ranks.size();
  std::vector<bool> ended(ranks.size(), false);
  while (left > 0) {
    const bool late = std::chrono::steady_clock::now() > last;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!ended[r] && late) {
        ADD_FAILURE() << "rank " << r << " is still there after " << limit.count() << " s";
        kill(ranks[r], SIGKILL);
      }
      if (!ended[r] && waitpid(ranks[r], nullptr, late ? 0 : WNOHANG) != 0) ended[r] = true, --left;
    }
    const std::string said = read_file(log).value_or("");
    for (size_t end = said.find('\n', shown); end != std::string::npos; end = said.find('\n', shown)) {
      const std::string line = said.substr(shown, end - shown);
      if (line.starts_with("GOOD") || line.starts_with("WRONG") || line.starts_with("FAILED")) fmt::print("{}\n", line);
      shown = end + 1;
    }
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<pid_t> start_ranks(const std::filesystem::path& folder, int ranks, const std::string& test) {
  std::vector<pid_t> started;
  for (int rank = 0; rank < ranks; ++rank)
    started.push_back(start_rank_of_this_program(rank, ranks, folder, folder / std::to_string(rank), test));
  return started;
}

void every_mapping_trains_like_one_rank(const char* name, int ranks, size_t count) {
  const std::filesystem::path folder = fresh_folder(name);
  for (size_t next = 0; next < count;) {
    ASSERT_TRUE(write_file(folder / "next", std::to_string(next)));
    wait_for(start_ranks(folder, ranks, fmt::format("NcclRank.DISABLED_{}", name)), folder / "0");
    const auto reached = static_cast<size_t>(*parse_int(trim(read_file(folder / "next").value())));
    next = std::max(next, reached);
    if (next < count) ++next;  // the one that failed is told of below
  }
  std::string said;
  for (int rank = 0; rank < ranks; ++rank) said += read_file(folder / std::to_string(rank)).value_or("");
  size_t good = 0;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("GOOD")) ++good;
  EXPECT_EQ(good, count) << said;
  std::filesystem::remove_all(folder);
}

void every_mapping_trains(const char* name, Recipe recipe, bool graphs) {
  if (devices() < 2) GTEST_SKIP() << "two GPUs are needed, " << devices() << " found";
  for (const auto& [ranks, fewest] : {std::pair(2, 18U), {4, 6U}, {8, 9U}}) {
    if (ranks > devices()) break;
    const size_t count = cases(recipe, graphs, ranks).size();
    ASSERT_GT(count, fewest);
    every_mapping_trains_like_one_rank(name, ranks, count);
  }
}
TEST(NcclRanks, EveryMappingTrainsAsGraphs) {
  every_mapping_trains("Fp32Graphs", Recipe::kFp32, true);
}
TEST(NcclRanks, EveryMappingTrainsOpByOp) {
  every_mapping_trains("Fp32OpByOp", Recipe::kFp32, false);
}
TEST(NcclRanks, EveryMappingTrainsInBf16) {
  every_mapping_trains("Bf16Graphs", Recipe::kBf16, true);
}
TEST(NcclRanks, EveryMappingTrainsOpByOpInBf16) {
  every_mapping_trains("Bf16OpByOp", Recipe::kBf16, false);
}
TEST(NcclRanks, EveryMappingTrainsInFp8) {
  every_mapping_trains("Fp8Graphs", Recipe::kFp8Current, true);
}
TEST(NcclRanks, EveryMappingTrainsOpByOpInFp8) {
  every_mapping_trains("Fp8OpByOp", Recipe::kFp8Current, false);
}

// A rank that is killed or hangs in the middle of its work ends the other with its name.
void ends_by(const char* fault, int64_t no_progress_ms, bool steps_begin_together) {
  const auto place = process_place();
  if (!place || !*place) GTEST_SKIP() << "not started as a rank";
  const std::filesystem::path folder = (*place)->rendezvous.substr(std::string_view("file:").size());
  setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet", folder.string()).c_str(), 1);
  Config c = Case{&kMappings[1], Recipe::kBf16, true}.config();
  c.train.train_iters = 1'000'000;
  // Without a barrier between steps the other goes on, into a graph whose collectives wait for ever.
  if (!steps_begin_together) c.host.manual_gc_interval = 0;
  c.debug.inject_fault = fault;
  const auto begin = std::chrono::steady_clock::now();
  const auto steps = steps_of(c, true, no_progress_ms);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("ENDED after {:.1f} s: {}\n", took.count(), steps ? "well" : format(steps.error()));
  std::fflush(stdout);
  _exit(0);
}
constexpr int64_t kQuietMs = 25'000;  // longer than ranks take to come to their first step
TEST(NcclRank, DISABLED_IsKilled) {
  ends_by("kill@1", 30'000, false);
}
TEST(NcclRank, DISABLED_HangsBeforeAStep) {
  ends_by("hang@1", kQuietMs, true);
}
TEST(NcclRank, DISABLED_HangsBesideADevice) {
  ends_by("hang@1", kQuietMs, false);
}

void expect_end(const char* name, const std::string& reason) {
  if (devices() < 2) GTEST_SKIP() << "two GPUs are needed, " << devices() << " found";
  const std::filesystem::path folder = fresh_folder(name);
  constexpr std::chrono::seconds kStartAndEnd{90};
  wait_for(start_ranks(folder, 2, fmt::format("NcclRank.DISABLED_{}", name)), folder / "0", kStartAndEnd);
  const std::string said = read_file(folder / "0").value();
  fmt::print("{}\n", said.substr(std::min(said.size(), said.find("ENDED"))));
  EXPECT_NE(said.find("ENDED"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 at"), std::string::npos) << said;
  EXPECT_NE(said.find(reason), std::string::npos) << said;
  std::filesystem::remove_all(folder);
}

TEST(NcclRanks, AKilledRankEndsTheOtherWithItsName) {
  expect_end("IsKilled", "its process ended without a word");
}
TEST(NcclRanks, ARankThatHangsBeforeAStepEndsTheOtherWithItsName) {
  expect_end("HangsBeforeAStep", fmt::format("no rank made progress for {} ms", kQuietMs));
}
TEST(NcclRanks, ARankThatHangsWhileTheOtherWaitsForItsDeviceEndsItWithItsName) {
  expect_end("HangsBesideADevice", fmt::format("no rank made progress for {} ms", kQuietMs));
}

}  // namespace
}  // namespace mbb::trainer::cuda
