// sched_setaffinity and sysfs.
#include "profiler/host/affinity.h"

#include <dirent.h>
#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

constexpr int64_t kMostCpus = CPU_SETSIZE;

}  // namespace

Result<CpuSet> parse_cpus(std::string_view text) {
  CpuSet cpus;
  for (const std::string_view part : split(trim(text), ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_int(trim(part.substr(0, dash)));
    const auto last = dash == std::string_view::npos ? first : parse_int(trim(part.substr(dash + 1)));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMostCpus)
      return fail(ErrorCode::kBadArgument, fmt::format("'{}' is no list of CPUs", printable(text)),
                  "write it as 0-3,8");
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string cpus_text(const CpuSet& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - i > 1 ? fmt::format("{}-{}", cpus[i], cpus[end - 1]) : std::to_string(cpus[i]);
    i = end;
  }
  return text;
}

CpuSet allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CpuSet cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

Status bind_to(const CpuSet& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("binding to CPUs {}: {}", cpus_text(cpus), std::strerror(errno)),
              fmt::format("this process may use {}", cpus_text(allowed_cpus())));
}

Result<CpuSet> cpus_near(const std::string& pci_bus_id) {
  const std::string file = "/sys/bus/pci/devices/" + to_lower(pci_bus_id) + "/local_cpulist";
  const auto text = read_file(file, 4096);
  if (!text || trim(*text).empty())
    return fail(ErrorCode::kUnavailable,
                fmt::format("which CPUs are near device {}: {} does not say", pci_bus_id, file),
                "name the CPUs: host.cpu_binding = 0-7");
  return parse_cpus(*text);
}

int numa_node_of(int cpu) {
  const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}", cpu);
  DIR* const listing = opendir(folder.c_str());
  if (listing == nullptr) return -1;
  int node = -1;
  while (const dirent* const entry = readdir(listing)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with("node")) continue;
    if (const auto number = parse_int(name.substr(4))) node = static_cast<int>(*number);
  }
  closedir(listing);
  return node;
}

CpuSet share_of(const CpuSet& cpus, int index, int parts) {
  const auto count = static_cast<int>(cpus.size());
  if (parts <= 1 || count < parts) return cpus;
  const auto at = [&](int part) { return cpus.begin() + part * count / parts; };
  return {at(index), at(index + 1)};
}

}  // namespace mbb::profiler
