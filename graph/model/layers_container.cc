// Sequential, Repeat and Residual: modules that only hold others.
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class SequentialLayer : public Layer {
 public:
  using Layer::Layer;

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    return EmitChildren(context, x);
  }
};

class ResidualLayer : public Layer {
 public:
  using Layer::Layer;

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    const ValueId y = EmitChildren(context, x);
    return context.builder.Emit1("add", {x, y});
  }
};

absl::Status AddChildren(
    const google::protobuf::RepeatedPtrField<ModuleSpec>& children,
    const std::string& path, Layer& layer, ModelFactory& factory) {
  if (children.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no children: add some or remove it"));
  }
  for (int i = 0; i < children.size(); ++i) {
    SG_RETURN_IF_ERROR(
        factory.AddChild(layer, children[i].name(), i, children[i],
                         absl::StrCat(path, ".children[", i, "]")));
  }
  return absl::OkStatus();
}

std::string Describe(const Stream& stream) {
  switch (stream.kind) {
    case Stream::Kind::kTokens:
      return "tokens";
    case Stream::Kind::kLoss:
      return "a loss";
    case Stream::Kind::kActivations:
      break;
  }
  return absl::StrCat("activations of width ", stream.width);
}

}  // namespace

LayerOr MakeSequential(const SequentialSpec& spec, LayerInfo info,
                       const std::string& path, ModelFactory& factory) {
  auto layer = std::make_unique<SequentialLayer>(std::move(info));
  SG_RETURN_IF_ERROR(AddChildren(spec.children(), path, *layer, factory));
  return layer;
}

LayerOr MakeRepeat(const RepeatSpec& spec, LayerInfo info,
                   const std::string& path, ModelFactory& factory) {
  SG_RETURN_IF_ERROR(CheckCopies(absl::StrCat(path, ".count"), spec.count()));
  const std::string body = absl::StrCat(path, ".body");
  if (!spec.body().name().empty()) {
    return BadField(absl::StrCat(body, ".name"),
                    absl::StrCat("\"", spec.body().name(), "\""),
                    "copies are named by their numbers; remove it");
  }
  info.list = true;
  auto layer = std::make_unique<SequentialLayer>(std::move(info));
  const Stream before = factory.stream();
  for (int64_t i = 0; i < spec.count(); ++i) {
    SG_RETURN_IF_ERROR(factory.AddChild(
        *layer, absl::StrCat(i), static_cast<int>(i), spec.body(), body));
    if (spec.count() > 1 && factory.stream() != before) {
      return absl::InvalidArgumentError(
          absl::StrCat(body, ": copies follow one another, but the body takes ",
                       Describe(before), " and gives ",
                       Describe(factory.stream()), "; make both equal"));
    }
  }
  return layer;
}

LayerOr MakeResidual(const ResidualSpec& spec, LayerInfo info,
                     const std::string& path, ModelFactory& factory) {
  const Stream before = factory.stream();
  SG_RETURN_IF_ERROR(factory.TakeActivations(path, before.width));
  auto layer = std::make_unique<ResidualLayer>(std::move(info));
  SG_RETURN_IF_ERROR(AddChildren(spec.children(), path, *layer, factory));
  if (factory.stream() != before) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its result is added to its input, but it takes ",
                     Describe(before), " and its children give ",
                     Describe(factory.stream()), "; make both equal"));
  }
  return layer;
}

}  // namespace shardgraph
