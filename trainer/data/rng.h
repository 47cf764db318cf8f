// Counter-based random numbers: a value is a pure function of where it is used, never of who computes it or when.
//
// A value is named by (seed, path, step, sample, element):
//   seed     the run's seed
//   path     the op's dotted path as the builder wrote it, before any pass ("layers.3.mlp.dropout", "data.order")
//   step     the training step (0 for what is drawn once, such as initial weights)
//   sample   the global sample index (0 where the tensor has no sample axis)
//   element  the flat index in the unsharded tensor of one sample
// So recompute, TP, CP, DP and micro-batching see the same numbers.
//
// The function: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//   key      mix(mix(mix(seed + G) ^ path_hash(path)) ^ (step + G)), G = 0x9e3779b97f4a7c15, mix = SplitMix64's
//            finalizer; its low and high 32 bits are Philox's two key words
//   counter  words (low, high) of element / 4, then (low, high) of sample
//   bits     output word element mod 4
// uniform  = (bits >> 8) · 2^-24, in [0, 1), exact in fp32
// normal   = Box-Muller on the word pair of the element: r = sqrt(−2 ln((even word + 0.5) · 2^-32)),
//            φ = 2π · odd word · 2^-32; the even element takes r cos φ, the odd one r sin φ; |normal| < 6.77
// Everything is constexpr on plain words, so that device code includes this file too.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace mbb::trainer {

constexpr std::uint64_t kRngGamma = 0x9e3779b97f4a7c15ULL;

// SplitMix64's finalizer: a bijection of 64-bit words.
constexpr std::uint64_t rng_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// FNV-1a of the path's bytes.
constexpr std::uint64_t path_hash(std::string_view path) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

struct PhiloxBlock {
  std::uint32_t word[4];
};

// Ten rounds; what rounds a value takes seven, the fewest of which its authors saw no test of BigCrush fail.
constexpr int kPhiloxRounds = 10, kRoundingRounds = 7;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1,
                                 int rounds = kPhiloxRounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t a = 0xD2511F53ULL * counter.word[0];
    const std::uint64_t b = 0xCD9E8D57ULL * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// Nine bits each of sixteen neighbours from one block of kRoundingRounds: an element's word is element / 4, of which it
// has a half with another, from the third bit on; the odd one reads the half with its bytes swapped, so that the first
// bit of either is the last of the other and no bit else is both's.
constexpr std::uint32_t nine_bits(const PhiloxBlock& words, int element) {
  const std::uint32_t half = (words.word[element / 4] >> (element % 4 / 2 * 16)) & 0xffffU;
  return ((element % 2 == 0 ? half : (half >> 8) | (half << 8)) >> 3) & 511U;
}

// What of a key is known before the step is.
constexpr std::uint64_t rng_stream(std::uint64_t seed, std::uint64_t hash_of_path) {
  return rng_mix(rng_mix(seed + kRngGamma) ^ hash_of_path);
}

constexpr std::uint64_t rng_key(std::uint64_t seed, std::uint64_t hash_of_path, std::uint64_t step) {
  return rng_mix(rng_stream(seed, hash_of_path) ^ (step + kRngGamma));
}

// The stream of one (seed, path, step); a value each for (sample, element).
class RandomStream {
 public:
  constexpr explicit RandomStream(std::uint64_t key) : key_(key) {}
  constexpr RandomStream(std::uint64_t seed, std::string_view path, std::uint64_t step)
      : key_(rng_key(seed, path_hash(path), step)) {}

  constexpr std::uint64_t key() const { return key_; }

  // The words of elements 4·block .. 4·block + 3.
  constexpr PhiloxBlock block(std::uint64_t sample, std::uint64_t block_index, int rounds = kPhiloxRounds) const {
    return philox4x32({{static_cast<std::uint32_t>(block_index), static_cast<std::uint32_t>(block_index >> 32),
                        static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)}},
                      static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32), rounds);
  }

  constexpr std::uint32_t bits(std::uint64_t sample, std::uint64_t element) const {
    return block(sample, element / 4).word[element % 4];
  }

  constexpr float uniform(std::uint64_t sample, std::uint64_t element) const {
    return uniform_of(bits(sample, element));
  }

  float normal(std::uint64_t sample, std::uint64_t element) const {
    return normal_of(block(sample, element / 4), static_cast<int>(element % 4));
  }

  // Below `bound`, as exactly as 64 bits of draw allow (bias under bound · 2^-64). Uses elements 2e and 2e + 1.
  constexpr std::uint64_t below(std::uint64_t bound, std::uint64_t sample, std::uint64_t element) const {
    const PhiloxBlock words = block(sample, element / 2);
    const std::uint64_t draw = (std::uint64_t{words.word[element % 2 * 2 + 1]} << 32) | words.word[element % 2 * 2];
    // High half of the 128-bit product draw · bound, in 32-bit pieces so that every compiler has it.
    const std::uint64_t low = (draw & 0xffffffffULL) * (bound & 0xffffffffULL);
    const std::uint64_t mid1 = (draw >> 32) * (bound & 0xffffffffULL) + (low >> 32);
    const std::uint64_t mid2 = (draw & 0xffffffffULL) * (bound >> 32) + (mid1 & 0xffffffffULL);
    return (draw >> 32) * (bound >> 32) + (mid1 >> 32) + (mid2 >> 32);
  }

  static constexpr float uniform_of(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }

  static float normal_of(const PhiloxBlock& words, int element) {
    const int even = element & ~1;
    const double u = (static_cast<double>(words.word[even]) + 0.5) * 0x1p-32;
    const double phi = 6.283185307179586476925 * (static_cast<double>(words.word[even + 1]) * 0x1p-32);
    const double radius = std::sqrt(-2.0 * std::log(u));
    return static_cast<float>((element & 1) != 0 ? radius * std::sin(phi) : radius * std::cos(phi));
  }

 private:
  std::uint64_t key_;
};

// A keyed shuffle without memory: a bijection of 0 .. size − 1 (size >= 1), by a four-round Feistel network on the next
// even number of bits, walked until it lands inside.
class Permutation {
 public:
  constexpr Permutation(RandomStream stream, std::uint64_t size) : stream_(stream), size_(size) {
    while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  }

  constexpr std::uint64_t operator()(std::uint64_t index) const {
    do {
      index = once(index);
    } while (index >= size_);
    return index;
  }

 private:
  constexpr std::uint64_t once(std::uint64_t index) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (stream_.block(round, right).word[0] & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  RandomStream stream_;
  std::uint64_t size_;
  unsigned half_bits_ = 1;
};

}  // namespace mbb::trainer
