// What the ops of one rank share on its device: streams, cuBLASLt and cuDNN, scratch, and small constant tables.
//
// Everything is allocated while the first step runs (or when an op case runs); afterwards the pointers stay, so that a
// captured step can be replayed. Not for use from two threads.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/execute/cuda/gemm_tuner.h"
#include "trainer/ops/attrs.h"
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/kernels.h"
#include "trainer/program/program.h"

namespace mbb::trainer::cuda {

class Device {
 public:
  // Opens device `index` for this thread.
  static Result<std::unique_ptr<Device>> open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // From now on ops enqueue on this stream of the program, which is made when first asked for. Streams besides compute
  // come first on the device, and `confined_sms` of it are all that their memory-bound kernels take (0: as many as
  // fit).
  Status use(Stream stream, int confined_sms = 0);
  Launch launch() const { return {lane_->stream, {sms_, 0}, lane_->confined_sms}; }
  cudaStream_t stream() const { return lane_->stream; }
  cudaStream_t stream_of(Stream stream) const { return lanes_[static_cast<size_t>(stream)].stream; }
  int sms() const { return sms_; }
  Gemm& gemm() { return *gemm_; }
  void* gemm_workspace() const { return lane_->gemm_workspace; }
  // Choices of an earlier tuning on such a machine, from now on used by tune().
  Status load_tuning(const std::string& path);
  const GemmTuning& tuning() const { return *tuning_; }
  // From now on tune() lets calls take turns over this memory, which it overwrites, where they would find their
  // operands in the cache; it begins at 256.
  void rotate_over(std::span<std::byte> memory) { rotation_ = memory; }
  // From now on tune() times every `of`-th problem that it does not know, from number `index` on, and leaves the
  // others: ranks share the work and agree_on_tuning() afterwards. (0, 1): all of them again.
  void share_tuning(int index, int of);
  // Goes on with the choices that all ranks agree on, given every rank's tuning().text() by rank; tune() applies them.
  void agree_on_tuning(const std::vector<std::string>& texts);
  // Chooses the algorithm of a problem: as tuned before, else by timing candidates, which overwrites the output and
  // codes that have a scale a block.
  Status tune(const GemmProblem& problem, const GemmBuffers& buffers, const TuneEffort& effort);
  // cuDNN, opened on first use; nullptr (with the reason in cudnn_reason()) when it is not here.
  CudnnAttention* cudnn();
  const std::string& cudnn_reason() const { return cudnn_reason_; }

  // What a library did not take, with its words and what computes it instead: said once a problem.
  bool refused(const std::string& problem) const { return refused_.contains(problem); }
  void refuse(const std::string& problem, const std::string& reason);
  void note(std::string what) { notes_.push_back(std::move(what)); }
  const std::vector<std::string>& notes() const { return notes_; }

  // Whether results must not depend on the order in which thread blocks end (host.deterministic_mode).
  bool deterministic() const { return deterministic_; }
  void set_deterministic(bool on) { deterministic_ = on; }
  // What computes an attention op of this key, as measured by this rank, by the first of its peers or by who wrote the
  // tuning file: kept with the GEMMs' choices. Else nullopt. Times: of every kernel that was tried, in their order.
  std::optional<AttentionKernel> attention_choice(const std::string& attention);
  void choose_attention(const std::string& attention, AttentionKernel kernel, const std::vector<double>& times_ms,
                        const std::string& why);
  // One that was chosen elsewhere; noted unless it is what was chosen here, too.
  void adopt_attention(const std::string& attention, AttentionKernel kernel, const std::string& why);
  // Whether one kernel does what a fused op of this key stands for: as measured here or by who wrote the tuning file.
  std::optional<bool> one_kernel(const std::string& fused) const;
  void choose_one_kernel(const std::string& fused, double one_ms, double in_turn_ms);

  // Scratch for one op, valid until the next op of this stream asks. Grows only before a step is captured.
  Result<void*> scratch(int64_t bytes);
  // The same for fp32 stand-ins of bf16 gradients, beside what the op itself asks for.
  Result<void*> gradient_scratch(int64_t bytes);
  // The same for an op that calls another one, which asks for scratch itself.
  Result<void*> outer_scratch(int64_t bytes);
  // A constant table of an op, uploaded once; `owner` is its key.
  Result<const void*> constant(const void* owner, std::span<const std::byte> bytes);
  // cos and sin of where rows 0 .. seq-1 lie, times the rotation's factor: [seq, turned/2, 2].
  Result<const float*> rope_table(int64_t seq, int turned, const Rotation& rotation);
  // A flag for what only the device can see: {id of the op, 0 while all is well; a number that says more}.
  Result<int32_t*> alarm();
  const int32_t* raised() const { return alarm_; }

  // Bytes beside the memory plan's arena: workspaces, scratch, tables.
  int64_t extra_bytes() const { return extra_bytes_; }
  // Counts bytes that others hold here by name; again: the new count.
  void count(const std::string& what, int64_t bytes);
  // The same, one by one: what for, and bytes.
  const std::vector<std::pair<std::string, int64_t>>& allocations() const { return allocations_; }

 private:
  Device() = default;
  Result<void*> allocate(int64_t bytes, const char* what);
  Result<std::vector<GemmBuffers>> sets_of(const GemmProblem& problem, const GemmBuffers& own);
  std::string of_this_cudnn(const std::string& attention);

  // Memory of a lane that grows until a step is captured.
  struct Growing {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  Result<void*> grow(Growing& memory, int64_t bytes, const char* what);

  // What ops that run at the same time must not share.
  struct Lane {
    cudaStream_t stream = nullptr;
    void* gemm_workspace = nullptr;
    Growing scratch, gradient_scratch, outer;
    int confined_sms = 0;
  };
  std::array<Lane, kStreams> lanes_;
  Lane* lane_ = nullptr;
  int sms_ = 0;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudnnAttention> cudnn_;
  bool cudnn_tried_ = false;
  std::string cudnn_reason_;
  int64_t extra_bytes_ = 0;
  std::vector<std::pair<std::string, int64_t>> allocations_;
  TuningMachine machine_;
  std::unique_ptr<GemmTuning> tuning_;
  std::set<std::string> chosen_;
  std::map<std::string, AttentionKernel> attention_noted_;
  bool deterministic_ = false;
  std::set<std::string> refused_;
  std::vector<std::string> notes_;
  int share_index_ = 0, share_of_ = 1;
  std::span<std::byte> rotation_;
  std::set<std::string> left_;  // problems that another rank times
  std::map<const void*, void*> constants_;
  std::map<std::tuple<int64_t, int, double, double, std::vector<double>, int64_t, std::vector<int64_t>>, float*> rope_;
  int32_t* alarm_ = nullptr;
};

}  // namespace mbb::trainer::cuda
