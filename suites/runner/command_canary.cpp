// A line of six numbers a GPU.
#include "suites/runner/command_canary.h"

#include <fmt/core.h>

#include <array>
#include <optional>
#include <string_view>
#include <thread>

#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/gpus.h"
#include "suites/runner/process.h"

namespace mbb::suites {
namespace {

std::optional<Canary> canary_of(std::string_view line) {
  std::array<int64_t, 6> ns{};
  const auto words = split(line, ' ');
  if (words.size() != ns.size()) return {};
  for (size_t i = 0; i < ns.size(); ++i) {
    const auto number = parse_int(words[i]);
    if (!number) return {};
    ns[i] = *number;
  }
  return Canary{{ns[0], ns[1]}, {ns[2], ns[3]}, {ns[4], ns[5]}};
}

}  // namespace

size_t gpus_here(const baselines::Cell& cell) {
  if (cell.result_class != baselines::ResultClass::kMeasured || cell.devices <= 0) return 0;
  const profiler::GpuInventory found = profiler::list_gpus();
  const auto devices = static_cast<size_t>(cell.devices);
  const bool here = found.gpus.size() >= devices && found.gpus.front().model == cell.device;
  return here ? devices : 0;
}

std::vector<Canary> time_gpus(size_t count) {
  if (count == 0) return {};
  const auto program = own_program();
  if (!program) return {};
  std::vector<Canary> timed;
  ProcessOptions process;
  process.arguments = {*program, kTimeGpusCommand, fmt::format("{}", count)};
  process.stderr_file = "/dev/null";
  process.silence_limit_ms = 60'000;
  process.on_line = [&](std::string_view line) {
    if (const auto canary = canary_of(line)) timed.push_back(*canary);
  };
  const auto end = run_process(process);
  if (!end || end->exit_status != 0 || end->signal != 0 || timed.size() != count) return {};
  return timed;
}

int say_canaries(int count) {
  std::vector<Result<Canary>> timed(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < count; ++gpu)
    threads.emplace_back([&timed, gpu] { timed[static_cast<size_t>(gpu)] = run_gpu_canary(gpu); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& gpu : timed)
    if (!gpu) {
      say(format(gpu.error()) + "\n");
      return 1;
    }
  for (const auto& gpu : timed)
    fmt::print("{} {} {} {} {} {}\n", gpu->arithmetic.best_ns, gpu->arithmetic.spread_ns, gpu->memory.best_ns,
               gpu->memory.spread_ns, gpu->share.best_ns, gpu->share.spread_ns);
  return 0;
}

}  // namespace mbb::suites
