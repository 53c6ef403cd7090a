#include "fsdp/files/crc32c.h"

#include <array>
#include <cstring>

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

uint32_t ByTable(uint32_t crc, const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(data[i])) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(uint32_t crc,
                                                         const char* data,
                                                         size_t bytes) {
  uint64_t state = crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    state = __builtin_ia32_crc32di(state, word);
  }
  return ByTable(static_cast<uint32_t>(state), data, bytes);
}
#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~ByInstruction(~crc, data.data(), data.size());
#endif
  return ~ByTable(~crc, data.data(), data.size());
}

}  // namespace shardgraph
