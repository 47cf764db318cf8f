// The exported table: the only symbol of libmbbench_cuda.so.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "profiler/capture/cupti/cupti_capture.h"
#include "profiler/host/cuda_table.h"
#include "trainer/execute/cuda/cuda_rank.h"
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/canary.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

using profiler::CudaDeviceFacts;
using profiler::CudaTable;
using profiler::CudaText;
using profiler::CudaVersions;

void write(CudaText* to, const std::string& text) {
  const size_t bytes = std::min(text.size(), sizeof(to->text) - 1);
  std::memcpy(to->text, text.data(), bytes);
  to->text[bytes] = '\0';
}

bool answer(const Status& status, CudaText* error) {
  if (status) return true;
  write(error, status.error().what + "\n" + status.error().hint);
  error->code = status.error().code;
  return false;
}

bool device_count(int* count, CudaText* error) {
  return answer(ok(cudaGetDeviceCount(count), "counting CUDA devices"), error);
}

bool device_facts(int device, CudaDeviceFacts* facts, CudaText* error) {
  cudaDeviceProp p{};
  static_assert(sizeof(facts->name) == sizeof(p.name));
  if (!answer(ok(cudaGetDeviceProperties(&p, device), "reading device properties"), error)) return false;
  *facts = {};
  std::memcpy(facts->name, p.name, sizeof(facts->name));
  facts->compute_major = p.major, facts->compute_minor = p.minor, facts->sms = p.multiProcessorCount;
  facts->memory_bytes = static_cast<int64_t>(p.totalGlobalMem), facts->l2_bytes = p.l2CacheSize;
  facts->smem_per_block_bytes = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  return answer(
      ok(cudaDeviceGetPCIBusId(facts->pci_bus_id, sizeof(facts->pci_bus_id), device), "reading the PCI bus id"), error);
}

bool peer_access(int device, int peer, bool* possible, CudaText* error) {
  int can = 0;
  if (!answer(ok(cudaDeviceCanAccessPeer(&can, device, peer), "asking for peer access"), error)) return false;
  *possible = can != 0;
  return true;
}

bool versions(CudaVersions* to, CudaText* cudnn_reason, CudaText* error) {
  *to = {};
  if (!answer(ok(cudaDriverGetVersion(&to->driver_api), "reading the driver's CUDA version"), error)) return false;
  if (!answer(ok(cudaRuntimeGetVersion(&to->runtime), "reading the runtime's version"), error)) return false;
  to->cublaslt = cublaslt_version();
  cudnn_reason->text[0] = '\0';
  if (const auto cudnn = CudnnAttention::make())
    to->cudnn = (*cudnn)->version();
  else
    write(cudnn_reason, cudnn.error().what + "\n" + cudnn.error().hint);
  return true;
}

CudaRank& as_rank(void* rank) {
  return *static_cast<CudaRank*>(rank);
}

bool rank_open(const profiler::CudaRankRequest* request, void** rank, CudaText* error) {
  auto opened = CudaRank::create(*request);
  if (!opened) return answer(tl::unexpected(opened.error()), error);
  *rank = opened->release();
  return true;
}

void rank_close(void* rank) {
  delete static_cast<CudaRank*>(rank);
}

bool rank_step(void* rank, const void* input, void* output, CudaText* error) {
  return answer(as_rank(rank).step(*static_cast<const StepInput*>(input), static_cast<StepOutput*>(output)), error);
}

bool rank_timed_step(void* rank, const void* input, void* output, int64_t* op_ns, CudaText* error) {
  return answer(
      as_rank(rank).timed_step(*static_cast<const StepInput*>(input), static_cast<StepOutput*>(output), op_ns), error);
}

bool rank_read(void* rank, int32_t tensor, int32_t slot, void* to, int64_t bytes, CudaText* error) {
  return answer(as_rank(rank).read(tensor, slot, to, bytes), error);
}

void rank_times(void* rank, profiler::CudaStepTimes* times) {
  *times = as_rank(rank).times();
}
void rank_memory(void* rank, profiler::CudaMemoryFacts* facts) {
  *facts = as_rank(rank).memory();
}

bool rank_find_not_finite(void* rank, const void* input, profiler::CudaNotFinite* found, CudaText* error) {
  *found = {};
  auto answered = as_rank(rank).find_not_finite(*static_cast<const StepInput*>(input));
  if (!answered) return answer(tl::unexpected(answered.error()), error);
  if (!answered->has_value()) return true;
  const NotFinite& first = **answered;
  found->found = true;
  write(&found->op, first.op);
  write(&found->tensor, first.tensor);
  found->micro_batch = first.micro_batch;
  found->communicates = first.communicates;
  return true;
}

bool rank_note(void* rank, int32_t index, CudaText* note) {
  const auto& all = as_rank(rank).notes();
  if (index < 0 || static_cast<size_t>(index) >= all.size()) return false;
  write(note, all[static_cast<size_t>(index)]);
  return true;
}

void rank_comm(void* rank, int32_t group_kind, void* stats) {
  *static_cast<CommStats*>(stats) = as_rank(rank).comm(static_cast<GroupKind>(group_kind));
}

bool rank_allocation(void* rank, int32_t index, CudaText* what, int64_t* bytes) {
  const auto& all = as_rank(rank).allocations();
  if (index < 0 || static_cast<size_t>(index) >= all.size()) return false;
  write(what, all[static_cast<size_t>(index)].first);
  *bytes = all[static_cast<size_t>(index)].second;
  return true;
}

bool capture_begin(CudaText* error) {
  return answer(profiler::cupti::begin(), error);
}
bool capture_end(const profiler::CaptureSink* sink, CudaText* error) {
  return answer(profiler::cupti::end(*sink), error);
}
bool profiler_range(bool on, CudaText* error) {
  return answer(ok(on ? cudaProfilerStart() : cudaProfilerStop(), "marking the profiler's window"), error);
}
bool rank_profile(void* rank, CudaText* error) {
  return answer(as_rank(rank).recapture(), error);
}
bool rank_trap(void* rank, CudaText* error) {
  return answer(as_rank(rank).plant_trap(), error);
}

bool time_canary(int device, profiler::CudaCanary* times, CudaText* error) {
  const auto timed = canary(device);
  if (timed) *times = *timed;
  return answer(timed.map([](const auto&) {}), error);
}

constexpr CudaTable kTable = {profiler::kCudaTableAbi,
                              sizeof(CudaTable),
                              device_count,
                              device_facts,
                              peer_access,
                              versions,
                              rank_open,
                              rank_close,
                              rank_step,
                              rank_timed_step,
                              rank_read,
                              rank_times,
                              rank_memory,
                              rank_comm,
                              rank_find_not_finite,
                              rank_note,
                              rank_allocation,
                              capture_begin,
                              capture_end,
                              profiler_range,
                              rank_profile,
                              time_canary,
                              rank_trap};

}  // namespace
}  // namespace mbb::trainer::cuda

extern "C" __attribute__((visibility("default"))) const mbb::profiler::CudaTable* mbbench_cuda_table() {
  return &mbb::trainer::cuda::kTable;
}
