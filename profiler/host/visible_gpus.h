// Which of a machine's GPUs CUDA shows to this process.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mbb::profiler {

// CUDA_VISIBLE_DEVICES as CUDA reads it: numbers, or beginnings of UUIDs ("GPU-8f2c..."), separated by commas, in the
// order in which CUDA then numbers the devices; what follows a name that is none is not seen. Gives the places in
// `uuids`, the UUIDs of all GPUs in the order of the management library; all of them where the variable is not set.
// A MIG instance ("MIG-...") is part of a GPU that its name does not tell: nothing.
std::optional<std::vector<int>> visible_gpus(const std::optional<std::string>& variable,
                                             std::span<const std::string> uuids);

}  // namespace mbb::profiler
