// For GPU tests: device arrays, fresh random inputs, bf16 on the host, and the relative error against a double
// reference.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// FP8 bits to a number: E4M3 (no infinity, bias 7) or E5M2 (bias 15).
inline float from_fp8(uint8_t bits, Element kind) {
  const int mantissa_bits = kind == Element::kE4m3 ? 3 : 2, bias = kind == Element::kE4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  const float value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0f + fraction, exponent - bias);
  return (bits & 0x80) != 0 ? -value : value;
}

// Memory on the device, poisoned with 0xff bytes (NaN in every float type) until written. Sets and copies from pageable
// memory return before they are done, and the streams of ops do not wait for them: this does.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes == 0 ? 16 : bytes), cudaSuccess);
    set(0xff);
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  void* get() const { return data_; }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  float* floats() const { return static_cast<float*>(data_); }
  void upload(const void* from) {
    EXPECT_EQ(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  void download(void* to) const { EXPECT_EQ(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess); }
  void zero() { set(0); }

 private:
  void set(int byte) {
    EXPECT_EQ(cudaMemset(data_, byte, bytes_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

  void* data_ = nullptr;
  size_t bytes_;
};

// A float tensor kept on both sides; the host values are exactly what the device holds.
class Tensor {
 public:
  Tensor(Element element, size_t count) : element_(element), values_(count), device_(count * bytes()) {}

  static Tensor random(Element element, size_t count, std::mt19937_64& random, float deviation = 1.0f) {
    Tensor t(element, count);
    std::normal_distribution<float> normal(0.0f, deviation);
    for (auto& v : t.values_) v = normal(random);
    t.push();
    return t;
  }
  Tensor(Tensor&& other) noexcept
      : element_(other.element_), values_(other.values_), device_(other.values_.size() * other.bytes()) {
    push();
  }

  void push() {
    if (element_ == Element::kF32) {
      device_.upload(values_.data());
      return;
    }
    std::vector<uint16_t> bits(values_.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = to_bf16(values_[i]);
      values_[i] = from_bf16(bits[i]);
    }
    device_.upload(bits.data());
  }
  const std::vector<float>& pull() {
    if (element_ == Element::kF32) {
      device_.download(values_.data());
    } else {
      std::vector<uint16_t> bits(values_.size());
      device_.download(bits.data());
      for (size_t i = 0; i < bits.size(); ++i) values_[i] = from_bf16(bits[i]);
    }
    return values_;
  }
  std::vector<float>& host() { return values_; }
  float operator[](size_t i) const { return values_[i]; }
  size_t size() const { return values_.size(); }
  void* get() const { return device_.get(); }
  float* floats() const { return device_.floats(); }

 private:
  size_t bytes() const { return element_ == Element::kF32 ? 4 : 2; }
  Element element_;
  std::vector<float> values_;
  DeviceBytes device_;
};

// ||out - reference|| / ||reference||; a NaN in `out` makes it NaN, which no bound accepts.
template <typename Out>
double relative_error(const Out& out, const std::vector<double>& reference) {
  double difference = 0.0, norm = 0.0;
  EXPECT_EQ(out.size(), reference.size());
  for (size_t i = 0; i < reference.size(); ++i) {
    // Both infinite: the log-sum-exp of a query that sees no key.
    if (std::isinf(reference[i]) && static_cast<double>(out[i]) == reference[i]) continue;
    const double d = static_cast<double>(out[i]) - reference[i];
    difference += d * d;
    norm += reference[i] * reference[i];
  }
  // All zero (dQ where every query sees one key): held against inputs of order one.
  if (norm == 0.0) norm = std::max(1.0, static_cast<double>(reference.size()));
  return std::sqrt(difference / norm);
}

// Skips without a device; checks at the end that no error was left behind, asynchronous or to be read.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
    int sms = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    launch_.sms.count = sms;
    std::random_device entropy;
    seed_ = (static_cast<uint64_t>(entropy()) << 32) | entropy();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "seed " << seed_;
    const cudaError_t left = cudaGetLastError();
    EXPECT_EQ(left, cudaSuccess) << "left for the next launch: " << cudaGetErrorName(left);
  }
  void expect_ok(const Status& status) { ASSERT_TRUE(status.has_value()) << format(status.error()); }

  Launch launch_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

}  // namespace mbb::trainer::cuda
