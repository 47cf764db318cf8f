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
  template <int kTo = kPhiloxRounds>
  __host__ __device__ constexpr PhiloxBlock block(const PhiloxSample& sample, uint32_t index) const {
    const uint64_t a = kA * index, b = kB * (static_cast<uint32_t>(a >> 32) ^ sample.high);
    return rounds<2, kTo>({{static_cast<uint32_t>(b >> 32) ^ sample.low_product, static_cast<uint32_t>(b),
                            static_cast<uint32_t>(a) ^ sample.high_product, sample.next_product}});
  }

  // Blocks of one index, of two samples whose first products are one where their upper halves are. Every second product
  // is worked out in double: the multipliers of whole numbers alone would be what takes the time.
  __device__ __forceinline__ void blocks(const PhiloxSample (&samples)[2], uint32_t index,
                                         PhiloxBlock (&words)[2]) const {
    const uint64_t a = kA * index;
    uint64_t b = kB * (static_cast<uint32_t>(a >> 32) ^ samples[0].high);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && samples[1].high != samples[0].high) b = kB * (static_cast<uint32_t>(a >> 32) ^ samples[1].high);
      words[i] = last_rounds({{static_cast<uint32_t>(b >> 32) ^ samples[i].low_product, static_cast<uint32_t>(b),
                               static_cast<uint32_t>(a) ^ samples[i].high_product, samples[i].next_product}});
    }
  }

 private:
  static constexpr int kRounds = kPhiloxRounds;
  static constexpr uint64_t kA = 0xD2511F53ULL, kB = 0xCD9E8D57ULL;

  template <int kFrom, int kTo = kPhiloxRounds>
  __host__ __device__ constexpr PhiloxBlock rounds(PhiloxBlock w) const {
    for (int round = kFrom; round < kTo; ++round) {
      const uint64_t a = kA * w.word[0], b = kB * w.word[2];
      w = {{static_cast<uint32_t>(b >> 32) ^ w.word[1] ^ first_[round], static_cast<uint32_t>(b),
            static_cast<uint32_t>(a >> 32) ^ w.word[3] ^ second_[round], static_cast<uint32_t>(a)}};
    }
    return w;
  }
  // A word w below kPairHigh is the double 2^84 + 2^32 w. That times by / 2^32, and 2^84 - 2^52 by, are 2^84 + w by:
  // rounded toward zero, it holds the product's upper word as such a pair again.
  static constexpr uint32_t kPairHigh = 0x45300000U;
  struct Pair {
    uint32_t word, high;
  };
  static __device__ __forceinline__ Pair upper(const Pair& w, uint64_t by) {
    const auto factor = static_cast<double>(by);
    const double pair = __hiloint2double(static_cast<int>(w.high), static_cast<int>(w.word));
    const double r = __fma_rz(pair, factor * 0x1p-32, 0x1p84 - 0x1p52 * factor);
    return {static_cast<uint32_t>(__double2loint(r)), static_cast<uint32_t>(__double2hiint(r))};
  }
  // Rounds from the third on. The pair takes the place of word 0, then that of word 2.
  __device__ __forceinline__ PhiloxBlock last_rounds(const PhiloxBlock& w) const {
    Pair pair{w.word[0], kPairHigh};
    uint32_t w1 = w.word[1], w2 = w.word[2], w3 = w.word[3];
#pragma unroll
    for (int round = 2; round < kRounds; round += 2) {
      const Pair a = upper(pair, kA);
      const uint64_t b = kB * w2;
      const uint32_t w0 = static_cast<uint32_t>(b >> 32) ^ w1 ^ first_[round],
                     low = pair.word * static_cast<uint32_t>(kA);
      pair = {a.word ^ w3 ^ second_[round], a.high};
      const Pair d = upper(pair, kB);
      const uint64_t c = kA * w0;
      w2 = static_cast<uint32_t>(c >> 32) ^ low ^ second_[round + 1], w3 = static_cast<uint32_t>(c);
      w1 = pair.word * static_cast<uint32_t>(kB);
      pair = {d.word ^ static_cast<uint32_t>(b) ^ first_[round + 1], d.high};
    }
    return {{pair.word, w1, w2, w3}};
  }
  uint32_t first_[kRounds] = {}, second_[kRounds] = {};
};

constexpr bool same_words(uint64_t key, uint64_t sample, uint64_t index) {
  const PhiloxKeys keys(key);
  const PhiloxSample of_sample = keys.of_sample(sample, static_cast<uint32_t>(index >> 32));
  const PhiloxBlock there = RandomStream(key).block(sample, index), here = keys.block(sample, index);
  const PhiloxBlock of_low = keys.block(of_sample, static_cast<uint32_t>(index));
  const PhiloxBlock fewer_there = RandomStream(key).block(sample, index, kRoundingRounds);
  const PhiloxBlock fewer_here = keys.block<kRoundingRounds>(of_sample, static_cast<uint32_t>(index));
  for (int i = 0; i < 4; ++i) {
    if (here.word[i] != there.word[i] || of_low.word[i] != there.word[i]) return false;
    if (fewer_here.word[i] != fewer_there.word[i]) return false;
  }
  return true;
}
static_assert(same_words(0x0123456789abcdefULL, 0xfedcba9876543210ULL, 0x0f1e2d3c4b5a6978ULL));

}  // namespace mbb::trainer::cuda
