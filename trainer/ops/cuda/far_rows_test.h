// For tests of tensors of more than 2^31 elements: zeros but for their end, which is computed as it is where nothing
// lies before it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {

inline constexpr int64_t kFar = int64_t{1} << 31;

// Zeros, but for what lies at the end; without an end not written yet.
class FarBytes {
 public:
  explicit FarBytes(int64_t bytes) : bytes_(static_cast<size_t>(bytes)), memory_(bytes_) {}
  template <typename T>
  FarBytes(int64_t bytes, const std::vector<T>& end) : FarBytes(bytes) {
    memory_.zero();
    const size_t size = end.size() * sizeof(T);
    EXPECT_EQ(cudaMemcpy(memory_.bytes() + bytes_ - size, end.data(), size, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

  void* get() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  // The last `count` elements.
  template <typename T>
  std::vector<T> end(int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    const size_t size = values.size() * sizeof(T);
    EXPECT_EQ(cudaMemcpy(values.data(), memory_.bytes() + bytes_ - size, size, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  // Pieces of `count` elements, one in every `pitch` elements, from element `first` on; and the other way.
  template <typename T>
  std::vector<T> pieces(int64_t first, int64_t pitch, int64_t count, int64_t of) const {
    std::vector<T> values(static_cast<size_t>(count * of));
    const auto width = static_cast<size_t>(count) * sizeof(T);
    EXPECT_EQ(cudaMemcpy2D(values.data(), width, as<T>() + first, static_cast<size_t>(pitch) * sizeof(T), width,
                           static_cast<size_t>(of), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
  template <typename T>
  void write_pieces(const std::vector<T>& values, int64_t first, int64_t pitch, int64_t count) {
    const auto width = static_cast<size_t>(count) * sizeof(T);
    EXPECT_EQ(cudaMemcpy2D(as<T>() + first, static_cast<size_t>(pitch) * sizeof(T), values.data(), width, width,
                           values.size() / static_cast<size_t>(count), cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  void zero() { memory_.zero(); }

 private:
  size_t bytes_;
  DeviceBytes memory_;
};

class FarTest : public GpuTest {
 protected:
  // With room to spare for what libraries take.
  static bool has_room(int64_t gib) {
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && static_cast<int64_t>(free_bytes >> 30) > gib + 4;
  }
  std::vector<uint16_t> random_bf16(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<uint16_t> bits(static_cast<size_t>(count));
    for (uint16_t& one : bits) one = to_bf16(normal(random_));
    return bits;
  }
  std::vector<float> random_f32(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& one : values) one = normal(random_);
    return values;
  }
  static std::vector<double> values_of(const std::vector<uint16_t>& bits) {
    std::vector<double> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(), [](uint16_t b) { return double{from_bf16(b)}; });
    return values;
  }
  void expect_near(const std::vector<uint16_t>& far, const std::vector<uint16_t>& near, double bound) {
    EXPECT_LT(relative_error(values_of(far), values_of(near)), bound) << "seed " << seed_;
  }
  // The op has been run.
  void done(const Status& status) {
    expect_ok(status);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
};

}  // namespace mbb::trainer::cuda
