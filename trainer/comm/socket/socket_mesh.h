// Messages between processes over TCP, for ranks that no MPI started: what MpiTable asks of a library.
//
// Each rank listens; it connects to a peer when it first sends something there. A thread of its own moves bytes, so
// that what was sent arrives whatever its rank is busy with. For the host's few small messages: a step's data go
// through NCCL or MPI.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "profiler/base/error.h"
#include "trainer/comm/mpi/mpi_table.h"
#include "trainer/comm/process_place.h"

namespace mbb::trainer {

// Meets the other ranks where `place` says, within `limit_ms`: an error names the ranks that did not come, or why rank
// 0's port cannot be had. Then the table's functions serve this process; one mesh a process.
Result<const MpiTable*> socket_table(const ProcessPlace& place, int64_t limit_ms,
                                     const std::function<Status()>& meanwhile = {});

}  // namespace mbb::trainer
