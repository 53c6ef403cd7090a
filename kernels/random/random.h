// Random numbers as pure functions of (key, counter): Philox4x32-10.
//
// There is no generator state. A RandomKey says which stream, a 64-bit index
// says which number of it; any thread, rank or device computes any number by
// itself, so results depend on neither the thread count nor the world size.
//
//   initialisation: MakeRandomKey(seed, HashName(parameter name)), index =
//                   element of the whole, unsharded parameter
//   dropout:        MakeRandomKey(seed, key, run_step, sequence_id), index =
//                   element within the sequence
//   BF16 moments:   MakeRandomKey(seed, key, run_step), index = element of the
//                   flat parameter
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC11; checked against the known answers of Random123.
#ifndef KERNELS_RANDOM_RANDOM_H_
#define KERNELS_RANDOM_RANDOM_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace shardgraph {

using PhiloxBlock = std::array<uint32_t, 4>;

// Ten rounds of Philox4x32 on a 128-bit counter with a 64-bit key.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0,
                                 uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0,
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1,
               static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// FNV-1a over the bytes of `name`, 64 bits: the same on every machine. An op
// attribute carries it as int64.
constexpr uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

// A pair of 64-bit words to one, avalanching (the finaliser of SplitMix64
// applied to each in turn).
constexpr uint64_t MixWords(uint64_t a, uint64_t b) {
  const auto finalize = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  return finalize(finalize(a + 0x9e3779b97f4a7c15u) + b + 0x9e3779b97f4a7c15u);
}

// Which stream: `key` keys Philox, `stream` is the upper half of its counter.
struct RandomKey {
  uint64_t key = 0;
  uint64_t stream = 0;
};

constexpr RandomKey MakeRandomKey(uint64_t seed, uint64_t name_hash,
                                  uint64_t step = 0, uint64_t sequence = 0) {
  return {MixWords(seed, name_hash), MixWords(step, sequence)};
}

// Numbers 4 x block .. 4 x block + 3 of the stream.
constexpr PhiloxBlock RandomBlock(const RandomKey& key, uint64_t block) {
  return Philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
       static_cast<uint32_t>(key.stream),
       static_cast<uint32_t>(key.stream >> 32)},
      static_cast<uint32_t>(key.key), static_cast<uint32_t>(key.key >> 32));
}

// Number `index` of the stream, uniform over all 32-bit words.
constexpr uint32_t RandomWord(const RandomKey& key, uint64_t index) {
  return RandomBlock(key, index / 4)[index % 4];
}

// Uniform in [0, 1), a multiple of 2^-24.
constexpr float RandomUniform(const RandomKey& key, uint64_t index) {
  return static_cast<float>(RandomWord(key, index) >> 8) * 0x1p-24f;
}

// Standard normal (Box-Muller in double, rounded once). Numbers 2k and 2k + 1
// share a pair of words. |value| < 6.7.
inline float RandomNormal(const RandomKey& key, uint64_t index) {
  const PhiloxBlock block = RandomBlock(key, index / 4);
  const int first = index % 4 & 2;
  const double radius =
      std::sqrt(-2.0 * std::log((block[first] + 1.0) * 0x1p-32));
  const double angle = 6.283185307179586477 * 0x1p-32 * block[first + 1];
  return static_cast<float>(
      radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

// Dropout keeps the number of an element iff it is at least this; the chance
// of dropping is `rate` to within 2^-32. 0 <= rate < 1.
constexpr uint32_t DropoutThreshold(double rate) {
  const double scaled = rate * 0x1p32;
  return scaled >= 4294967295.0 ? 0xffffffffu : static_cast<uint32_t>(scaled);
}

constexpr bool DropoutKeeps(const RandomKey& key, uint64_t index,
                            uint32_t threshold) {
  return RandomWord(key, index) >= threshold;
}

// `value` rounded to one of the two BF16 numbers beside it, so that the mean
// over uniform `random` in [0, 2^16) is `value`. Not finite numbers are kept.
inline float StochasticBFloat16(float value, uint32_t random) {
  if (!std::isfinite(value)) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + random) &
                              0xffff0000u);
}

}  // namespace shardgraph

#endif  // KERNELS_RANDOM_RANDOM_H_
