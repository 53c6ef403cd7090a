#include "graph/model/layers_norm.h"

#include "absl/strings/str_cat.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class LayerNormLayer : public Layer {
 public:
  LayerNormLayer(LayerInfo info, ModelFactory& factory,
                 const LayerNormSpec& spec)
      : Layer(std::move(info)),
        epsilon_(spec.epsilon()),
        weight_(factory.AddParameter(*this, "weight", {spec.width()},
                                     Parameter::Init::kOnes)),
        bias_(spec.bias() ? factory.AddParameter(*this, "bias", {spec.width()},
                                                 Parameter::Init::kZeros)
                          : nullptr) {}

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    Attributes attributes;
    attributes.SetDouble("epsilon", epsilon_);
    absl::InlinedVector<ValueId, 3> operands = {x,
                                                context.source.Get(*weight_)};
    if (bias_ != nullptr) {
      attributes.SetInt("bias", 1);
      operands.push_back(context.source.Get(*bias_));
    }
    return context.builder.Emit("layer_norm", operands,
                                std::move(attributes))[0];
  }

 private:
  double epsilon_;
  const Parameter* weight_;
  const Parameter* bias_;
};

}  // namespace

RmsNormLayer::RmsNormLayer(LayerInfo info, ModelFactory& factory, int64_t width,
                           double epsilon)
    : Layer(std::move(info)),
      epsilon_(epsilon),
      weight_(factory.AddParameter(*this, "weight", {width},
                                   Parameter::Init::kOnes)) {}

ValueId RmsNormLayer::Emit(EmitContext& context, ValueId x) const {
  return context.builder.Emit("rms_norm", {x, context.source.Get(*weight_)},
                              Attributes().SetDouble("epsilon", epsilon_))[0];
}

LayerOr MakeLayerNorm(const LayerNormSpec& spec, LayerInfo info,
                      const std::string& path, ModelFactory& factory) {
  const std::string width = absl::StrCat(path, ".width");
  SG_RETURN_IF_ERROR(CheckSize(width, spec.width()));
  SG_RETURN_IF_ERROR(
      CheckPositive(absl::StrCat(path, ".epsilon"), spec.epsilon()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(width, spec.width()));
  return std::make_unique<LayerNormLayer>(std::move(info), factory, spec);
}

LayerOr MakeRmsNorm(const RmsNormSpec& spec, LayerInfo info,
                    const std::string& path, ModelFactory& factory) {
  const std::string width = absl::StrCat(path, ".width");
  SG_RETURN_IF_ERROR(CheckSize(width, spec.width()));
  SG_RETURN_IF_ERROR(
      CheckPositive(absl::StrCat(path, ".epsilon"), spec.epsilon()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(width, spec.width()));
  return std::make_unique<RmsNormLayer>(std::move(info), factory, spec.width(),
                                        spec.epsilon());
}

}  // namespace shardgraph
