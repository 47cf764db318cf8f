// What a thread launches while a mark lives belongs to one op, in a capture.
#pragma once

#include <cstdint>

#include "profiler/capture/cupti/cupti_capture.h"

namespace mbb::trainer::cuda {

class OpMark {
 public:
  explicit OpMark(uint32_t id) { profiler::cupti::mark(id); }
  OpMark(const OpMark&) = delete;
  OpMark& operator=(const OpMark&) = delete;
  ~OpMark() { profiler::cupti::unmark(); }
};

}  // namespace mbb::trainer::cuda
