// What the guides of the field say of two configurations, as data of a suite, to be held against its rows.
//
//   [[claim]]
//   name = "fp8-wide"
//   says = "FP8 makes the blocks of a wide model 1.2 to 1.5 times as fast."
//   source = "who says so"
//   a = "h8192-bf16"   b = "h8192-fp8"        cells of the suite
//   metric = "block_time"                     of analysis/metrics
//   ratio = [0.67, 0.83]                      of b's over a's, as claimed; one end may be left open: [1.0, "any"]
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

struct Claim {
  std::string name;
  std::string says;
  std::string source;
  std::string a, b;  // names of cells
  std::string metric;
  double low = 0;   // of the ratio b / a; 0 when open
  double high = 0;  // infinity when open
};

// The [[claim]] tables of a suite file. `cells`: the names a claim may use. Errors name the place.
Result<std::vector<Claim>> read_claims(const TomlFile& file, const std::vector<std::string>& cells);

}  // namespace mbb::suites
