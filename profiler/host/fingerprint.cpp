// What a machine is: reads the facts, and hashes those that make timings comparable.
#include "profiler/host/fingerprint.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/gpus.h"

namespace mbb::profiler {
namespace {

constexpr const char* kUnknown = "unknown";

std::string file_text(const char* path) {
  return read_file(path).value_or("");
}

class Facts {
 public:
  void add(std::string key, std::string value, bool in_class = false) {
    if (value.empty()) value = kUnknown;
    facts_.push_back({std::move(key), std::move(value), in_class});
  }
  std::vector<HostFact> take() { return std::move(facts_); }

 private:
  std::vector<HostFact> facts_;
};

// CPUs this process may use, which a container or a binding makes fewer than the machine has.
int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 0;
  return CPU_COUNT(&set);
}

void add_host(Facts& facts) {
  utsname system{};
  const bool named = ::uname(&system) == 0;
  const std::string machine = named ? system.machine : kUnknown;
  const std::string cpuinfo = file_text("/proc/cpuinfo");
  const std::string model = field_of(cpuinfo, "model name", ':');  // Arm's kernels name none
  facts.add("cpu.arch", machine, true);
  facts.add("cpu.model", model.empty() && !cpuinfo.empty() ? machine : model, true);
  facts.add("cpu.online", std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)), true);
  facts.add("cpu.usable", std::to_string(usable_cpus()), true);
  // "MemTotal: 65843212 kB"; whole GiB, since the kernel's own share moves with its version.
  const std::string total = field_of(file_text("/proc/meminfo"), "MemTotal", ':');
  const auto total_kib = parse_int(split(total, ' ').front());
  facts.add("memory.total_gib", total_kib ? std::to_string(*total_kib / (1024 * 1024)) : "");
  facts.add("numa.nodes", std::string(trim(file_text("/sys/devices/system/node/online"))));
  facts.add("kernel.release", named ? system.release : "");
  facts.add("os.name", field_of(file_text("/etc/os-release"), "PRETTY_NAME", '='));
}

void add_build(Facts& facts) {
  for (HostFact& fact : build_facts()) facts.add(std::move(fact.key), std::move(fact.value));
  facts.add("library.glibc", ::gnu_get_libc_version(), true);
}

void add_gpus(Facts& facts) {
  const GpuInventory inventory = list_gpus();
  facts.add("gpu.count", std::to_string(inventory.gpus.size()), true);
  if (!inventory.note.empty()) facts.add("gpu.note", inventory.note);
  if (inventory.driver.empty()) return;
  facts.add("gpu.driver", inventory.driver, true);
  facts.add("gpu.cuda_driver", inventory.cuda_driver, true);
  std::map<std::string, int> models;
  std::map<std::string, int> limits;
  for (const GpuFacts& gpu : inventory.gpus) {
    ++models[fmt::format("{} ({:.0f} GiB)", gpu.model, static_cast<double>(gpu.memory_bytes) / 0x1p30)];
    ++limits[fmt::format("{:.0f} W", gpu.power_limit_w)];
  }
  const auto list = [](const std::map<std::string, int>& counted) {
    std::string text;
    for (const auto& [what, count] : counted) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, what);
    return text;
  };
  facts.add("gpu.model", list(models), true);
  facts.add("gpu.power_limit", list(limits), true);
  // Several GPUs are as fast as their links; another number of them begins a new epoch, not a new series.
  if (inventory.gpus.size() > 1) facts.add("gpu.nvlink", nvlink_text(inventory.gpus));
}

}  // namespace

std::string field_of(std::string_view text, std::string_view field, char separator) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t at = line.find(separator);
    if (at == std::string_view::npos || trim(line.substr(0, at)) != field) continue;
    std::string_view value = trim(line.substr(at + 1));
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
    return std::string(value);
  }
  return {};
}

std::vector<HostFact> build_facts() {
#ifdef NDEBUG
  const char* checks = "release";
#else
  const char* checks = "debug";
#endif
  return {{"build.commit", build_commit()}, {"build.compiler", "g++ " __VERSION__}, {"build.checks", checks}};
}

Fingerprint make_fingerprint(std::vector<HostFact> facts) {
  std::sort(facts.begin(), facts.end(), [](const HostFact& a, const HostFact& b) { return a.key < b.key; });
  std::string text;
  for (const HostFact& fact : facts) {
    // Lengths keep neighbouring texts apart.
    if (fact.in_class) text += fmt::format("{}:{}={}:{};", fact.key.size(), fact.key, fact.value.size(), fact.value);
  }
  return {std::move(facts), fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()))};
}

Fingerprint take_fingerprint(std::vector<HostFact> more) {
  Facts facts;
  add_host(facts);
  add_build(facts);
  add_gpus(facts);
  std::vector<HostFact> all = facts.take();
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return make_fingerprint(std::move(all));
}

}  // namespace mbb::profiler
