// The numbers of kernels/random/random.h on vectors, for sources of a
// cpu_target_library (kernels/cpu/target.h).
#ifndef KERNELS_RANDOM_RANDOM_VECTOR_H_
#define KERNELS_RANDOM_RANDOM_VECTOR_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

typedef uint64_t WideVector __attribute__((vector_size(4 * kWidth)));

// Products of the even lanes of both.
SG_VECTOR_INLINE WideVector MultiplyEven(WordVector a, WordVector b) {
#if defined(__AVX512F__) && defined(__clang__)
  return (WideVector)__builtin_ia32_pmuludq512((IntVector)a, (IntVector)b);
#elif defined(__AVX512F__)
  typedef long long Long8 __attribute__((vector_size(64)));
  return (WideVector)__builtin_ia32_pmuludq512_mask((IntVector)a, (IntVector)b,
                                                    Long8{}, 0xff);
#elif defined(__AVX__)
  return (WideVector)__builtin_ia32_pmuludq256((IntVector)a, (IntVector)b);
#else
  return (WideVector)__builtin_ia32_pmuludq128((IntVector)a, (IntVector)b);
#endif
}

// The 64-bit products of all lanes with a constant, in halves.
SG_VECTOR_INLINE void MultiplyWords(WordVector a, uint32_t constant,
                                    WordVector* high, WordVector* low) {
  const WordVector factor = WordVector{} + constant;
  const WideVector even = MultiplyEven(a, factor);
  const WideVector odd =
      MultiplyEven((WordVector)((WideVector)a >> 32), factor);
  *low = (WordVector)((even & 0xffffffffu) | (odd << 32));
  *high = (WordVector)((even >> 32) | (odd & 0xffffffff00000000u));
}

// Numbers 4 * block .. 4 * (block + kWidth) - 1 of the stream, as Philox4x32
// of kernels/random/random.h computes them, a block in each lane.
SG_VECTOR_INLINE void RandomBlocks(uint64_t key, uint64_t stream,
                                   uint64_t block, uint32_t* numbers) {
  WordVector c0, c1;
  for (int l = 0; l < kWidth; ++l) {
    c0[l] = static_cast<uint32_t>(block + l);
    c1[l] = static_cast<uint32_t>((block + l) >> 32);
  }
  WordVector c2 = WordVector{} + static_cast<uint32_t>(stream);
  WordVector c3 = WordVector{} + static_cast<uint32_t>(stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    WordVector high0, low0, high2, low2;
    MultiplyWords(c0, 0xD2511F53u, &high0, &low0);
    MultiplyWords(c2, 0xCD9E8D57u, &high2, &low2);
    c0 = high2 ^ c1 ^ key0;
    c1 = low2;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  // Four blocks at a time, from a word of each block to the words of a block.
  typedef uint32_t Word4 __attribute__((vector_size(16)));
  for (int l = 0; l < kWidth; l += 4) {
    Word4 w[4];
    const WordVector* words[] = {&c0, &c1, &c2, &c3};
    for (int i = 0; i < 4; ++i)
      std::memcpy(&w[i], reinterpret_cast<const char*>(words[i]) + 4 * l, 16);
    const auto low = [](Word4 x, Word4 y) {
      return __builtin_shufflevector(x, y, 0, 4, 1, 5);
    };
    const auto high = [](Word4 x, Word4 y) {
      return __builtin_shufflevector(x, y, 2, 6, 3, 7);
    };
    const Word4 a = low(w[0], w[2]), b = high(w[0], w[2]);
    const Word4 c = low(w[1], w[3]), d = high(w[1], w[3]);
    const Word4 blocks[] = {low(a, c), high(a, c), low(b, d), high(b, d)};
    std::memcpy(numbers + 4 * l, blocks, sizeof(blocks));
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_RANDOM_RANDOM_VECTOR_H_
