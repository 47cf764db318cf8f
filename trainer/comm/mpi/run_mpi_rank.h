// Ranks as processes that an MPI launcher started (`mpirun -n 8 mbbench run ...`): the same door as rank threads, the
// same sums in the same order, so the same bits.
//
// MPI carries messages only; who failed, hangs or was killed is known through control.h. A process holds one rank. As
// with threads, send() copies and returns. Not checked here: messages that nobody received.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/mpi/control.h"

namespace mbb::trainer {

struct MpiPlace {
  int rank = 0;
  int size = 1;
  bool one_host = false;  // as far as the launcher says
};

// This process's place among those of a launcher, from its environment (Open MPI, or PMI); nothing where it is alone.
std::optional<MpiPlace> mpi_place();

// Runs this process's rank of the world and waits for all others. Returns the first failure of the world, its rank
// named and with where all stood; the process should then end soon, without further MPI. An exception becomes an error.
Status run_mpi_rank(const std::function<Status(World&)>& rank_main, const ControlOptions& options = {});

}  // namespace mbb::trainer
