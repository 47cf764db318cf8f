// The steps of a rank that are traced, and how: all ranks begin and end a window together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/capture/device_trace.h"
#include "profiler/trace/align_ranks.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/patience.h"
#include "trainer/execute/executor.h"
#include "trainer/run/train.h"

namespace mbb::trainer {

enum class Tracing { kOff, kOpByOp, kCapture, kExternal };

// What ranks of one process share: a capture is of the process, whose first rank attaches and detaches.
struct Captures {
  bool attached = false;
  std::vector<profiler::CapturedRank> ranks;    // by rank
  std::optional<profiler::DeviceTrace> device;  // of the last window that was captured
  profiler::Alignment alignment;                // of `device`, where ranks are processes
  std::string note;                             // why a window was not captured
};

class TraceWindow {
 public:
  // All must outlive it.
  TraceWindow(const TrainOptions& options, const StepPrograms& programs, const Mesh& mesh, int rank,
              Communicator& everyone, Patience& patience, Captures& captures)
      : options_(options),
        programs_(programs),
        mesh_(mesh),
        rank_(rank),
        everyone_(everyone),
        patience_(patience),
        captures_(captures) {}

  bool has(int64_t step) const;
  Tracing tracing() const { return tracing_; }

  // Rank 0 decides how while all others wait; processes attach each to itself.
  Status begin(Executor& rank);
  Status end(Executor& rank);
  // A step of the open window on the host's clock.
  void step_ran(int64_t step, int64_t start_ns, int64_t end_ns);

 private:
  Status choose(const Executor& rank);
  // Where one process cannot capture, none does.
  Status all_capture();
  Status finish(Tracing was);
  size_t at() const { return static_cast<size_t>(rank_); }

  const TrainOptions& options_;
  const StepPrograms& programs_;
  const Mesh& mesh_;
  int rank_;
  Communicator& everyone_;
  Patience& patience_;
  Captures& captures_;
  Tracing tracing_ = Tracing::kOff;
};

}  // namespace mbb::trainer
