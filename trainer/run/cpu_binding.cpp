// From the knob to sched_setaffinity.
#include "trainer/run/cpu_binding.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <thread>

#include "profiler/host/affinity.h"
#include "profiler/host/cuda_table.h"

namespace mbb::trainer {
namespace {

using profiler::CpuSet;

Result<CpuSet> near_device(int device) {
  MB_ASSIGN(const profiler::CudaTable* const table, profiler::cuda_table());
  profiler::CudaDeviceFacts facts{};
  profiler::CudaText error{};
  MB_TRY(profiler::cuda_answer(table->device_facts(device, &facts, &error), error));
  return profiler::cpus_near(facts.pci_bus_id);
}

Result<CpuSet> wanted(const std::string& binding, int device, int rank, int ranks) {
  const CpuSet allowed = profiler::allowed_cpus();
  if (binding != "local") {
    auto named = profiler::parse_cpus(binding);
    if (!named)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("host.cpu_binding = {} is neither none, local nor CPUs", binding),
                  "a list of CPUs is written as 0-7,16");
    CpuSet missing;
    std::set_difference(named->begin(), named->end(), allowed.begin(), allowed.end(), std::back_inserter(missing));
    if (!missing.empty())
      return fail(ErrorCode::kUnavailable,
                  fmt::format("host.cpu_binding = {}: CPU{} {} {} not among those of this process, {}", binding,
                              missing.size() > 1 ? "s" : "", profiler::cpus_text(missing),
                              missing.size() > 1 ? "are" : "is", profiler::cpus_text(allowed)),
                  "name CPUs that this process may run on, or local");
    return named;
  }
  if (device < 0) return profiler::share_of(allowed, rank, ranks);
  MB_ASSIGN(const CpuSet near, near_device(device));
  CpuSet both;
  std::set_intersection(near.begin(), near.end(), allowed.begin(), allowed.end(), std::back_inserter(both));
  return both.empty() ? allowed : both;  // a container without the near CPUs: what it has
}

}  // namespace

Status bind_rank(const std::string& binding, int device, int rank, int ranks) {
  if (binding == "none") return {};
  MB_ASSIGN(const CpuSet cpus, wanted(binding, device, rank, ranks));
  if (Status bound = profiler::bind_to(cpus); !bound)
    return tl::unexpected<Error>(std::move(bound.error()).during("host.cpu_binding = " + binding));
  return {};
}

Status check_binding(const std::string& binding) {
  if (binding == "local") return {};  // what is near a device is asked where the device is
  Status bound;
  std::thread([&] { bound = bind_rank(binding, -1, 0, 1); }).join();
  return bound;
}

std::string binding_in_force() {
  const CpuSet cpus = profiler::allowed_cpus();
  std::set<int> nodes;
  for (const int cpu : cpus) nodes.insert(profiler::numa_node_of(cpu));
  std::string text = profiler::cpus_text(cpus);
  nodes.erase(-1);
  if (nodes.empty()) return text;
  std::string list;
  for (const int node : nodes) list += (list.empty() ? "" : ", ") + std::to_string(node);
  return fmt::format("{} (NUMA node{} {})", text, nodes.size() > 1 ? "s" : "", list);
}

}  // namespace mbb::trainer
