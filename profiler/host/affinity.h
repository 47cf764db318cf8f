// Which CPUs a thread may run on, and which lie near a GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

using CpuSet = std::vector<int>;  // ascending, each once

// "0-3,8" as the kernel writes lists of CPUs. An error names what is no such list.
Result<CpuSet> parse_cpus(std::string_view text);
std::string cpus_text(const CpuSet& cpus);

// CPUs this thread may run on now, as the kernel says.
CpuSet allowed_cpus();
// Binds this thread and the threads it will start. kUnavailable when the kernel refuses or no CPU is left.
Status bind_to(const CpuSet& cpus);

// CPUs next to a PCI device ("0000:1b:00.0", in any case); kUnavailable where the system does not say.
Result<CpuSet> cpus_near(const std::string& pci_bus_id);
// NUMA node of a CPU; -1 where the system does not say.
int numa_node_of(int cpu);

// Part `index` of `parts` of nearly equal length, in order; the whole set when it has fewer CPUs than parts.
CpuSet share_of(const CpuSet& cpus, int index, int parts);

}  // namespace mbb::profiler
