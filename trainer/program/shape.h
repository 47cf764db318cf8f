// Static tensor extents: at most five dimensions, row-major, counted in elements.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "profiler/base/check.h"

namespace mbb::trainer {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) push_back(d);
  }

  void push_back(int64_t dim) {
    MB_CHECK(rank_ < kMaxRank, "a tensor has at most five dimensions");
    dims_[static_cast<size_t>(rank_++)] = dim;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)]; }
  int64_t& operator[](int i) { return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)]; }

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  // Product of all dimensions but the last: the rows of the tensor seen as a matrix.
  int64_t rows() const { return rank_ == 0 ? 1 : elements() / (*this)[-1]; }
  int64_t cols() const { return rank_ == 0 ? 1 : (*this)[-1]; }

  // The same tensor with the last dimension replaced.
  Shape with_last(int64_t dim) const {
    Shape s = *this;
    s[-1] = dim;
    return s;
  }

  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if ((*this)[i] != other[i]) return false;
    return true;
  }

  // "2048x1x8192"; a scalar prints as "scalar".
  std::string str() const {
    if (rank_ == 0) return "scalar";
    std::string text;
    for (int i = 0; i < rank_; ++i) text += (i ? "x" : "") + std::to_string((*this)[i]);
    return text;
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace mbb::trainer
