// NVTX ranges in the domain `mbbench`. Texts are registered once; without a listening tool a range is a null check.
#pragma once

#include <cstdint>
#include <string>

namespace mbb::profiler::nvtx {

// A registered text; null without a tool.
using Text = void*;

// True when a tool (nsys, ncu) listens in this process.
bool listening();

// Registers a range name, once; the text lives as long as the process.
Text text(const std::string& name);

// Opens a range on this thread; `payload` is shown beside its name (step, micro-batch).
void push(Text name, int64_t payload);
void pop();

// A range over a scope.
class Range {
 public:
  Range(Text name, int64_t payload) : open_(name != nullptr) {
    if (open_) push(name, payload);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() {
    if (open_) pop();
  }

 private:
  bool open_;
};

}  // namespace mbb::profiler::nvtx
