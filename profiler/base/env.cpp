// Environment reads and the list of the names read: see env.h.
#include "profiler/base/env.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "profiler/base/check.h"
#include "profiler/base/text.h"

extern char** environ;  // NOLINT: POSIX gives no header for it

namespace mbb {
namespace {

constexpr EnvVar kVars[] = {
    {"CUDA_INJECTION64_PATH", "set by a CUDA tool that watches this process; named when it holds CUPTI"},
    {"CUDA_VISIBLE_DEVICES", "the devices CUDA numbers (`mbbench doctor`)"},
    {"DISPLAY", "whether a window can open (`mbbench doctor`)"},
    {"HOME", "home folder, for the user's settings file and for ~ in paths"},
    {"LD_PRELOAD", "who else is loaded into this process (`mbbench doctor`)"},
    {"LOCAL_RANK", "set by torchrun: which of its processes on this host this is"},
    {"LOCAL_WORLD_SIZE", "set by torchrun: processes it started on this host"},
    {"MASTER_ADDR", "set by torchrun: rank 0's host"},
    {"MASTER_PORT", "set by torchrun: its own port there; ranks meet at the next one"},
    {"MBBENCH_LOG", "how much is logged to stderr: error, warning, info (default), debug"},
    {"MBBENCH_MEET_AT", "where ranks that are processes meet: HOST:PORT of rank 0, or file:PATH that all see"},
    {"MBBENCH_RANK", "set by `mbbench run` for the ranks it starts: which of them this is"},
    {"MBBENCH_RANKS", "set by `mbbench run` for the ranks it starts: how many they are"},
    {"MBBENCH_TEST_DATA", "folder with the reference data that tests read"},
    {"MBBENCH_TEST_PYTHON", "Python with HolisticTraceAnalysis, for the tests that compare with it"},
    {"NCCL_CTA_POLICY", "NCCL's, which memory.nccl_cta_policy sets: 2 lets copy engines do what SMs need not"},
    {"NCCL_P2P_DISABLE", "NCCL's: 1 lets GPUs that cannot reach each other communicate through the host"},
    {"NO_COLOR", "set to anything: no colour on a terminal"},
    {"NSYS_PROFILING_SESSION_ID", "set by nsys for what it profiles; named when it holds CUPTI"},
    {"NVTX_INJECTION64_PATH", "set by a tool that records NVTX ranges; named when it holds CUPTI"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "set by Open MPI's mpirun: which of its processes on this host this is"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "set by Open MPI's mpirun: processes it started on this host"},
    {"OMPI_COMM_WORLD_RANK", "set by Open MPI's mpirun: which of its processes this is"},
    {"OMPI_COMM_WORLD_SIZE", "set by Open MPI's mpirun: how many processes it started, each a rank"},
    {"PATH", "where other programs are found (`mbbench doctor`)"},
    {"PMI_RANK", "set by launchers that speak PMI: which of their processes this is"},
    {"PMI_SIZE", "set by launchers that speak PMI: how many processes they started, each a rank"},
    {"RANK", "set by torchrun: which of its processes this is"},
    {"SLURM_JOB_ID", "set by srun: the job"},
    {"SLURM_LOCALID", "set by srun: which of its processes on this host this is"},
    {"SLURM_PROCID", "set by srun: which of its processes this is"},
    {"SLURM_STEP_ID", "set by srun: the step of the job"},
    {"SLURM_STEP_NODELIST", "set by srun: the hosts of the step, of which rank 0 runs on the first"},
    {"SLURM_STEP_NUM_NODES", "set by srun: how many hosts the step has"},
    {"SLURM_STEP_NUM_TASKS", "set by srun: how many processes it started, each a rank"},
    {"SLURM_STEP_TASKS_PER_NODE", "set by srun: processes of each host"},
    {"TERM", "terminal type; 'dumb' means no progress line"},
    {"TMPDIR", "folder for temporary files, default /tmp"},
    {"TORCHELASTIC_RUN_ID", "set by torchrun: the run's name"},
    {"USER", "who accepts a baseline, unless --author says (`mbbench baseline`)"},
    {"WAYLAND_DISPLAY", "whether a window can open (`mbbench doctor`)"},
    {"WORLD_SIZE", "set by torchrun: how many processes it started, each a rank"},
    {"XDG_CONFIG_HOME", "folder that holds mbbench/mbbench.toml, default ~/.config"},
    {"XDG_STATE_HOME", "folder where the viewer keeps its layout in mbbench/view, default ~/.local/state"},
};

}  // namespace

std::span<const EnvVar> env_vars() {
  return kVars;
}

std::optional<std::string> env_text(std::string_view name) {
  const bool declared =
      std::any_of(std::begin(kVars), std::end(kVars), [&](const EnvVar& v) { return v.name == name; });
  MB_CHECK(declared, fmt::format("environment variable {} is read but not declared in env.cpp", name));
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

Result<std::optional<int64_t>> env_int(std::string_view name) {
  const auto text = env_text(name);
  if (!text) return std::optional<int64_t>{};
  const auto value = parse_int(*text);
  if (!value)
    return fail(ErrorCode::kBadArgument,
                fmt::format("environment variable {}='{}' is not an integer", name, printable(*text)));
  return value;
}

Result<std::optional<bool>> env_bool(std::string_view name) {
  const auto text = env_text(name);
  if (!text) return std::optional<bool>{};
  const auto value = parse_bool(*text);
  if (!value)
    return fail(ErrorCode::kBadArgument,
                fmt::format("environment variable {}='{}' is neither true nor false", name, printable(*text)));
  return value;
}

std::vector<std::pair<std::string, std::string>> env_all() {
  std::vector<std::pair<std::string, std::string>> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    all.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::pair<std::string, std::string>> env_settings() {
  auto all = env_all();
  std::erase_if(all, [](const auto& entry) {
    const bool named =
        std::any_of(std::begin(kVars), std::end(kVars), [&](const EnvVar& v) { return v.name == entry.first; });
    return named || !entry.first.starts_with("MBBENCH_");
  });
  return all;
}

}  // namespace mbb
