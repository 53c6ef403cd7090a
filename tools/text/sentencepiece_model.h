// SentencePieceModel: SentencePiece's processor behind types of the standard
// library: its own header brings a namespace absl that is not Abseil's.
#ifndef TOOLS_TEXT_SENTENCEPIECE_MODEL_H_
#define TOOLS_TEXT_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardgraph {

// Immutable; safe to use from several threads.
class SentencePieceModel {
 public:
  // Null with `error` set: `bytes` is no model.
  static std::unique_ptr<SentencePieceModel> Parse(const std::string& bytes,
                                                   std::string* error);
  virtual ~SentencePieceModel() = default;

  virtual int64_t size() const = 0;           // tokens
  virtual int32_t end_of_text() const = 0;    // -1: none
  virtual int32_t begin_of_text() const = 0;  // -1: none
  // `text` is well-formed UTF-8.
  virtual void Encode(const std::string& text,
                      std::vector<int32_t>* tokens) const = 0;
  // The text of a piece, with U+2581 where a space is; the byte of a byte
  // piece; empty for control pieces.
  virtual std::string PieceText(int32_t token) const = 0;
};

}  // namespace shardgraph

#endif  // TOOLS_TEXT_SENTENCEPIECE_MODEL_H_
