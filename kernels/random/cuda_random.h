// Random numbers in kernels on a GPU: those of kernels/random/random.h, bit for
// bit, whose std::array device code cannot use. Device code.
#ifndef KERNELS_RANDOM_CUDA_RANDOM_H_
#define KERNELS_RANDOM_CUDA_RANDOM_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace shardgraph::cuda {

// A RandomKey.
struct PhiloxKey {
  uint64_t key;
  uint64_t stream;
};

__device__ __forceinline__ uint64_t FinalizeWord(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// MixWords.
__device__ __forceinline__ uint64_t MixedWords(uint64_t a, uint64_t b) {
  return FinalizeWord(FinalizeWord(a + 0x9e3779b97f4a7c15u) + b +
                      0x9e3779b97f4a7c15u);
}

// MakeRandomKey.
__device__ __forceinline__ PhiloxKey KeyOf(uint64_t seed, uint64_t name,
                                           uint64_t step, uint64_t sequence) {
  return {MixedWords(seed, name), MixedWords(step, sequence)};
}

// RandomBlock.
__device__ __forceinline__ void PhiloxWords(const PhiloxKey& key,
                                            uint64_t block,
                                            uint32_t (&words)[4]) {
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(key.stream);
  uint32_t c3 = static_cast<uint32_t>(key.stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(key.key);
  uint32_t key1 = static_cast<uint32_t>(key.key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// RandomWord.
__device__ __forceinline__ uint32_t PhiloxWord(const PhiloxKey& key,
                                               uint64_t index) {
  uint32_t words[4];
  PhiloxWords(key, index / 4, words);
  // Not indexed, which would put the words in memory.
  const uint32_t low = index & 1 ? words[1] : words[0];
  const uint32_t high = index & 1 ? words[3] : words[2];
  return index & 2 ? high : low;
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_RANDOM_CUDA_RANDOM_H_
