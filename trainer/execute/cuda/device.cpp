// Opening a device and its shared allocations.
#include "trainer/execute/cuda/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "profiler/base/check.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/nvml.h"
#include "trainer/execute/cuda/initial_values.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/rotation.h"

namespace mbb::trainer::cuda {
namespace {

constexpr const char* kScratch = "scratch memory of an op";
constexpr const char* kGradientScratch = "fp32 stand-ins of bf16 gradients";
constexpr const char* kOuterScratch = "scratch memory of an op that calls another";

// Read once: opening NVML takes a while on hosts of many GPUs.
Result<std::string> driver_version() {
  static const Result<std::string> told = []() -> Result<std::string> {
    MB_ASSIGN(const auto nvml, profiler::Nvml::open());
    return nvml->driver_version();
  }();
  if (told) return *told;
  int api = 0;
  MB_TRY(ok(cudaDriverGetVersion(&api), "reading the driver's CUDA version"));
  return fmt::format("CUDA {}", api);
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(int index) {
  MB_TRY(ok(cudaSetDevice(index), "choosing the CUDA device"));
  auto device = std::unique_ptr<Device>(new Device());
  int major = 0;
  MB_TRY(ok(cudaDeviceGetAttribute(&device->sms_, cudaDevAttrMultiProcessorCount, index), "reading the SM count"));
  MB_TRY(
      ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "reading the compute capability"));
  if (major != 9)
    return fail(ErrorCode::kUnavailable,
                fmt::format("CUDA device {} has compute capability {}.x; this build is for 9.0", index, major),
                "configure with MBB_CUDA_GENCODE for this device, or use host.device = cpu");
  MB_ASSIGN(device->gemm_, Gemm::make());
  cudaDeviceProp properties{};
  MB_TRY(ok(cudaGetDeviceProperties(&properties, index), "reading device properties"));
  device->machine_.device = properties.name;
  MB_ASSIGN(device->machine_.driver, driver_version());
  device->machine_.cublaslt = cublaslt_version();
  device->tuning_ = std::make_unique<GemmTuning>(device->machine_);
  MB_TRY(device->use(Stream::kCompute));
  return device;
}

Status Device::use(Stream stream, int confined_sms) {
  Lane& lane = lanes_[static_cast<size_t>(stream)];
  lane_ = &lane;
  lane.confined_sms = confined_sms;
  if (lane.stream != nullptr) return {};
  int least = 0, greatest = 0;
  MB_TRY(ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading stream priorities"));
  MB_TRY(ok(
      cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, stream == Stream::kCompute ? least : greatest),
      "creating a stream"));
  MB_ASSIGN(lane.gemm_workspace, allocate(kGemmWorkspace, "the GEMM workspace"));
  return {};
}

Device::~Device() {
  for (const Lane& lane : lanes_)
    if (lane.stream != nullptr) (void)cudaStreamSynchronize(lane.stream);
  for (auto& [key, table] : rope_) cudaFree(table);
  for (auto& [key, table] : constants_) cudaFree(table);
  cudaFree(alarm_);
  for (const Lane& lane : lanes_) {
    cudaFree(lane.scratch.data);
    cudaFree(lane.gradient_scratch.data);
    cudaFree(lane.outer.data);
    cudaFree(lane.gemm_workspace);
  }
  cudnn_.reset();
  gemm_.reset();
  for (const Lane& lane : lanes_)
    if (lane.stream != nullptr) cudaStreamDestroy(lane.stream);
}

Result<void*> Device::allocate(int64_t bytes, const char* what) {
  void* data = nullptr;
  Status there = ok(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 16))), what);
  if (!there && there.error().code == ErrorCode::kOutOfMemory) {
    there.error().what +=
        fmt::format("; {} asked for, {} held beside the plan", format_bytes(static_cast<double>(bytes)),
                    format_bytes(static_cast<double>(extra_bytes_)));
    there.error().hint = "the plan does not count this: a smaller micro-batch or more recompute leaves room";
  }
  MB_TRY(there);
  extra_bytes_ += bytes;
  allocations_.emplace_back(what, bytes);
  return data;
}

void Device::count(const std::string& what, int64_t bytes) {
  const auto known =
      std::find_if(allocations_.begin(), allocations_.end(), [&](const auto& a) { return a.first == what; });
  if (known != allocations_.end()) {
    extra_bytes_ += bytes - known->second;
    known->second = bytes;
  } else if (bytes > 0) {
    extra_bytes_ += bytes;
    allocations_.emplace_back(what, bytes);
  }
}

Status Device::load_tuning(const std::string& path) {
  MB_ASSIGN(const std::string text, read_file(path));
  auto read = GemmTuning::parse(text, machine_);
  if (!read) return tl::unexpected<Error>(std::move(read.error()).during("reading " + path));
  *tuning_ = std::move(*read);
  return {};
}

void Device::share_tuning(int index, int of) {
  share_index_ = index, share_of_ = of;
  left_.clear();
}

void Device::agree_on_tuning(const std::vector<std::string>& texts) {
  std::vector<std::pair<size_t, Error>> refused;
  *tuning_ = GemmTuning::agreed(texts, machine_, &refused);
  for (const auto& [rank, error] : refused)
    note(fmt::format("algorithms of rank {} are not taken: {}", rank, error.what));
  chosen_.clear();
  share_tuning(0, 1);
}

// With random values again, where a problem before left its results.
Result<std::vector<GemmBuffers>> Device::sets_of(const GemmProblem& problem, const GemmBuffers& own) {
  int device = 0, cache = 0;
  MB_TRY(ok(cudaGetDevice(&device), "reading the size of L2"));
  MB_TRY(ok(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "reading the size of L2"));
  std::vector<GemmBuffers> sets = rotated(problem, own, rotation_, cache);
  if (sets.size() > 1) {
    const auto bytes = std::min<int64_t>(static_cast<int64_t>(rotation_.size()), int64_t{4} * cache);
    MB_TRY(fill_normal(Element::kBf16, rotation_.data(), 0, bytes / 2, 0, 1.0f, stream()));
  }
  return sets;
}

namespace {

// Among bits at random some codes are NaN, and what sums NaNs takes less power than a step.
Status fill_codes(const GemmProblem& p, const GemmBuffers& buffers, cudaStream_t stream) {
  const auto fill = [&](Element element, const void* codes, int64_t count, uint64_t key) {
    return fill_normal(element, const_cast<void*>(codes), 0, count, key, 1.0f, stream);
  };
  MB_TRY(fill(p.a, buffers.a, p.m * p.k, 0));
  return fill(p.b, buffers.b, p.k * p.n, 1);
}

}  // namespace

Status Device::tune(const GemmProblem& problem, const GemmBuffers& buffers, const TuneEffort& effort) {
  // Alone on the device an algorithm that takes more SMs than its target is the fastest: the library's own choice keeps
  // to it.
  if (problem.sm_target > 0) return {};
  const std::string name = key(problem);
  if (left_.contains(name) || !chosen_.insert(name).second) return {};
  if (const TunedGemm* known = tuning_->find(name)) return gemm_->choose(problem, known->algorithm);
  // What time chooses differs between two runs, and with it the order of sums: the library's first choice stays.
  if (deterministic_) return {};
  if (share_of_ > 1 && static_cast<int>(left_.size() + tuning_->choices().size()) % share_of_ != share_index_) {
    chosen_.erase(name);
    left_.insert(name);
    return {};
  }
  MB_ASSIGN(const auto sets, sets_of(problem, buffers));
  if (problem.a_blocks != BlockScaling::kNone)
    for (const GemmBuffers& set : sets) MB_TRY(fill_codes(problem, set, stream()));
  MB_ASSIGN(const TunedGemm tuned, tune_gemm(*gemm_, problem, sets, effort, stream()));
  tuning_->set(name, tuned);
  return {};
}

CudnnAttention* Device::cudnn() {
  if (!cudnn_tried_) {
    cudnn_tried_ = true;
    if (auto opened = CudnnAttention::make())
      cudnn_ = std::move(*opened);
    else
      cudnn_reason_ = opened.error().what;
  }
  return cudnn_.get();
}

void Device::refuse(const std::string& problem, const std::string& reason) {
  if (refused_.insert(problem).second) notes_.push_back(problem + ": " + reason);
}

// What was timed on another cuDNN says nothing of this one.
std::string Device::of_this_cudnn(const std::string& attention) {
  return cudnn() == nullptr ? attention + ", no cuDNN" : fmt::format("{}, cuDNN {}", attention, cudnn()->version());
}

std::optional<AttentionKernel> Device::attention_choice(const std::string& attention) {
  const TunedGemm* const known = tuning_->find(of_this_cudnn(attention));
  return known == nullptr ? std::nullopt : std::optional(static_cast<AttentionKernel>(known->algorithm[0]));
}

void Device::choose_attention(const std::string& attention, AttentionKernel kernel, const std::vector<double>& times_ms,
                              const std::string& why) {
  const double best = *std::min_element(times_ms.begin(), times_ms.end());
  tuning_->set(
      of_this_cudnn(attention),
      {{static_cast<uint64_t>(kernel)}, best * 1e3, times_ms.front() * 1e3, static_cast<int>(times_ms.size())});
  adopt_attention(attention, kernel, why);
}

void Device::adopt_attention(const std::string& attention, AttentionKernel kernel, const std::string& why) {
  const auto [noted, first] = attention_noted_.try_emplace(attention, kernel);
  if (!first && noted->second == kernel) return;
  noted->second = kernel;
  note(attention + ": " + why);
}

std::optional<bool> Device::one_kernel(const std::string& fused) const {
  const TunedGemm* const known = tuning_->find(fused);
  return known == nullptr ? std::nullopt : std::optional(known->algorithm[0] != 0);
}

void Device::choose_one_kernel(const std::string& fused, double one_ms, double in_turn_ms) {
  const bool one = one_ms <= in_turn_ms;
  tuning_->set(fused, {{one ? 1U : 0U}, std::min(one_ms, in_turn_ms) * 1e3, in_turn_ms * 1e3, 2});
  note(fmt::format("{}: one kernel {:.3f} ms, its parts in turn {:.3f} ms: {}", fused, one_ms, in_turn_ms,
                   one ? "one kernel" : "in turn"));
}

Result<void*> Device::scratch(int64_t bytes) {
  return grow(lane_->scratch, bytes, kScratch);
}

Result<void*> Device::gradient_scratch(int64_t bytes) {
  return grow(lane_->gradient_scratch, bytes, kGradientScratch);
}

Result<void*> Device::outer_scratch(int64_t bytes) {
  return grow(lane_->outer, bytes, kOuterScratch);
}

Result<int32_t*> Device::alarm() {
  if (alarm_ != nullptr) return alarm_;
  MB_ASSIGN(void* const flag, allocate(2 * sizeof(int32_t), "an op's alarm"));
  MB_TRY(ok(cudaMemsetAsync(flag, 0, 2 * sizeof(int32_t), lane_->stream), "clearing an op's alarm"));
  MB_TRY(ok(cudaStreamSynchronize(lane_->stream), "clearing an op's alarm"));
  alarm_ = static_cast<int32_t*>(flag);
  return alarm_;
}

Result<void*> Device::grow(Growing& memory, int64_t bytes, const char* what) {
  if (bytes <= memory.bytes) return memory.data;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  MB_TRY(ok(cudaStreamIsCapturing(lane_->stream, &capturing), "growing scratch memory"));
  MB_CHECK(capturing == cudaStreamCaptureStatusNone, "scratch memory grows while a step is captured");
  MB_TRY(ok(cudaStreamSynchronize(lane_->stream), "growing scratch memory"));
  MB_TRY(ok(cudaFree(memory.data), "growing scratch memory"));
  extra_bytes_ -= memory.bytes;
  const auto entry = std::find(allocations_.begin(), allocations_.end(), std::pair(std::string(what), memory.bytes));
  if (entry != allocations_.end()) allocations_.erase(entry);
  memory = {};
  MB_ASSIGN(memory.data, allocate(bytes, what));
  memory.bytes = bytes;
  return memory.data;
}

Result<const void*> Device::constant(const void* owner, std::span<const std::byte> bytes) {
  if (const auto at = constants_.find(owner); at != constants_.end()) return static_cast<const void*>(at->second);
  MB_ASSIGN(void* const table, allocate(static_cast<int64_t>(bytes.size()), "a constant table of an op"));
  constants_[owner] = table;
  MB_TRY(ok(cudaMemcpyAsync(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, lane_->stream),
            "uploading a constant table"));
  MB_TRY(ok(cudaStreamSynchronize(lane_->stream), "uploading a constant table"));
  return static_cast<const void*>(table);
}

Result<const float*> Device::rope_table(int64_t seq, int turned, const Rotation& r) {
  const int half = turned / 2;
  auto& table = rope_[{seq, turned, r.theta, r.factor, r.frequencies, r.positions.run, r.positions.starts}];
  if (table != nullptr) return static_cast<const float*>(table);
  std::vector<float> values(static_cast<size_t>(seq * half * 2));
  const std::vector<double> frequencies = frequencies_of(r, turned);
  for (int pair = 0; pair < half; ++pair) {
    for (int64_t s = 0; s < seq; ++s) {
      const double angle = static_cast<double>(r.positions.at(s)) * frequencies[static_cast<size_t>(pair)];
      const auto at = static_cast<size_t>(s * half + pair) * 2;
      values[at] = static_cast<float>(std::cos(angle) * r.factor);
      values[at + 1] = static_cast<float>(std::sin(angle) * r.factor);
    }
  }
  const auto bytes = values.size() * sizeof(float);
  MB_ASSIGN(void* const fresh, allocate(static_cast<int64_t>(bytes), "a rotary table"));
  MB_TRY(ok(cudaMemcpyAsync(fresh, values.data(), bytes, cudaMemcpyHostToDevice, lane_->stream),
            "uploading a rotary table"));
  MB_TRY(ok(cudaStreamSynchronize(lane_->stream), "uploading a rotary table"));
  table = static_cast<float*>(fresh);
  return static_cast<const float*>(table);
}

}  // namespace mbb::trainer::cuda
