// One CUPTI activity after another, by kind.
#include "profiler/capture/cupti/record_reader.h"

#include <cxxabi.h>
#include <fmt/core.h>

#include <cstdlib>
#include <utility>

namespace mbb::profiler::cupti {
namespace {

const char* memory_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: return "Pageable";
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED: return "Pinned";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE: return "Device";
    case CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: return "Array";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: return "Managed";
    default: return "Unknown";
  }
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "PtoP";
    default: return "other";
  }
}

const char* wait_name(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE: return "Event Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: return "Stream Wait Event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE: return "Stream Sync";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE: return "Context Sync";
    default: return "Sync";
  }
}

const char* overhead_name(CUpti_ActivityOverheadKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER: return "CUPTI: driver compiler";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH: return "CUPTI: buffer flush";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION: return "CUPTI: instrumentation";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE: return "CUPTI: resources";
    case CUPTI_ACTIVITY_OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING: return "CUDA: module loading";
    case CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING: return "CUDA: function loading";
    case CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL: return "CUDA: command buffer full";
    case CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST: return "CUPTI: buffer request";
    default: return "CUPTI: overhead";
  }
}

// Libraries launch through the driver; its other calls say nothing that the runtime's do not.
bool is_driver_launch(CUpti_CallbackId id) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz: return true;
    default: return false;
  }
}

// "cudaLaunchKernelExC_v11060" as the runtime's users know it.
std::string without_version(std::string_view name) {
  const size_t cut = name.rfind("_v");
  const bool version = cut != std::string_view::npos && cut + 2 < name.size() &&
                       name.find_first_not_of("0123456789", cut + 2) == std::string_view::npos;
  return std::string(version ? name.substr(0, cut) : name);
}

}  // namespace

void RecordReader::read(uint8_t* buffer, size_t valid_bytes) {
  CUpti_Activity* activity = nullptr;
  CUptiResult result = CUPTI_SUCCESS;
  while ((result = api_.next_record(buffer, valid_bytes, &activity)) == CUPTI_SUCCESS) add(*activity);
  if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) ++unread_;
}

void RecordReader::add(const CUpti_Activity& activity) {
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      add_kernel(reinterpret_cast<const CUpti_ActivityKernel10&>(activity));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& a = reinterpret_cast<const CUpti_ActivityMemcpy6&>(activity);
      const auto name = intern(
          fmt::format("Memcpy {} ({} -> {})", copy_name(a.copyKind), memory_name(a.srcKind), memory_name(a.dstKind)));
      add_device(RecordKind::kCopy, name, a.start, a.end, a.bytes, a.correlationId, a.deviceId, a.streamId,
                 a.graphNodeId);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& a = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(activity);
      add_device(RecordKind::kCopy, intern("Memcpy PtoP (Device -> Device)"), a.start, a.end, a.bytes, a.correlationId,
                 a.deviceId, a.streamId, a.graphNodeId);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& a = reinterpret_cast<const CUpti_ActivityMemset4&>(activity);
      add_device(RecordKind::kFill, intern(fmt::format("Memset ({})", memory_name(static_cast<uint8_t>(a.memoryKind)))),
                 a.start, a.end, a.bytes, a.correlationId, a.deviceId, a.streamId, a.graphNodeId);
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& a = reinterpret_cast<const CUpti_ActivityAPI&>(activity);
      const bool driver = activity.kind == CUPTI_ACTIVITY_KIND_DRIVER;
      if (driver && !is_driver_launch(a.cbid)) break;
      const auto domain = driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
      add_host(driver ? RecordKind::kDriverApi : RecordKind::kApi, api_name(domain, a.cbid), a.start, a.end,
               a.correlationId, a.threadId);
      break;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto& a = reinterpret_cast<const CUpti_ActivitySynchronization2&>(activity);
      add_host(RecordKind::kWait, intern(wait_name(a.type)), a.start, a.end, a.correlationId, 0);
      break;
    }
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& a = reinterpret_cast<const CUpti_ActivityOverhead3&>(activity);
      add_host(RecordKind::kOverhead, intern(overhead_name(a.overheadKind)), a.start, a.end, 0, 0);
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& a = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(activity);
      if (a.externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
        op_of_correlation_[a.correlationId] = static_cast<uint32_t>(a.externalId);
      break;
    }
    default: break;  // CUDA_EVENT: points in time, which no span holds
  }
}

void RecordReader::add_kernel(const CUpti_ActivityKernel10& kernel) {
  add_device(RecordKind::kKernel, kernel_name(kernel.name), kernel.start, kernel.end, 0, kernel.correlationId,
             kernel.deviceId, kernel.streamId, kernel.graphNodeId);
}

void RecordReader::add_device(RecordKind kind, uint32_t name, uint64_t start, uint64_t end, uint64_t bytes,
                              uint32_t correlation, uint32_t device, uint32_t stream, uint64_t node) {
  CaptureRecord record;
  record.start_ns = static_cast<int64_t>(start);
  record.end_ns = static_cast<int64_t>(end);
  record.bytes = static_cast<int64_t>(bytes);
  record.correlation = correlation;
  record.name = name;
  record.device = device;
  record.lane = stream;
  record.kind = kind;
  record.from_graph = node != 0;
  records_.push_back(record);
  nodes_.push_back(node);
}

void RecordReader::add_host(RecordKind kind, uint32_t name, uint64_t start, uint64_t end, uint32_t correlation,
                            uint32_t thread) {
  CaptureRecord record;
  record.start_ns = static_cast<int64_t>(start);
  record.end_ns = static_cast<int64_t>(end);
  record.correlation = correlation;
  record.name = name;
  record.lane = thread;
  record.kind = kind;
  records_.push_back(record);
  nodes_.push_back(0);
}

void RecordReader::join(const std::unordered_map<uint64_t, uint32_t>& op_of_node) {
  for (size_t i = 0; i < records_.size(); ++i) {
    CaptureRecord& record = records_[i];
    if (nodes_[i] != 0) {
      if (const auto node = op_of_node.find(nodes_[i]); node != op_of_node.end()) record.op = node->second;
    } else if (const auto found = op_of_correlation_.find(record.correlation); found != op_of_correlation_.end()) {
      record.op = found->second;
    }
  }
}

uint32_t RecordReader::intern(std::string text) {
  const auto [entry, added] = name_ids_.try_emplace(text, static_cast<uint32_t>(names_.size()));
  if (added) names_.push_back(std::move(text));
  return entry->second;
}

uint32_t RecordReader::kernel_name(const char* mangled) {
  if (mangled == nullptr) return intern("(unnamed kernel)");
  if (const auto known = kernel_names_.find(mangled); known != kernel_names_.end()) return known->second;
  int status = 0;
  char* const readable = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  const uint32_t id = intern(status == 0 && readable != nullptr ? readable : mangled);
  std::free(readable);
  kernel_names_[mangled] = id;
  return id;
}

uint32_t RecordReader::api_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  const uint64_t key = (static_cast<uint64_t>(domain) << 32U) | id;
  if (const auto known = api_names_.find(key); known != api_names_.end()) return known->second;
  const char* text = nullptr;
  const bool good = api_.callback_name(domain, id, &text) == CUPTI_SUCCESS && text != nullptr;
  const uint32_t name = intern(good ? without_version(text) : fmt::format("CUDA call {}", id));
  api_names_[key] = name;
  return name;
}

}  // namespace mbb::profiler::cupti
