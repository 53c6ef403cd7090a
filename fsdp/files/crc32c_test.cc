#include "fsdp/files/crc32c.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// By the definition: bit by bit, reflected.
uint32_t Bitwise(uint32_t crc, absl::string_view data) {
  uint32_t state = ~crc;
  for (const char byte : data) {
    state ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      state = (state & 1) != 0 ? state >> 1 ^ 0x82f63b78u : state >> 1;
  }
  return ~state;
}

TEST(Crc32cTest, KnownAnswers) {
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  const std::string text = "a text cut at any place gives the same sum";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(text.substr(0, cut)), text.substr(cut)),
              Crc32c(text));
  }
}

TEST(Crc32cTest, SumsAndCopiesAnyLengthFromAnywhereToAnywhere) {
  std::string data(80001, 0);
  uint32_t state = 1;
  for (char& byte : data) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  // Around words, lines, and one, two and several blocks of stripes.
  for (const size_t size : {0, 1, 7, 8, 63, 64, 65, 3071, 3072, 12287, 12288,
                            12289, 24576 + 64, 70000}) {
    for (const size_t from : {0, 1, 8, 61}) {
      const absl::string_view piece(data.data() + from, size);
      const uint32_t sum = Bitwise(5, piece);
      EXPECT_EQ(ExtendCrc32c(5, piece), sum) << size << " from " << from;
      for (const size_t to : {0, 4, 16, 63}) {
        std::vector<char> copy(size + 128, '#');
        EXPECT_EQ(CopyAndExtendCrc32c(5, piece, copy.data() + to), sum)
            << size << " from " << from << " to " << to;
        std::vector<char> expected(size + 128, '#');
        std::copy(piece.begin(), piece.end(), expected.begin() + to);
        EXPECT_TRUE(copy == expected) << size << " from " << from;
      }
    }
  }
}

}  // namespace
}  // namespace shardgraph
