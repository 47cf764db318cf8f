// NVML by dlopen. Prototypes are our own: this project has no nvml.h.
#include "profiler/host/nvml.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <utility>

namespace mbb::profiler {
namespace {

using Device = void*;

class OpenNvml final : public Nvml {
 public:
  static Result<std::unique_ptr<Nvml>> open() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr)
      return fail(ErrorCode::kUnavailable, fmt::format("NVML: {}", dlerror()),
                  "clocks and power are not sampled without the NVIDIA driver's libnvidia-ml.so.1");
    auto nvml = std::unique_ptr<OpenNvml>(new OpenNvml(library));
    MB_TRY(nvml->load());
    return std::unique_ptr<Nvml>(std::move(nvml));
  }

  ~OpenNvml() override {
    if (shutdown_ != nullptr) shutdown_();
    dlclose(library_);
  }

  Result<int> device_count() const override {
    unsigned count = 0;
    MB_TRY(good(count_(&count), "counting devices"));
    return static_cast<int>(count);
  }

  Result<std::string> device_name(int device) const override {
    MB_ASSIGN(const Device handle, handle_of(device));
    std::array<char, 128> text{};
    MB_TRY(good(name_(handle, text.data(), static_cast<unsigned>(text.size())), "reading the device name"));
    return std::string(text.data());
  }

  Result<std::string> driver_version() const override {
    std::array<char, 96> text{};
    MB_TRY(good(driver_(text.data(), static_cast<unsigned>(text.size())), "reading the driver version"));
    return std::string(text.data());
  }

  Result<double> power_limit_w(int device) const override {
    MB_ASSIGN(const Device handle, handle_of(device));
    unsigned milliwatts = 0;
    MB_TRY(good(limit_(handle, &milliwatts), "reading the power limit"));
    return milliwatts * 1e-3;
  }

  Result<GpuTelemetry> sample(int device) const override {
    MB_ASSIGN(const Device handle, handle_of(device));
    GpuTelemetry t;
    unsigned milliwatts = 0;
    unsigned long long reasons = 0;
    MB_TRY(good(clock_(handle, 1, &t.sm_mhz), "reading the SM clock"));
    MB_TRY(good(clock_(handle, 2, &t.memory_mhz), "reading the memory clock"));
    MB_TRY(good(power_(handle, &milliwatts), "reading the power"));
    MB_TRY(good(temperature_(handle, 0, &t.temperature_c), "reading the temperature"));
    MB_TRY(good(reasons_(handle, &reasons), "reading the throttle reasons"));
    t.power_w = milliwatts * 1e-3;
    t.throttle_reasons = reasons;
    t.ecc_corrected = ecc_errors(handle, 0);
    t.ecc_uncorrected = ecc_errors(handle, 1);
    t.nvlink_tx_kib = field_value(handle, kNvlinkTxKib);
    t.nvlink_rx_kib = field_value(handle, kNvlinkRxKib);
    return t;
  }

 private:
  explicit OpenNvml(void* library) : library_(library) {}

  template <typename F>
  Status symbol(F& to, const char* symbol_name) {
    to = reinterpret_cast<F>(dlsym(library_, symbol_name));
    if (to != nullptr) return {};
    return fail(ErrorCode::kUnavailable, fmt::format("NVML: this driver's library has no {}", symbol_name));
  }

  Status load() {
    int (*init)() = nullptr;
    MB_TRY(symbol(init, "nvmlInit_v2"));
    MB_TRY(symbol(error_, "nvmlErrorString"));
    MB_TRY(symbol(count_, "nvmlDeviceGetCount_v2"));
    MB_TRY(symbol(handle_, "nvmlDeviceGetHandleByIndex_v2"));
    MB_TRY(symbol(name_, "nvmlDeviceGetName"));
    MB_TRY(symbol(driver_, "nvmlSystemGetDriverVersion"));
    MB_TRY(symbol(limit_, "nvmlDeviceGetEnforcedPowerLimit"));
    MB_TRY(symbol(clock_, "nvmlDeviceGetClockInfo"));
    MB_TRY(symbol(power_, "nvmlDeviceGetPowerUsage"));
    MB_TRY(symbol(temperature_, "nvmlDeviceGetTemperature"));
    MB_TRY(symbol(reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons"));
    ecc_ = reinterpret_cast<decltype(ecc_)>(dlsym(library_, "nvmlDeviceGetTotalEccErrors"));
    fields_ = reinterpret_cast<decltype(fields_)>(dlsym(library_, "nvmlDeviceGetFieldValues"));
    MB_TRY(good(init(), "starting"));
    return symbol(shutdown_, "nvmlShutdown");
  }

  Status good(int status, const char* doing) const {
    if (status == 0) return {};
    return fail(ErrorCode::kUnavailable, fmt::format("NVML, {}: {}", doing, error_(status)));
  }

  Result<Device> handle_of(int device) const {
    Device handle = nullptr;
    MB_TRY(good(handle_(static_cast<unsigned>(device), &handle), "finding the device"));
    return handle;
  }

  void* library_;
  // Counters that not every card has: absence is no error.
  int64_t ecc_errors(Device handle, int type) const {
    constexpr int kSinceDriverLoad = 0;
    unsigned long long count = 0;
    if (ecc_ == nullptr || ecc_(handle, type, kSinceDriverLoad, &count) != 0) return -1;
    return static_cast<int64_t>(count);
  }

  int64_t field_value(Device handle, unsigned id) const {
    FieldValue value;
    value.id = id;
    value.scope = kAllLinks;
    if (fields_ == nullptr || fields_(handle, 1, &value) != 0 || value.status != 0) return -1;
    return static_cast<int64_t>(value.value);
  }

  // nvmlFieldValue_t.
  struct FieldValue {
    unsigned id = 0;
    unsigned scope = 0;
    long long timestamp = 0;
    long long latency_us = 0;
    int value_type = 0;
    int status = 0;
    unsigned long long value = 0;
  };
  static constexpr unsigned kNvlinkTxKib = 138;  // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
  static constexpr unsigned kNvlinkRxKib = 139;
  static constexpr unsigned kAllLinks = ~0U;

  int (*ecc_)(Device, int, int, unsigned long long*) = nullptr;
  int (*fields_)(Device, int, FieldValue*) = nullptr;
  const char* (*error_)(int) = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*driver_)(char*, unsigned) = nullptr;
  int (*limit_)(Device, unsigned*) = nullptr;
  int (*clock_)(Device, int, unsigned*) = nullptr;
  int (*power_)(Device, unsigned*) = nullptr;
  int (*temperature_)(Device, int, unsigned*) = nullptr;
  int (*reasons_)(Device, unsigned long long*) = nullptr;
};

}  // namespace

std::string throttle_text(uint64_t reasons) {
  // nvmlClocksThrottleReason... bits, by NVML's documentation.
  static constexpr std::pair<uint64_t, const char*> kBits[] = {{0x1, "idle"},
                                                               {0x2, "clocks set by the user"},
                                                               {0x4, "power cap"},
                                                               {0x8, "hardware slowdown"},
                                                               {0x10, "sync boost"},
                                                               {0x20, "software thermal"},
                                                               {0x40, "hardware thermal"},
                                                               {0x80, "hardware power brake"},
                                                               {0x100, "display clock"}};
  std::string text;
  uint64_t unknown = reasons;
  for (const auto& [bit, what] : kBits) {
    if ((reasons & bit) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", what);
    unknown &= ~bit;
  }
  if (unknown != 0) text += fmt::format("{}{:#x}", text.empty() ? "" : ", ", unknown);
  return text.empty() ? "none" : text;
}

Result<std::unique_ptr<Nvml>> Nvml::open() {
  return OpenNvml::open();
}

}  // namespace mbb::profiler
