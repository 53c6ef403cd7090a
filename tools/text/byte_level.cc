#include "tools/text/byte_level.h"

#include <array>
#include <cstdint>

namespace shardgraph {
namespace {

constexpr int kCharacters = 256 + 68;  // the largest has the code 323

struct Maps {
  std::array<int, 256> character_of;
  std::array<int, kCharacters> byte_of;

  constexpr Maps() : character_of(), byte_of() {
    for (int& byte : byte_of) byte = -1;
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= 33 && byte <= 126) ||
                          (byte >= 161 && byte <= 172) || byte >= 174;
      character_of[byte] = itself ? byte : next++;
      byte_of[character_of[byte]] = byte;
    }
  }
};

constexpr Maps kMaps;

}  // namespace

std::string ByteCharacter(unsigned char byte) {
  const int code = kMaps.character_of[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6),
          static_cast<char>(0x80 | (code & 0x3f))};
}

std::string PieceBytes(absl::string_view piece) {
  std::string bytes;
  for (size_t i = 0; i < piece.size(); ++i) {
    int code = static_cast<unsigned char>(piece[i]);
    if (code >= 0x80) {  // all have two bytes
      if ((code & 0xe0) != 0xc0 || i + 1 == piece.size())
        return std::string(piece);
      code = (code & 0x1f) << 6 | (piece[++i] & 0x3f);
    }
    if (code >= kCharacters || kMaps.byte_of[code] < 0)
      return std::string(piece);
    bytes.push_back(static_cast<char>(kMaps.byte_of[code]));
  }
  return bytes;
}

}  // namespace shardgraph
