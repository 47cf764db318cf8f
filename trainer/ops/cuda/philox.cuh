// trainer/data/rng.h's random words for kernels that draw many blocks of one key: the keys of all rounds are worked out
// once and stay in registers.
#pragma once

#include <cstdint>

#include "trainer/data/rng.h"

namespace mbb::trainer::cuda {

class PhiloxKeys {
 public:
  __host__ __device__ constexpr explicit PhiloxKeys(uint64_t key) {
    for (int round = 0; round < kRounds; ++round) {
      first_[round] = static_cast<uint32_t>(key) + static_cast<uint32_t>(round) * 0x9E3779B9U;
      second_[round] = static_cast<uint32_t>(key >> 32) + static_cast<uint32_t>(round) * 0xBB67AE85U;
    }
  }

  // Keeps the compiler from working the keys out again for every block.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) asm("" : "+r"(first_[round]), "+r"(second_[round]));
  }

  // RandomStream::block
  __host__ __device__ constexpr PhiloxBlock block(uint64_t sample, uint64_t index) const {
    uint32_t w0 = static_cast<uint32_t>(index), w1 = static_cast<uint32_t>(index >> 32);
    uint32_t w2 = static_cast<uint32_t>(sample), w3 = static_cast<uint32_t>(sample >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t a = 0xD2511F53ULL * w0, b = 0xCD9E8D57ULL * w2;
      w0 = static_cast<uint32_t>(b >> 32) ^ w1 ^ first_[round], w1 = static_cast<uint32_t>(b);
      w2 = static_cast<uint32_t>(a >> 32) ^ w3 ^ second_[round], w3 = static_cast<uint32_t>(a);
    }
    return {{w0, w1, w2, w3}};
  }

 private:
  static constexpr int kRounds = 10;
  uint32_t first_[kRounds] = {}, second_[kRounds] = {};
};

constexpr bool same_words(uint64_t key, uint64_t sample, uint64_t index) {
  const PhiloxBlock here = PhiloxKeys(key).block(sample, index), there = RandomStream(key).block(sample, index);
  for (int i = 0; i < 4; ++i)
    if (here.word[i] != there.word[i]) return false;
  return true;
}
static_assert(same_words(0x0123456789abcdefULL, 0xfedcba9876543210ULL, 0x0f1e2d3c4b5a6978ULL));

}  // namespace mbb::trainer::cuda
