// The sampling thread.
#include "profiler/capture/telemetry.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

// Busy and total jiffies of all CPUs; zeros where /proc/stat cannot be read.
struct HostTimes {
  int64_t busy = 0;
  int64_t total = 0;
};

HostTimes host_times() {
  HostTimes times;
  const auto text = read_file("/proc/stat", size_t{1} << 20U);
  if (!text) return times;
  const std::string_view line = std::string_view(*text).substr(0, text->find('\n'));
  int field = 0;
  for (const std::string_view part : split(line, ' ')) {
    const auto value = parse_int(part);
    if (!value) continue;
    times.total += *value;
    constexpr int kIdle = 3, kIoWait = 4;
    if (field != kIdle && field != kIoWait) times.busy += *value;
    ++field;
  }
  return times;
}

}  // namespace

struct Telemetry::Impl {
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::vector<TelemetrySample> samples;
  HostTimes host;
  int64_t process_ns = 0;
  int64_t at_ns = 0;
  std::thread thread;
};

Telemetry::Telemetry(TelemetryOptions options) : options_(std::move(options)) {
  if (!options_.gpus.empty()) {
    if (auto opened = Nvml::open())
      nvml_ = std::move(*opened);
    else
      note_ = opened.error().what;
  }
  begin();
}

Telemetry::Telemetry(TelemetryOptions options, std::unique_ptr<Nvml> nvml)
    : options_(std::move(options)), nvml_(std::move(nvml)) {
  begin();
}

Telemetry::~Telemetry() {
  stop();
}

void Telemetry::begin() {
  impl_ = std::make_unique<Impl>();
  impl_->host = host_times();
  impl_->process_ns = process_cpu_ns();
  impl_->at_ns = monotonic_ns();
  impl_->thread = std::thread([this] { loop(); });
}

void Telemetry::loop() {
  CpuSet free;
  const CpuSet allowed = allowed_cpus();
  std::set_difference(allowed.begin(), allowed.end(), options_.launch_cpus.begin(), options_.launch_cpus.end(),
                      std::back_inserter(free));
  if (!free.empty() && !options_.launch_cpus.empty()) static_cast<void>(bind_to(free));
  // Where it must share a core, it waits for the core to be idle.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  std::unique_lock lock(impl_->mutex);
  int64_t next = monotonic_ns();
  while (!impl_->stopping) {
    lock.unlock();
    sample();
    lock.lock();
    next += options_.period_ms * 1'000'000;
    const int64_t now = monotonic_ns();
    if (next < now) next = now;
    impl_->wake.wait_for(lock, std::chrono::nanoseconds(next - now), [this] { return impl_->stopping; });
  }
}

void Telemetry::sample() {
  std::vector<TelemetrySample> fresh;
  for (const int gpu : options_.gpus) {
    if (nvml_ == nullptr) break;
    TelemetrySample one;
    one.at_ns = monotonic_ns();
    one.gpu = gpu;
    if (const auto read = nvml_->sample(gpu))
      one.device = *read;
    else
      one.failed = true;
    fresh.push_back(one);
  }
  TelemetrySample host;
  host.at_ns = monotonic_ns();
  const HostTimes times = host_times();
  const int64_t process_ns = process_cpu_ns();
  if (times.total > impl_->host.total)
    host.host_busy =
        static_cast<double>(times.busy - impl_->host.busy) / static_cast<double>(times.total - impl_->host.total);
  // The first sample comes at once: too soon after the start for a share.
  if (host.at_ns - impl_->at_ns >= options_.period_ms * 1'000'000 / 2)
    host.process_cpus =
        static_cast<double>(process_ns - impl_->process_ns) / static_cast<double>(host.at_ns - impl_->at_ns);
  impl_->host = times, impl_->process_ns = process_ns, impl_->at_ns = host.at_ns;
  fresh.push_back(host);
  const std::lock_guard lock(impl_->mutex);
  impl_->samples.insert(impl_->samples.end(), fresh.begin(), fresh.end());
}

std::vector<TelemetrySample> Telemetry::drain() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->samples, {});
}

std::vector<TelemetrySample> Telemetry::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->wake.notify_all();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
  return std::move(impl_->samples);
}

std::string telemetry_csv(const std::vector<TelemetrySample>& samples, bool header) {
  std::string out;
  if (header)
    out =
        "at_ns,gpu,sm_mhz,memory_mhz,power_w,temperature_c,throttle_reasons,ecc_corrected,ecc_uncorrected,"
        "nvlink_tx_kib,nvlink_rx_kib,host_busy,process_cpus,failed\n";
  const auto known = [](int64_t value) { return value >= 0 ? std::to_string(value) : std::string(); };
  for (const TelemetrySample& s : samples) {
    if (s.gpu < 0) {
      out += fmt::format("{},,,,,,,,,,,{:.4f},{:.4f},\n", s.at_ns, s.host_busy, s.process_cpus);
    } else if (s.failed) {
      out += fmt::format("{},{},,,,,,,,,,,,1\n", s.at_ns, s.gpu);
    } else {
      const GpuTelemetry& d = s.device;
      out += fmt::format("{},{},{},{},{:.1f},{},{},{},{},{},{},,,\n", s.at_ns, s.gpu, d.sm_mhz, d.memory_mhz, d.power_w,
                         d.temperature_c, d.throttle_reasons, known(d.ecc_corrected), known(d.ecc_uncorrected),
                         known(d.nvlink_tx_kib), known(d.nvlink_rx_kib));
    }
  }
  return out;
}

}  // namespace mbb::profiler
