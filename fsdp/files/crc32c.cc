#include "fsdp/files/crc32c.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shardgraph {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t ByTable(uint32_t state, const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    state =
        (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(data[i])) & 255];
  return state;
}

#if defined(__x86_64__)

// The instruction takes three cycles and can start each cycle: three stripes of
// so many bytes, a block, are summed at once.
constexpr size_t kStripe = 512;
constexpr size_t kBlock = 3 * kStripe;

// The state is linear over GF(2) in the state before: column i is what becomes
// of bit i.
using Columns = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const Columns& columns, uint32_t state) {
  uint32_t sum = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if ((state >> bit & 1) != 0) sum ^= columns[bit];
  }
  return sum;
}

// What a stripe of zeros makes of a state, by its bytes.
constexpr std::array<std::array<uint32_t, 256>, 4> MakeStripeOfZeros() {
  Columns zeros{};
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t state = uint32_t{1} << bit;
    zeros[bit] = (state >> 8) ^ kTable[state & 255];
  }
  for (size_t bytes = 1; bytes < kStripe; bytes *= 2) {
    Columns twice{};
    for (int bit = 0; bit < 32; ++bit) twice[bit] = Apply(zeros, zeros[bit]);
    zeros = twice;
  }
  std::array<std::array<uint32_t, 256>, 4> table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value)
      table[byte][value] = Apply(zeros, value << (8 * byte));
  }
  return table;
}

constexpr std::array<std::array<uint32_t, 256>, 4> kStripeOfZeros =
    MakeStripeOfZeros();

uint32_t PastStripe(uint32_t state) {
  return kStripeOfZeros[0][state & 255] ^ kStripeOfZeros[1][state >> 8 & 255] ^
         kStripeOfZeros[2][state >> 16 & 255] ^ kStripeOfZeros[3][state >> 24];
}

#define SG_SSE42 __attribute__((target("sse4.2")))

SG_SSE42 inline uint64_t AddWord(uint64_t state, const char* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return _mm_crc32_u64(state, word);
}

SG_SSE42 uint32_t AddBytes(uint32_t start, const char* data, size_t bytes) {
  uint64_t state = start;
  for (; bytes >= 8; data += 8, bytes -= 8) state = AddWord(state, data);
  return ByTable(static_cast<uint32_t>(state), data, bytes);
}

// 64 bytes; `to` is on 16.
void CopyLine(const char* from, char* to) {
  for (size_t i = 0; i < 64; i += 16) {
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + i),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Sums a block while the `next` one is copied, or at least fetched: memory and
// the instruction are busy at the same time.
template <bool kCopyNext>
SG_SSE42 uint32_t AddBlock(uint32_t start, const char* block, const char* next,
                           char* to) {
  uint64_t first = start, second = 0, third = 0;
  for (size_t i = 0; i < kStripe; i += 64) {
    for (size_t line = 3 * i; line < 3 * i + 3 * 64; line += 64) {
      if constexpr (kCopyNext) {
        CopyLine(next + line, to + line);
      } else {
        _mm_prefetch(next + line, _MM_HINT_T0);
      }
    }
    for (size_t word = i; word < i + 64; word += 8) {
      first = AddWord(first, block + word);
      second = AddWord(second, block + kStripe + word);
      third = AddWord(third, block + 2 * kStripe + word);
    }
  }
  const uint32_t two =
      PastStripe(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return PastStripe(two) ^ static_cast<uint32_t>(third);
}

uint32_t ByInstruction(uint32_t state, absl::string_view data) {
  for (; data.size() >= kBlock; data.remove_prefix(kBlock)) {
    state = AddBlock<false>(state, data.data(), data.data() + kBlock, nullptr);
  }
  return AddBytes(state, data.data(), data.size());
}

uint32_t CopyByInstruction(uint32_t state, absl::string_view data, char* to) {
  const auto small = [&](size_t bytes) {
    if (bytes == 0) return;
    std::memcpy(to, data.data(), bytes);
    state = AddBytes(state, data.data(), bytes);
    data.remove_prefix(bytes);
    to += bytes;
  };
  // Whole lines go to memory at once.
  small(std::min(data.size(), -reinterpret_cast<uintptr_t>(to) % 64));
  if (data.size() >= kBlock) {
    for (size_t line = 0; line < kBlock; line += 64)
      CopyLine(data.data() + line, to + line);
    for (; data.size() >= 2 * kBlock; data.remove_prefix(kBlock)) {
      to += kBlock;
      state = AddBlock<true>(state, data.data(), data.data() + kBlock, to);
    }
    to += kBlock;
    state = AddBlock<false>(state, data.data(), data.data() + kBlock, nullptr);
    data.remove_prefix(kBlock);
    _mm_sfence();
  }
  small(data.size());
  return state;
}

#undef SG_SSE42

bool HasInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
#if defined(__x86_64__)
  if (HasInstruction()) return ~ByInstruction(~crc, data);
#endif
  return ~ByTable(~crc, data.data(), data.size());
}

uint32_t CopyAndExtendCrc32c(uint32_t crc, absl::string_view data, char* to) {
#if defined(__x86_64__)
  if (HasInstruction()) return ~CopyByInstruction(~crc, data, to);
#endif
  if (!data.empty()) std::memcpy(to, data.data(), data.size());
  return ~ByTable(~crc, data.data(), data.size());
}

}  // namespace shardgraph
