// Gradients of the first step as a launch leaves them (`debug.record_gradients`), and the verdict on them.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "trainer/program/mesh.h"
#include "trainer/program/tensor.h"

namespace mbb::suites {

inline constexpr const char* kGradientsFile = "gradients.bin";  // of a launch folder

// By weight: the gradient of the summed loss in the unsharded tensor's order; NaN where no rank had a part.
using Gradients = std::map<std::string, std::vector<float>>;

// Puts the parts together that ranks hand out (trainer::GradientSink), of the first step.
class GradientRecorder {
 public:
  void add(const trainer::MeshCoordinates& rank, int64_t step, const trainer::Tensor& weight, int64_t first,
           std::span<const float> part);
  Status write(const std::filesystem::path& folder) const;

 private:
  std::mutex mutex_;
  Gradients whole_;
};

Result<Gradients> read_gradients(const std::filesystem::path& launch_folder);

// fp32: ‖a − b‖ of a weight over max(‖b‖, a thousandth of the global norm).
inline constexpr double kGradientTolerance = 1e-5;

// One rank's gradients from one seed: in fp32 and in a lower precision.
struct RoundedGradients {
  Gradients exact, rounded;
};

// Adds a "gradients" verdict to `cell`: against the one-rank fp32 gradients `exact`; in lower precision, where
// `rounded` are one rank's in that precision, a weight may be off by twice what `rounded` is, or what one rank is from
// another seed (a small tensor may end near fp32 by chance). On a difference the cell is broken.
void judge_gradients(baselines::Cell& cell, const Gradients& mine, const Gradients& exact, const Gradients* rounded,
                     const std::string& against, const std::vector<RoundedGradients>& other_seeds = {});

}  // namespace mbb::suites
