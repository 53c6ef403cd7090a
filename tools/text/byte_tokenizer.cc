#include "tools/text/tokenizer.h"

namespace shardgraph {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  void Encode(absl::string_view text,
              std::vector<int32_t>* tokens) const override {
    tokens->reserve(tokens->size() + text.size());
    for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
  }
  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
    }
    return text;
  }
  bool MayCut(absl::string_view, absl::string_view) const override {
    return true;
  }
  std::string Description() const override {
    return "{\"version\": \"1.0\", \"model\": {\"type\": \"bytes\", "
           "\"vocab_size\": 256}}\n";
  }
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace shardgraph
