// First values of everything that persists: weights from the seed, master weights equal to them in fp32 (a remainder is
// given the master, of which it keeps what the weight lacks; an fp16 master is scaled), scales one, the rest zero.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "trainer/program/program.h"

namespace mbb::trainer {

// Index in the unsharded tensor (row-major) of local element `index` on a rank with these coordinates.
int64_t unsharded_index(const Tensor& tensor, const MeshCoordinates& coordinates, int64_t index);

// Calls sink(tensor, values) for every persistent tensor whose first values are not all zero, in fp32. Values depend on
// seed, path and unsharded index only, so every mapping starts from the same model.
void initial_state(const Program& program, const Mesh& mesh, int rank, uint64_t seed,
                   const std::function<void(TensorId, std::span<const float>)>& sink);

// Rounds values to the tensor's type (fp32, bf16, fp16, FP8, or the 16 bits below a bf16 weight) and writes them to
// `to`.
void store_values(const Tensor& tensor, std::byte* to, std::span<const float> values);

}  // namespace mbb::trainer
