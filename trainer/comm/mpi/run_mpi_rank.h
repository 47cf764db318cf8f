// Ranks as processes that a launcher started (`mpirun -n 8 mbbench run ...`, srun, torchrun, `mbbench run --gpus 2` on
// GPUs): the same door as rank threads, the same sums in the same order, so the same bits.
//
// MPI carries messages, or sockets where no MPI started the ranks; who failed, hangs or was killed is known through
// control.h. A process holds one rank. As with threads, send() copies and returns. Not checked here: messages that
// nobody received.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/mpi/control.h"
#include "trainer/comm/process_place.h"

namespace mbb::trainer {

// Runs this process's rank of the world and waits for all others. Returns the first failure of the world, its rank
// named and with where all stood; the process should then end soon, without further MPI. An exception becomes an error.
Status run_mpi_rank(const std::function<Status(World&)>& rank_main, const ControlOptions& options = {});

// For how long ranks wait for each other to come.
inline constexpr int64_t kMeetingMs = 60'000;

}  // namespace mbb::trainer
