// The characters that stand for bytes in byte-level vocabularies (GPT-2's
// bytes_to_unicode): printable ones for themselves, the others U+0100 and on.
#ifndef TOOLS_TEXT_BYTE_LEVEL_H_
#define TOOLS_TEXT_BYTE_LEVEL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace shardgraph {

// The character of a byte, in UTF-8.
std::string ByteCharacter(unsigned char byte);

// The bytes that a piece of a vocabulary stands for; the piece itself where it
// has a character that stands for no byte.
std::string PieceBytes(absl::string_view piece);

}  // namespace shardgraph

#endif  // TOOLS_TEXT_BYTE_LEVEL_H_
