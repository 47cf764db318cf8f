// Op cases: one list that serves as oracle test, finite-difference check and benchmark on every backend.
#pragma once

#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// How a case fills an input with fresh random values.
// kDistinct: each of 0 .. bound − 1 at most once. kSegments: [2, n] first rows and counts of n pieces that fill `bound`
// rows. kDropped: kInts, a third of them -1. kPadded: kInts, a third of the rows all -1. kApart: at least 0.15 from
// every multiple of one half, where functions may have kinks. kStarts: 0, then ascending, the last two `bound`.
enum class Fill : uint8_t {
  kNormal,
  kUniform,
  kPositive,
  kInts,
  kZeros,
  kApart,
  kDistinct,
  kSegments,
  kStarts,
  kDropped,
  kPadded
};

struct CaseInput {
  Shape shape;
  DType dtype = DType::kF32;  // cases are written in fp32; backends that run bf16 convert kF32 activations
  Fill fill = Fill::kNormal;
  int64_t bound = 0;    // kInts, kDropped, kPadded: values in [0, bound)
  bool weight = false;  // has a main gradient
  bool fixed = false;   // no gradient is asked for
};

// Fresh values of an input, row-major; integers where the input holds them.
std::vector<double> case_values(const CaseInput& input, std::mt19937_64& random);

struct OpCase {
  std::string name;  // "gemm/tn-odd"
  const OpKind* kind = nullptr;
  std::vector<CaseInput> in;
  Attrs attrs;
  bool differentiable = true;  // checked against finite differences
  double tolerance = 1e-3;     // of the finite-difference check, relative to the gradient's norm
};

// How test names show a case.
inline void PrintTo(const OpCase& op_case, std::ostream* out) {
  *out << op_case.name;
}

// The cases of every record in op_table().
std::vector<OpCase> op_cases();

// One of every op that has rows, with one row.
std::vector<OpCase> one_token_cases();

// Latent attention's packing that turns, named "latent_pack/" + name; of up to nine packs where the rotation is of
// packs.
OpCase turned_packing_case(const std::string& name, int64_t tokens, int64_t batch, LatentAttrs attrs,
                           const Rotation& rotation);

}  // namespace mbb::trainer
