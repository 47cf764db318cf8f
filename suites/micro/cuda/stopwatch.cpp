// Sustained timing with telemetry.
#include "suites/micro/cuda/stopwatch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include "profiler/host/gpus.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using trainer::cuda::ok;
using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Samples every 10 ms from construction to finish().
class Sampler {
 public:
  explicit Sampler(const profiler::Nvml* nvml) : nvml_(nvml) {
    if (nvml_ != nullptr) thread_ = std::thread([this] { loop(); });
  }
  ~Sampler() { stop(); }
  void finish(Timing& timing) {
    stop();
    if (count_ == 0) return;
    timing.sm_mhz = mhz_ / count_;
    timing.power_w = watts_ / count_;
    timing.throttle_reasons = reasons_;
  }

 private:
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void loop() {
    while (!stopping_) {
      if (const auto sample = nvml_->sample(gpu_)) {
        mhz_ += sample->sm_mhz;
        watts_ += sample->power_w;
        reasons_ |= sample->throttle_reasons;
        count_ += 1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const profiler::Nvml* nvml_;
  const int gpu_ = profiler::nvml_index_of(0);
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  double mhz_ = 0.0, watts_ = 0.0, count_ = 0.0;
  uint64_t reasons_ = 0;
};

}  // namespace

Stopwatch::Stopwatch(cudaStream_t stream) : stream_(stream) {
  for (cudaEvent_t* event : {&start_, &stop_})
    if (created_) created_ = ok(cudaEventCreate(event), "creating an event");
  if (auto opened = profiler::Nvml::open()) nvml_ = std::move(*opened);
}

Stopwatch::~Stopwatch() {
  for (cudaEvent_t event : {start_, stop_})
    if (event != nullptr) cudaEventDestroy(event);
}

Result<double> Stopwatch::batch(const std::function<Status()>& call, int calls) {
  MB_TRY(created_);
  MB_TRY(ok(cudaEventRecord(start_, stream_), "timing"));
  for (int i = 0; i < calls; ++i) MB_TRY(call());
  MB_TRY(ok(cudaEventRecord(stop_, stream_), "timing"));
  MB_TRY(ok(cudaEventSynchronize(stop_), "timing"));
  float ms = 0.0f;
  MB_TRY(ok(cudaEventElapsedTime(&ms, start_, stop_), "timing"));
  return static_cast<double>(ms) / calls;
}

Result<double> Stopwatch::quick(const std::function<Status()>& call, int calls) {
  MB_TRY(call());
  return batch(call, calls);
}

Result<Timing> Stopwatch::sustained(const std::function<Status()>& call, double seconds) {
  MB_ASSIGN(const double guess, quick(call, 2));
  const int calls = std::clamp(static_cast<int>(std::lround(20.0 / std::max(guess, 1e-3))), 1, 4000);
  const auto warm = SteadyClock::now();
  while (seconds_since(warm) < seconds / 4) MB_TRY(batch(call, calls));
  Timing timing;
  std::vector<double> times;
  Sampler sampler(nvml_.get());
  const auto start = SteadyClock::now();
  while (seconds_since(start) < seconds * 3 / 4 || times.size() < 3) {
    MB_ASSIGN(const double ms, batch(call, calls));
    times.push_back(ms);
  }
  sampler.finish(timing);
  std::sort(times.begin(), times.end());
  timing.ms = times[times.size() / 2];
  timing.ms_min = times.front();
  timing.ms_max = times.back();
  timing.calls = calls * static_cast<int>(times.size());
  return timing;
}

}  // namespace mbb::suites
