// The measurements behind mbbench-floor, one function a section; each row is handed over as soon as it
// is measured, to be printed and stored.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "suites/micro/cuda/floor_cases.h"
#include "suites/micro/cuda/stopwatch.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::suites {

struct FloorRow {
  std::string section;  // copy, gemm, attention, kernel, grouped
  std::string name;     // the GEMM's key, or the op
  std::string uses;     // which cases need it: "llama3-8b fc1 fprop x8, ..."
  double work = 0.0;    // FLOPs, or bytes
  bool is_bytes = false;
  Timing timing;
  double first_ms = 0.0;          // GEMM: the heuristic's first choice, timed alike but shortly
  int candidates = 0;             // GEMM: algorithms timed
  int64_t seq = 0, head_dim = 0;  // attention
  std::string algorithm;          // GEMM: the winner, hexadecimal
  std::string skipped;            // reason, when it could not run here
  double rate() const { return timing.ms > 0 ? work / timing.ms * 1e-9 : 0.0; }  // TFLOP/s or TB/s
};

// Device memory with random bf16 (normal), the same as E4M3 and E5M2, and an output area; operands are taken from
// moving offsets, so that no call finds its inputs in L2.
class FloorPool {
 public:
  static Result<std::unique_ptr<FloorPool>> make(int64_t input_bytes, int64_t output_bytes, cudaStream_t stream,
                                                 const trainer::cuda::Launch& launch);
  ~FloorPool();
  FloorPool(const FloorPool&) = delete;
  FloorPool& operator=(const FloorPool&) = delete;

  const void* input(trainer::cuda::Element element, int64_t count);
  void* output(int64_t bytes);
  void* workspace() const { return workspace_; }  // GEMM workspace
  float* scales() const { return scales_; }       // device scalars, all 1
  void* scratch() const { return scratch_; }      // 1 GiB, zeroed
  static constexpr int64_t kScratch = int64_t{1} << 30;

 private:
  FloorPool() = default;
  char *bf16_ = nullptr, *e4m3_ = nullptr, *e5m2_ = nullptr, *output_ = nullptr, *scratch_ = nullptr,
       *workspace_ = nullptr;
  float* scales_ = nullptr;
  int64_t input_bytes_ = 0, output_bytes_ = 0, bf16_at_ = 0, fp8_at_ = 0, output_at_ = 0;
};

struct FloorContext {
  FloorPool& pool;
  Stopwatch& watch;
  trainer::cuda::Launch launch;
  double seconds = 0.5;
  std::string only;  // substring of section/name/uses; empty: everything
  std::function<void(FloorRow)> keep;
};

void floor_copy(FloorContext& context);
// The distinct products of these cases that contain `only`, with the uses of each.
struct FloorProduct {
  trainer::cuda::GemmProblem problem;
  std::string uses;
};
std::vector<FloorProduct> floor_products(const std::vector<FloorCase>& cases, const std::string& only);
Status floor_gemm_rows(FloorContext& context, const std::vector<FloorProduct>& products);
void floor_attention_rows(FloorContext& context, const std::vector<FloorCase>& cases);
Status floor_kernels(FloorContext& context, const FloorCase& c);
Status floor_grouped_rows(FloorContext& context);

}  // namespace mbb::suites
