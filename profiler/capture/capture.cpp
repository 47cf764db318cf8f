// The door to the library's capture.
#include "profiler/capture/capture.h"

#include "profiler/host/cuda_table.h"

namespace mbb::profiler {
namespace {

CaptureRecords& as_records(void* self) {
  return *static_cast<CaptureRecords*>(self);
}

}  // namespace

CaptureSink sink_into(CaptureRecords& records) {
  return {&records, [](void* self, const char* text) { as_records(self).names.emplace_back(text); },
          [](void* self, const CaptureRecord* from, size_t count) {
            auto& to = as_records(self).records;
            to.insert(to.end(), from, from + count);
          },
          [](void* self, uint64_t dropped) { as_records(self).dropped += dropped; }};
}

Status begin_capture() {
  MB_ASSIGN(const CudaTable* const table, cuda_table());
  CudaText error{};
  return cuda_answer(table->capture_begin(&error), error);
}

Result<CaptureRecords> end_capture() {
  MB_ASSIGN(const CudaTable* const table, cuda_table());
  CaptureRecords records;
  const CaptureSink sink = sink_into(records);
  CudaText error{};
  MB_TRY(cuda_answer(table->capture_end(&sink, &error), error));
  return records;
}

Status profiler_range(bool on) {
  MB_ASSIGN(const CudaTable* const table, cuda_table());
  CudaText error{};
  return cuda_answer(table->profiler_range(on, &error), error);
}

}  // namespace mbb::profiler
