// The configurations whose ops mbbench-micro times: together they hold every op kind that one rank runs, at the shapes
// models have.
#pragma once

#include <string>
#include <vector>

namespace mbb::suites {

struct MicroCase {
  std::string name;                   // "llama3-8b/bf16"
  std::vector<std::string> settings;  // "num_layers=1"
};

const std::vector<MicroCase>& micro_cases();

}  // namespace mbb::suites
