// Where the elements of a rank's part of a tensor lie in the whole: plain numbers, so that kernels take them as an
// argument.
#pragma once

#include <array>
#include <cstdint>

#include "trainer/program/tensor.h"

namespace mbb::trainer {

class UnshardedPlaces {
 public:
  static constexpr int kMaxParts = 6;  // of a cut (packed q, k, v; gate, up)

  UnshardedPlaces() = default;
  UnshardedPlaces(const Tensor& tensor, const MeshCoordinates& coordinates);

  // Index in the unsharded tensor (row-major) of local element `index`.
  constexpr int64_t operator()(int64_t index) const {
    int64_t flat = 0, stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      const Dimension& dim = dims_[static_cast<size_t>(d)];
      const int64_t position = index % dim.local;
      index /= dim.local;
      int part = 0;
      while (part + 1 < dim.parts && position >= dim.end[static_cast<size_t>(part)]) ++part;
      flat += (position + dim.shift[static_cast<size_t>(part)]) * stride;
      stride *= dim.full;
    }
    return flat + index;
  }

 private:
  // Local positions below end[p] (and in no part before) lie shift[p] further in the whole.
  struct Dimension {
    int64_t local = 1, full = 1;
    int parts = 1;
    std::array<int64_t, kMaxParts> end{}, shift{};
  };

  int rank_ = 0;  // 0: nothing is cut, and an element lies where it lies
  std::array<Dimension, Shape::kMaxRank> dims_{};
};

}  // namespace mbb::trainer
