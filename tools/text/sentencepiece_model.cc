#include "tools/text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <cstdlib>

namespace shardgraph {
namespace {

class Model : public SentencePieceModel {
 public:
  explicit Model(std::unique_ptr<sentencepiece::SentencePieceProcessor> model)
      : model_(std::move(model)) {}

  int64_t size() const override { return model_->GetPieceSize(); }
  int32_t end_of_text() const override { return model_->eos_id(); }
  int32_t begin_of_text() const override { return model_->bos_id(); }
  void Encode(const std::string& text,
              std::vector<int32_t>* tokens) const override {
    const std::vector<int> ids = model_->EncodeAsIds(text);
    tokens->insert(tokens->end(), ids.begin(), ids.end());
  }
  std::string PieceText(int32_t token) const override {
    if (model_->IsControl(token)) return "";
    if (model_->IsUnknown(token))
      return " \u2047 ";  // as the library writes it
    const std::string& piece = model_->IdToPiece(token);
    if (!model_->IsByte(token)) return piece;
    // "<0x0A>"
    return std::string(
        1, static_cast<char>(std::strtol(piece.c_str() + 1, nullptr, 16)));
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
};

}  // namespace

std::unique_ptr<SentencePieceModel> SentencePieceModel::Parse(
    const std::string& bytes, std::string* error) {
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const sentencepiece::util::Status status =
      model->LoadFromSerializedProto(bytes);
  if (!status.ok()) {
    *error = status.error_message();
    return nullptr;
  }
  return std::make_unique<Model>(std::move(model));
}

}  // namespace shardgraph
