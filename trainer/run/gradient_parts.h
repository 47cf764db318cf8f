// What optimizers read of the weights' gradients, handed to rank 0 weight by weight.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "trainer/comm/communicator.h"
#include "trainer/execute/executor.h"
#include "trainer/program/mesh.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

// Local elements [first, first + gradient.size()) of a weight on a rank, of the summed loss.
using GradientSink = std::function<void(const MeshCoordinates& rank, int64_t step, const Tensor& weight, int64_t first,
                                        std::span<const float> gradient)>;

// All ranks call it after a step. Rank 0 gives the sink every rank's parts: together every element of every weight.
Status hand_out_gradients(Executor& executor, const StepPrograms& programs, const Mesh& mesh, int rank,
                          Communicator& everyone, int64_t step, const GradientSink& sink);

}  // namespace mbb::trainer
