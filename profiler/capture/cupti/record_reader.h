// Reads CUPTI's activity buffers into plain records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "profiler/capture/cupti/cupti_api.h"
#include "profiler/capture/records.h"

namespace mbb::profiler::cupti {

// Used by one thread at a time.
class RecordReader {
 public:
  explicit RecordReader(const Api& api) : api_(api) {}

  void read(uint8_t* buffer, size_t valid_bytes);

  // Fills `op` of all records: of graph nodes from `op_of_node`, of others from the external correlations that were
  // read.
  void join(const std::unordered_map<uint64_t, uint32_t>& op_of_node);

  const std::vector<CaptureRecord>& records() const { return records_; }
  const std::vector<std::string>& names() const { return names_; }
  uint64_t unread() const { return unread_; }  // buffers whose rest CUPTI could not read

 private:
  void add(const CUpti_Activity& activity);
  void add_kernel(const CUpti_ActivityKernel10& kernel);
  void add_device(RecordKind kind, uint32_t name, uint64_t start, uint64_t end, uint64_t bytes, uint32_t correlation,
                  uint32_t device, uint32_t stream, uint64_t node);
  void add_host(RecordKind kind, uint32_t name, uint64_t start, uint64_t end, uint32_t correlation, uint32_t thread);
  uint32_t intern(std::string text);
  uint32_t kernel_name(const char* mangled);
  uint32_t api_name(CUpti_CallbackDomain domain, CUpti_CallbackId id);

  const Api& api_;
  uint64_t unread_ = 0;
  std::vector<CaptureRecord> records_;
  std::vector<uint64_t> nodes_;  // graph node of each record; 0: none
  std::vector<std::string> names_ = {""};
  std::unordered_map<std::string, uint32_t> name_ids_;
  std::unordered_map<const char*, uint32_t> kernel_names_;  // CUPTI keeps one text a kernel
  std::unordered_map<uint64_t, uint32_t> api_names_;
  std::unordered_map<uint32_t, uint32_t> op_of_correlation_;
};

}  // namespace mbb::profiler::cupti
