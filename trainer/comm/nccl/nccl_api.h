// The functions of libnccl.so that the communicators call, found at run time: without NCCL the program starts and runs
// what needs one GPU.
#pragma once

#include <nccl.h>

#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer::cuda {

struct NcclApi {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclCommRegister) register_memory = nullptr;
  decltype(&ncclCommDeregister) forget_memory = nullptr;
  decltype(&ncclCommWindowRegister) open_window = nullptr;
  decltype(&ncclCommWindowDeregister) close_window = nullptr;
  decltype(&ncclMemAlloc) allocate = nullptr;  // memory that windows can be opened on
  decltype(&ncclMemFree) free = nullptr;

  // ok (also while a call is in progress), or kRankFailed: "NCCL, doing: reason; what NCCL said last".
  Status good(ncclResult_t result, const std::string& doing, ncclComm_t comm = nullptr) const;
};

// Opens the library once for the process. The error says what the loader said.
Result<const NcclApi*> nccl_api();

}  // namespace mbb::trainer::cuda
