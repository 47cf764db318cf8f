// Training speeds that others have published, restated with source and date: what a projection is judged by.
//
// Facts, not ours: training_speeds.csv beside this file is the table, built into the program. Attention-FLOPs
// conventions differ between rows: compare tokens/s first, and TFLOP/s only within one `attention_flops`.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::baselines {

constexpr double kNotStated = std::numeric_limits<double>::quiet_NaN();

// Counts are 0 and texts empty where the source does not say.
struct PublishedRow {
  std::string source;   // repository or document, with the commit or tag it was read at
  std::string date;     // of the release or measurement: "2026-02", "2026-08-14"
  std::string release;  // as the source names it: "26.02.01"
  std::string hardware;
  std::string model;                // as the source names it
  std::string model_id;             // as this program names it
  std::string variant;              // "LoRA", "tokendrop", "proxy, 30L", ...
  std::string precision;            // a recipe's name; "fp8" where the source does not say which FP8
  std::string precision_published;  // as the source names it
  std::int64_t gpus = 0;
  std::int64_t global_batch = 0;
  std::int64_t micro_batch = 0;
  std::int64_t seq_length = 0;
  std::int64_t tp = 0;
  std::int64_t pp = 0;
  std::int64_t cp = 0;
  std::int64_t vpp = 0;
  std::int64_t ep = 0;
  std::int64_t etp = 0;
  std::string sharding;
  std::string recompute;
  double tokens_per_s_per_gpu = kNotStated;
  double tflops_per_gpu = kNotStated;
  double mfu_percent = kNotStated;
  double causal_tflops_per_gpu = kNotStated;  // recomputed from tokens/s with causal attention
  std::string
      attention_flops;  // what tflops and mfu count: "causal", "full", "causal, formula changed at 26.06", "not stated"
  std::string note;
};

// Reads a table of this form; an error names the line.
Result<std::vector<PublishedRow>> parse_published(std::string_view csv);

// The built-in table.
const std::vector<PublishedRow>& published_rows();

// Empty or 0 matches everything. Precision "fp8" matches every FP8 recipe, any other its own name. Variants (LoRA,
// SFT, proxies) are left out unless asked for.
struct PublishedQuery {
  std::string model_id;
  std::string hardware;
  std::string precision;
  std::int64_t gpus = 0;
  bool with_variants = false;
};

// Newest first.
std::vector<PublishedRow> find_published(const PublishedQuery& query);

}  // namespace mbb::baselines
