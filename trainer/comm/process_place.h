// This process's place among those that a launcher started, each a rank: by the variables that mpirun, torchrun or srun
// set, or those that `mbbench run` sets for the ranks it starts itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer {

enum class Launcher : uint8_t { kMpi, kTorchrun, kSlurm, kOwn };
const char* name(Launcher launcher);

struct ProcessPlace {
  Launcher launcher = Launcher::kMpi;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // on its host
  int local_size = 1;
  bool one_host = false;  // as far as the launcher says
  // Where the ranks meet: "HOST:PORT", rank 0's, or "file:PATH", which all of them see. Empty with MPI, which knows.
  std::string rendezvous;
  // What the ranks of this launch know and others do not, so that they are not mistaken for each other.
  std::string job;
};

// Nothing where the process is alone. kBadArgument when the variables contradict each other, or say of a rank too
// little to meet the others.
Result<std::optional<ProcessPlace>> process_place();
// The same for those who only ask whether there is a launcher: nothing also where process_place() refuses.
std::optional<ProcessPlace> place_if_any();

// Whether a terminal is one that a person looks at: mpirun gives its processes terminals of their own, and writes what
// they print wherever its own output goes.
bool terminal_is_seen(int descriptor);

// The first host of Slurm's list: "node[03-07,12],login" gives "node03".
std::string first_host(const std::string& list);

}  // namespace mbb::trainer
