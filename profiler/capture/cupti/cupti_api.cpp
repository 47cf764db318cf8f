// dlopen of libcupti.
#include "profiler/capture/cupti/cupti_api.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <mutex>
#include <optional>

#include "profiler/host/symbols.h"

namespace mbb::profiler::cupti {
namespace {

Result<Api> open_api() {
  void* const library = open_first({"libcupti.so.13", "libcupti.so"});
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("CUPTI: {}", dlerror()),
                "put the toolkit's (extras/CUPTI/)lib64, or the folder of nvidia-cuda-cupti, into LD_LIBRARY_PATH");
  Api found;
  Symbols symbols(library);
  symbols.find(found.subscribe, "cuptiSubscribe_v2");
  symbols.find(found.unsubscribe, "cuptiUnsubscribe");
  symbols.find(found.enable_callback, "cuptiEnableCallback");
  symbols.find(found.callback_name, "cuptiGetCallbackName");
  symbols.find(found.graph_node_id, "cuptiGetGraphNodeId");
  symbols.find(found.register_callbacks, "cuptiActivityRegisterCallbacks");
  symbols.find(found.register_timestamp, "cuptiActivityRegisterTimestampCallback");
  symbols.find(found.enable, "cuptiActivityEnable");
  symbols.find(found.disable, "cuptiActivityDisable");
  symbols.find(found.next_record, "cuptiActivityGetNextRecord");
  symbols.find(found.dropped_records, "cuptiActivityGetNumDroppedRecords");
  symbols.find(found.flush_all, "cuptiActivityFlushAll");
  symbols.find(found.push_external, "cuptiActivityPushExternalCorrelationId");
  symbols.find(found.pop_external, "cuptiActivityPopExternalCorrelationId");
  symbols.find(found.finalize, "cuptiFinalize");
  symbols.find(found.result_string, "cuptiGetResultString");
  if (!symbols.missing().empty())
    return fail(ErrorCode::kUnavailable, fmt::format("CUPTI: this libcupti has no {}", symbols.missing()),
                "CUPTI 13.0 or newer is needed");
  return found;
}

}  // namespace

Status Api::good(CUptiResult result, const char* doing) const {
  if (result == CUPTI_SUCCESS) return {};
  const char* text = "unknown";
  result_string(result, &text);
  std::string hint;
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES || result == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES)
    hint = "the driver lets administrators profile only: set NVreg_RestrictProfilingToAdminUsers=0, or run as root";
  return fail(ErrorCode::kUnavailable, fmt::format("CUPTI, {}: {} ({})", doing, text, static_cast<int>(result)),
              std::move(hint));
}

Result<const Api*> api() {
  static std::once_flag once;
  static std::optional<Result<Api>> opened;
  std::call_once(once, [] { opened = open_api(); });
  if (!*opened) return tl::unexpected<Error>(opened->error());
  return &**opened;
}

}  // namespace mbb::profiler::cupti
