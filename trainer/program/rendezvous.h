// Whether the messages of a world make progress where nothing is buffered.
#pragma once

#include <span>

#include "profiler/base/error.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// A send that ends only when its receive takes it (NCCL's for large messages) can make ranks wait for each other in a
// circle, although every message has two ends. Follows each stream of each rank of one replica: an op waits for what
// came before it on its stream and for its operands, both ends of a message end together, batched messages next to each
// other on a stream go at once. kMismatch names a rank and the message it stands at. The messages match (verify_world).
Status check_rendezvous(const Mesh& mesh, std::span<const Program* const> program_of_rank);

}  // namespace mbb::trainer
