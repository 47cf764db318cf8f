// trainer/data/rng.h's random words for kernels that draw many blocks of one key: the keys of all rounds are worked out
// once and stay in registers.
#pragma once

#include <cstdint>

#include "trainer/data/rng.h"

namespace mbb::trainer::cuda {

// What a sample decides of its blocks' first two rounds, of indices with one high word.
struct alignas(16) PhiloxSample {
  uint32_t high, low_product, high_product, next_product;
};

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
    return rounds<0>({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(sample),
                       static_cast<uint32_t>(sample >> 32)}});
  }

  __host__ __device__ constexpr PhiloxSample of_sample(uint64_t sample, uint32_t index_high = 0) const {
    const uint64_t b = kB * static_cast<uint32_t>(sample);
    const uint64_t a = kA * (static_cast<uint32_t>(b >> 32) ^ index_high ^ first_[0]);
    return {static_cast<uint32_t>(sample >> 32) ^ second_[0], static_cast<uint32_t>(b) ^ first_[1],
            static_cast<uint32_t>(a >> 32) ^ second_[1], static_cast<uint32_t>(a)};
  }
  __host__ __device__ constexpr PhiloxBlock block(const PhiloxSample& sample, uint32_t index) const {
    const uint64_t a = kA * index, b = kB * (static_cast<uint32_t>(a >> 32) ^ sample.high);
    return rounds<2>({{static_cast<uint32_t>(b >> 32) ^ sample.low_product, static_cast<uint32_t>(b),
                       static_cast<uint32_t>(a) ^ sample.high_product, sample.next_product}});
  }

 private:
  static constexpr int kRounds = 10;
  static constexpr uint64_t kA = 0xD2511F53ULL, kB = 0xCD9E8D57ULL;

  template <int kFrom>
  __host__ __device__ constexpr PhiloxBlock rounds(PhiloxBlock w) const {
    for (int round = kFrom; round < kRounds; ++round) {
      const uint64_t a = kA * w.word[0], b = kB * w.word[2];
      w = {{static_cast<uint32_t>(b >> 32) ^ w.word[1] ^ first_[round], static_cast<uint32_t>(b),
            static_cast<uint32_t>(a >> 32) ^ w.word[3] ^ second_[round], static_cast<uint32_t>(a)}};
    }
    return w;
  }
  uint32_t first_[kRounds] = {}, second_[kRounds] = {};
};

constexpr bool same_words(uint64_t key, uint64_t sample, uint64_t index) {
  const PhiloxKeys keys(key);
  const PhiloxSample of_sample = keys.of_sample(sample, static_cast<uint32_t>(index >> 32));
  const PhiloxBlock there = RandomStream(key).block(sample, index), here = keys.block(sample, index);
  const PhiloxBlock of_low = keys.block(of_sample, static_cast<uint32_t>(index));
  for (int i = 0; i < 4; ++i)
    if (here.word[i] != there.word[i] || of_low.word[i] != there.word[i]) return false;
  return true;
}
static_assert(same_words(0x0123456789abcdefULL, 0xfedcba9876543210ULL, 0x0f1e2d3c4b5a6978ULL));

}  // namespace mbb::trainer::cuda
