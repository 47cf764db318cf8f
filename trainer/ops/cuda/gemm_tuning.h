// The algorithms chosen for GEMM problems, kept in a text file: one line a problem, valid for one kind of device with
// one driver and one cuBLASLt. Pure: read and written without a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/gemm.h"

namespace mbb::trainer::cuda {

// What a choice depends on besides the problem.
struct TuningMachine {
  std::string device;     // "NVIDIA H100 80GB HBM3"
  std::string driver;     // "580.159.04"; "CUDA 13000" where NVML is not here to say
  uint64_t cublaslt = 0;  // 130100
  bool operator==(const TuningMachine&) const = default;
};

struct TunedGemm {
  GemmAlgorithm algorithm{};
  double us = 0;        // a call, under sustained load
  double first_us = 0;  // of the library's own first choice, likewise
  int candidates = 0;   // how many were timed
};

class GemmTuning {
 public:
  explicit GemmTuning(TuningMachine machine) : machine_(std::move(machine)) {}
  // Errors: a line that is not understood (with its number), or a file of another machine (which names both).
  static Result<GemmTuning> parse(const std::string& text, const TuningMachine& machine);
  std::string text() const;

  // What ranks that tuned apart go on with, alike on all of them: of each problem the choice of the first rank, by
  // place of its text(), that has one. A text that parse() refuses counts for nothing; `refused` gets its place and
  // why.
  static GemmTuning agreed(const std::vector<std::string>& texts, const TuningMachine& machine,
                           std::vector<std::pair<size_t, Error>>* refused);

  // By key(problem), or that of a fused op: the first word of its "algorithm" is then 1 for one kernel, 0 for its parts
  // in turn; or that of an attention, with the place of its kernel among AttentionKernel. nullptr when nobody tuned it.
  const TunedGemm* find(const std::string& problem) const;
  void set(const std::string& problem, const TunedGemm& choice) { choices_[problem] = choice; }
  const std::map<std::string, TunedGemm>& choices() const { return choices_; }

 private:
  TuningMachine machine_;
  std::map<std::string, TunedGemm> choices_;
};

}  // namespace mbb::trainer::cuda
