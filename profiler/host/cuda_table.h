// The one table that libmbbench_cuda.so exports, and how the program opens it. Nothing here includes a CUDA header.
//
// The library is opened by the commands that need it, from beside the program ($ORIGIN), so that the CLI starts without
// it. Program and library come from one build: `abi` and `bytes` must match, or the library is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "profiler/base/error.h"
#include "profiler/capture/records.h"

namespace mbb::profiler {

inline constexpr uint32_t kCudaTableAbi = 9;

struct CudaDeviceFacts {
  char name[256];
  int32_t compute_major, compute_minor;
  int32_t sms;
  int64_t memory_bytes;
  int64_t l2_bytes;
  int64_t smem_per_block_bytes;
  char pci_bus_id[32];
};

// Versions as the libraries print them: 13000 for CUDA 13.0; 0 where a library is missing.
struct CudaVersions {
  int32_t driver_api, runtime;
  uint64_t cublaslt, cudnn;
};

// A failing call returns false and writes its reason to `error`, as "what\nhint", and what kind it is.
struct CudaText {
  ErrorCode code;  // of a reason
  char text[1024];
};

// A rank's step program for one device. `program`, `plan` and `mesh` point at trainer's structs of the same build and
// must outlive the rank.
struct CudaRankRequest {
  int32_t device;
  int32_t rank;
  uint64_t seed;
  bool graphs;              // capture after the first step, ...
  const char* graph_scope;  // ... as trainer/execute/graph_pieces.h names it; null: all of it
  bool deterministic;       // no result depends on the order in which thread blocks end
  bool tune;                // choose cuBLASLt's algorithm for every GEMM before the first step
  bool write_tuning;        // take time over it, and write the choices to tuning_file
  const char* tuning_file;  // choices made before; null or empty: none, GEMMs are timed briefly
  int32_t side_sms;         // SMs that memory-bound kernels of streams besides compute take; 0: as many as fit
  bool brief_tuning;        // with write_tuning: little time
  const void* program;
  const void* plan;
  const void* mesh;
  void* world;        // trainer's World of this rank, which is told where it stands; null: alone, and nobody asks
  bool share_device;  // ranks are threads that share the devices there are, for their numerics alone
};

struct CudaStepTimes {
  float forward_backward_ms, step_ms;
};

struct CudaMemoryFacts {
  int64_t arena_bytes;        // the memory plan
  int64_t extra_bytes;        // workspaces, scratch, tables
  int64_t device_used_bytes;  // of the whole device, as the driver says
};

// Best times of fixed work (trainer/ops/cuda/canary.h), and from the fastest batch of it to the slowest.
struct CudaCanary {
  int64_t arithmetic_ns, arithmetic_spread_ns;
  int64_t memory_ns, memory_spread_ns;
  int64_t share_ns, share_spread_ns;  // of the arithmetic where many wait in a queue: the median, and so far apart
};

// The first op of a step that wrote a value that is not finite.
struct CudaNotFinite {
  bool found;
  CudaText op, tensor;
  int32_t micro_batch;
  bool communicates;
};

struct CudaTable {
  uint32_t abi;
  uint32_t bytes;
  bool (*device_count)(int* count, CudaText* error);
  bool (*device_facts)(int device, CudaDeviceFacts* facts, CudaText* error);
  bool (*peer_access)(int device, int peer, bool* possible, CudaText* error);
  bool (*versions)(CudaVersions* versions, CudaText* cudnn_reason, CudaText* error);

  // `input` and `output` are trainer's StepInput and StepOutput.
  bool (*rank_open)(const CudaRankRequest* request, void** rank, CudaText* error);
  void (*rank_close)(void* rank);
  bool (*rank_step)(void* rank, const void* input, void* output, CudaText* error);
  // Ops one by one; op_ns has an element for every position of the walk.
  bool (*rank_timed_step)(void* rank, const void* input, void* output, int64_t* op_ns, CudaText* error);
  bool (*rank_read)(void* rank, int32_t tensor, int32_t slot, void* to, int64_t bytes, CudaText* error);
  void (*rank_times)(void* rank, CudaStepTimes* times);
  void (*rank_memory)(void* rank, CudaMemoryFacts* facts);
  // `stats` is trainer's CommStats of the communicator of this GroupKind.
  void (*rank_comm)(void* rank, int32_t group_kind, void* stats);

  // Runs the step again, op by op, looking at every value written.
  bool (*rank_find_not_finite)(void* rank, const void* input, CudaNotFinite* found, CudaText* error);

  // Note number `index` on what a library or the driver did not take, and what runs instead; false behind the last.
  bool (*rank_note)(void* rank, int32_t index, CudaText* note);
  // Allocation number `index` beside the arena; false behind the last.
  bool (*rank_allocation)(void* rank, int32_t index, CudaText* what, int64_t* bytes);

  // Capture of the whole process's device work (profiler/capture/capture.h). Around a change, every rank calls
  // rank_profile: its graphs are captured anew, so that their nodes are known while a capture is attached and carry
  // nothing of it afterwards. Op ids: walk position + 1, then trainer/execute/op_sites.h.
  bool (*capture_begin)(CudaText* error);
  bool (*capture_end)(const CaptureSink* sink, CudaText* error);
  bool (*profiler_range)(bool on, CudaText* error);
  bool (*rank_profile)(void* rank, CudaText* error);

  bool (*canary)(int device, CudaCanary* times, CudaText* error);

  // Enqueues a kernel that traps (debug.inject_fault = trap@RANK): the next step fails, and all after it.
  bool (*rank_trap)(void* rank, CudaText* error);
};

// Opens libmbbench_cuda.so once for the process. The error says where it was looked for, or what the loader said.
Result<const CudaTable*> cuda_table();

// Turns a table call's answer into a Status.
Status cuda_answer(bool good, const CudaText& error);

}  // namespace mbb::profiler
