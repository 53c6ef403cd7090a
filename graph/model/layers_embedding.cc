// Embedding and PositionEmbedding: look-ups in a table.
#include "absl/strings/str_cat.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class EmbeddingLayer : public Layer {
 public:
  EmbeddingLayer(LayerInfo info, ModelFactory& factory,
                 const EmbeddingSpec& spec)
      : Layer(std::move(info)),
        table_(factory.AddParameter(
            *this, "weight", {spec.vocab_size(), spec.width()},
            Parameter::Init::kNormal, spec.init().std())) {
    factory.AddTable(*this, table_);
  }

 protected:
  ValueId Emit(EmitContext& context, ValueId tokens) const override {
    return context.builder.Emit1("embedding",
                                 {tokens, context.source.Get(*table_)});
  }

 private:
  const Parameter* table_;
};

class PositionEmbeddingLayer : public Layer {
 public:
  PositionEmbeddingLayer(LayerInfo info, ModelFactory& factory,
                         const PositionEmbeddingSpec& spec)
      : Layer(std::move(info)),
        table_(factory.AddParameter(
            *this, "weight", {spec.positions(), spec.width()},
            Parameter::Init::kNormal, spec.init().std())) {}

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    const ValueId rows = context.builder.Emit1(
        "embedding", {context.positions, context.source.Get(*table_)});
    return context.builder.Emit1("add", {x, rows});
  }

 private:
  const Parameter* table_;
};

}  // namespace

LayerOr MakeEmbedding(const EmbeddingSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory) {
  SG_RETURN_IF_ERROR(
      CheckSize(absl::StrCat(path, ".vocab_size"), spec.vocab_size()));
  SG_RETURN_IF_ERROR(CheckSize(absl::StrCat(path, ".width"), spec.width()));
  SG_RETURN_IF_ERROR(CheckInit(absl::StrCat(path, ".init"), spec.init()));
  if (factory.stream().kind != Stream::Kind::kTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": takes tokens, but another module comes before it; the "
                     "embedding must be the first, and the only one"));
  }
  factory.SetVocabSize(spec.vocab_size());
  factory.stream() = {Stream::Kind::kActivations, spec.width()};
  return std::make_unique<EmbeddingLayer>(std::move(info), factory, spec);
}

LayerOr MakePositionEmbedding(const PositionEmbeddingSpec& spec, LayerInfo info,
                              const std::string& path, ModelFactory& factory) {
  const std::string positions = absl::StrCat(path, ".positions");
  SG_RETURN_IF_ERROR(CheckSize(positions, spec.positions()));
  SG_RETURN_IF_ERROR(CheckSize(absl::StrCat(path, ".width"), spec.width()));
  SG_RETURN_IF_ERROR(CheckInit(absl::StrCat(path, ".init"), spec.init()));
  SG_RETURN_IF_ERROR(
      factory.TakeActivations(absl::StrCat(path, ".width"), spec.width()));
  factory.LimitPositions(spec.positions(), positions);
  factory.WantPositions();
  return std::make_unique<PositionEmbeddingLayer>(std::move(info), factory,
                                                  spec);
}

}  // namespace shardgraph
