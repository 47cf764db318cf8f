// The step program of a cell, read from its explain output: a tree by dotted path with FLOPs and bytes added up.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::viewer {

// A part of a path. Sums are per GPU and step, over everything below.
struct ProgramNode {
  std::string part;  // "fc1"
  std::string path;  // "layers.3.mlp.fc1"
  std::string what;  // of an op: "gemm bf16 8192x2560x8192"
  std::string kind;
  std::string role;
  std::string stream;
  bool is_op = false;
  std::int64_t ops = 0;
  std::int64_t runs = 0;
  double flops = 0;
  double bytes = 0;
  double wire_bytes = 0;
  std::int32_t parent = -1;
  std::vector<std::uint32_t> children;  // numbers of nodes, in the order of the program
};

struct ProgramClass {
  std::string title;                                       // "decoder, stage 0"
  std::vector<std::pair<std::string, std::string>> facts;  // label, text
  std::vector<ProgramNode> nodes;                          // 0 is the root
};

struct ProgramView {
  std::vector<std::pair<std::string, std::string>> facts;  // of the whole program
  std::vector<ProgramClass> classes;
};

// Reads any version whose classes hold segments with ops; what is missing is left out. kBadFile where the text is no
// program: it names what was expected.
Result<ProgramView> read_program(const std::string& json);

}  // namespace mbb::viewer
