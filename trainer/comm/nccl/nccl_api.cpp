// dlopen of libnccl.
#include "trainer/comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <mutex>
#include <optional>

#include "profiler/host/symbols.h"

namespace mbb::trainer::cuda {
namespace {

Result<NcclApi> open_api() {
  void* const library = profiler::open_first({"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"});
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("NCCL: {}", dlerror()),
                "several GPUs communicate through NCCL: put the folder of libnccl.so.2 into LD_LIBRARY_PATH");
  NcclApi found;
  profiler::Symbols symbols(library);
  symbols.find(found.version, "ncclGetVersion");
  symbols.find(found.unique_id, "ncclGetUniqueId");
  symbols.find(found.init, "ncclCommInitRankConfig");
  symbols.find(found.split, "ncclCommSplit");
  symbols.find(found.finalize, "ncclCommFinalize");
  symbols.find(found.destroy, "ncclCommDestroy");
  symbols.find(found.abort, "ncclCommAbort");
  symbols.find(found.async_error, "ncclCommGetAsyncError");
  symbols.find(found.error_string, "ncclGetErrorString");
  symbols.find(found.last_error, "ncclGetLastError");
  symbols.find(found.group_start, "ncclGroupStart");
  symbols.find(found.group_end, "ncclGroupEnd");
  symbols.find(found.all_gather, "ncclAllGather");
  symbols.find(found.reduce_scatter, "ncclReduceScatter");
  symbols.find(found.all_reduce, "ncclAllReduce");
  symbols.find(found.broadcast, "ncclBroadcast");
  symbols.find(found.send, "ncclSend");
  symbols.find(found.receive, "ncclRecv");
  symbols.find(found.register_memory, "ncclCommRegister");
  symbols.find(found.forget_memory, "ncclCommDeregister");
  symbols.find(found.open_window, "ncclCommWindowRegister");
  symbols.find(found.close_window, "ncclCommWindowDeregister");
  symbols.find(found.allocate, "ncclMemAlloc");
  symbols.find(found.free, "ncclMemFree");
  if (!symbols.missing().empty())
    return fail(ErrorCode::kUnavailable, fmt::format("NCCL: this libnccl has no {}", symbols.missing()),
                "NCCL 2.28 or newer is needed");
  return found;
}

}  // namespace

Status NcclApi::good(ncclResult_t result, const std::string& doing, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const char* const said = last_error(comm);
  std::string what = fmt::format("NCCL, {}: {}", doing, error_string(result));
  if (said != nullptr && *said != '\0') what += fmt::format("; {}", said);
  return fail(ErrorCode::kRankFailed, std::move(what), "NCCL_DEBUG=INFO in the environment makes NCCL say more");
}

Result<const NcclApi*> nccl_api() {
  static std::once_flag once;
  static std::optional<Result<NcclApi>> opened;
  std::call_once(once, [] { opened = open_api(); });
  if (!*opened) return tl::unexpected<Error>(opened->error());
  return &**opened;
}

}  // namespace mbb::trainer::cuda
