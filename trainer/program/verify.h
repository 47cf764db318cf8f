// The one verifier of step programs: what every builder and pass must leave true.
#pragma once

#include <span>

#include "profiler/base/error.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// Shapes agree with each op's record; every read value was written before (in the same call, an earlier call of the
// same micro-batch, or by the host or an earlier step); on each micro-batch a tensor has one writer, further ones
// update it; paths are unique among ops that run together; views lie inside their storage. Errors name op and tensor.
Status verify(const Program& program);

// The programs of a world agree: on every group, all members call the same collectives in the same order with the same
// message sizes, sends meet receives, and no rank waits in a circle where sends are not buffered (rendezvous.h).
// `program_of_rank` holds one program a rank.
Status verify_world(const Mesh& mesh, std::span<const Program* const> program_of_rank);

}  // namespace mbb::trainer
