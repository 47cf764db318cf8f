// Which NVIDIA GPUs and driver this machine has.
#include "profiler/host/gpus.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/visible_gpus.h"

namespace mbb::profiler {
namespace {

// Own prototypes of the management library's C interface: its header is part of no package we may need.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
constexpr int kNvmlSuccess = 0;

struct CloseLibrary {
  void operator()(void* handle) const { ::dlclose(handle); }
};

class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) return;
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(driver_version_, "nvmlSystemGetDriverVersion");
    find(cuda_version_, "nvmlSystemGetCudaDriverVersion_v2");
    find(count_, "nvmlDeviceGetCount_v2");
    find(device_, "nvmlDeviceGetHandleByIndex_v2");
    find(name_, "nvmlDeviceGetName");
    find(memory_, "nvmlDeviceGetMemoryInfo");
    find(power_limit_, "nvmlDeviceGetEnforcedPowerLimit");
    find(uuid_, "nvmlDeviceGetUUID");
    find(nvlink_state_, "nvmlDeviceGetNvLinkState");
    const bool complete =
        init_ && shutdown_ && driver_version_ && cuda_version_ && count_ && device_ && name_ && memory_;
    running_ = complete && init_() == kNvmlSuccess;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (running_) shutdown_();
  }

  bool found() const { return library_ != nullptr; }
  bool running() const { return running_; }

  std::string driver() const {
    std::array<char, 96> text{};
    return driver_version_(text.data(), static_cast<unsigned>(text.size())) == kNvmlSuccess ? text.data() : "";
  }

  std::string cuda_driver() const {
    int version = 0;  // 13000 for 13.0
    if (cuda_version_(&version) != kNvmlSuccess) return "";
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  }

  unsigned count() const {
    unsigned count = 0;
    return count_(&count) == kNvmlSuccess ? count : 0;
  }

  bool read(unsigned index, GpuFacts& gpu) const {
    NvmlDevice device = nullptr;
    std::array<char, 96> text{};
    if (device_(index, &device) != kNvmlSuccess) return false;
    if (name_(device, text.data(), static_cast<unsigned>(text.size())) != kNvmlSuccess) return false;
    gpu.model = text.data();
    NvmlMemory memory{};
    if (memory_(device, &memory) == kNvmlSuccess) gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    unsigned milliwatts = 0;
    if (power_limit_ && power_limit_(device, &milliwatts) == kNvmlSuccess) gpu.power_limit_w = milliwatts / 1000.0;
    if (uuid_ && uuid_(device, text.data(), static_cast<unsigned>(text.size())) == kNvmlSuccess) gpu.uuid = text.data();
    gpu.nvlinks = nvlinks(device);
    return true;
  }

 private:
  // Asked link by link, up to the first that the card says it has not.
  int nvlinks(NvmlDevice device) const {
    constexpr unsigned kMostLinks = 36;
    if (nvlink_state_ == nullptr) return -1;
    int up = 0;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      int active = 0;
      if (nvlink_state_(device, link, &active) != kNvmlSuccess) break;
      up += active != 0 ? 1 : 0;
    }
    return up;
  }

  template <typename Function>
  void find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(::dlsym(library_.get(), symbol));
  }

  std::unique_ptr<void, CloseLibrary> library_;
  bool running_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*driver_version_)(char*, unsigned) = nullptr;
  int (*cuda_version_)(int*) = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*device_)(unsigned, NvmlDevice*) = nullptr;
  int (*name_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*power_limit_)(NvmlDevice, unsigned*) = nullptr;
  int (*uuid_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*nvlink_state_)(NvmlDevice, unsigned, int*) = nullptr;
};

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159  Tue ...": the first word that looks like a version.
std::string driver_of(const std::string& version_file) {
  const std::string line = field_of(version_file, "NVRM version", ':');
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    if (!word.empty() && word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos) return word;
    at = end + 1;
  }
  return "";
}

GpuInventory from_proc(const std::string& why) {
  GpuInventory inventory;
  inventory.note = why;
  const auto version = read_file("/proc/driver/nvidia/version");
  if (!version) return inventory;
  inventory.driver = driver_of(*version);
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/driver/nvidia/gpus", error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const auto information = read_file(entries->path() / "information");
    if (information)
      inventory.gpus.push_back({field_of(*information, "Model", ':'), 0, 0, field_of(*information, "GPU UUID", ':')});
  }
  return inventory;
}

}  // namespace

namespace {

GpuInventory all_gpus() {
  const Nvml nvml;
  if (!nvml.found()) return from_proc("no libnvidia-ml.so.1");
  if (!nvml.running()) return from_proc("libnvidia-ml.so.1 does not start");
  GpuInventory inventory;
  inventory.driver = nvml.driver();
  inventory.cuda_driver = nvml.cuda_driver();
  for (unsigned i = 0; i < nvml.count(); ++i) {
    GpuFacts gpu;
    if (!nvml.read(i, gpu)) {
      inventory.note = fmt::format("GPU {} does not answer", i);
      continue;
    }
    gpu.nvml_index = static_cast<int>(i);
    inventory.gpus.push_back(std::move(gpu));
  }
  return inventory;
}

// Also an empty value counts: it hides all.
std::optional<std::string> visible_devices() {
  for (auto& [name, value] : env_all())
    if (name == "CUDA_VISIBLE_DEVICES") return value;
  return std::nullopt;
}

}  // namespace

GpuInventory list_gpus() {
  GpuInventory inventory = all_gpus();
  std::vector<std::string> uuids;
  for (const GpuFacts& gpu : inventory.gpus) uuids.push_back(gpu.uuid);
  const auto places = visible_gpus(visible_devices(), uuids);
  if (!places) {
    inventory.note = "CUDA_VISIBLE_DEVICES names a MIG instance: all GPUs are listed";
    return inventory;
  }
  if (places->size() < uuids.size())
    inventory.note = fmt::format("CUDA_VISIBLE_DEVICES shows {} of {} GPUs", places->size(), uuids.size());
  std::vector<GpuFacts> shown;
  for (const int place : *places) shown.push_back(inventory.gpus[static_cast<std::size_t>(place)]);
  inventory.gpus = std::move(shown);
  return inventory;
}

std::string nvlink_text(const std::vector<GpuFacts>& gpus) {
  std::map<int, int, std::greater<>> counted;
  for (const GpuFacts& gpu : gpus) ++counted[gpu.nvlinks];
  if (counted.empty() || counted.contains(-1)) return "";
  if (counted.size() == 1 && counted.contains(0)) return "none";
  std::string text;
  for (const auto& [links, count] : counted)
    text += fmt::format("{}{} x {} links", text.empty() ? "" : ", ", count, links);
  return text;
}

int nvml_index_of(int device) {
  const auto gpus = list_gpus().gpus;
  return static_cast<std::size_t>(device) < gpus.size() ? gpus[static_cast<std::size_t>(device)].nvml_index : device;
}

}  // namespace mbb::profiler
