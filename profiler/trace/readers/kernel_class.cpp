// Classes of GPU events by name.
#include "profiler/trace/readers/kernel_class.h"

namespace mbb::profiler {

namespace {
bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}
}  // namespace

bool is_memory_kernel(std::string_view name) {
  return name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("hipMemcpy") ||
         name.starts_with("hipMemset") || name.starts_with("dma");
}

bool is_comm_kernel(std::string_view name) {
  if (is_memory_kernel(name)) return false;
  return name.starts_with("nccl") || contains(name, "ncclKernel") || name.starts_with("hip") ||
         name.starts_with("hccl");
}

bool is_compute_kernel(std::string_view name) {
  for (const std::string_view part : {"nccl", "Memcpy", "Memset", "dma", "Sync", "Stream Wait Event", "LaunchKernel"})
    if (contains(name, part)) return false;
  return !is_comm_kernel(name);
}

SpanKind kind_of_kernel(std::string_view name) {
  if (is_comm_kernel(name)) return SpanKind::kCommOther;
  return is_memory_kernel(name) ? SpanKind::kCopy : SpanKind::kCompute;
}

}  // namespace mbb::profiler
