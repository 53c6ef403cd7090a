// Dropout and Activation: modules without parameters.
#include "absl/strings/str_cat.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class DropoutLayer : public Layer {
 public:
  DropoutLayer(LayerInfo info, double rate)
      : Layer(std::move(info)), rate_(rate) {}

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    return EmitDropout(context, x, rate_, site());
  }

 private:
  double rate_;
};

class ActivationLayer : public Layer {
 public:
  ActivationLayer(LayerInfo info, std::string function)
      : Layer(std::move(info)), function_(std::move(function)) {}

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    return EmitActivation(context, x, function_);
  }

 private:
  std::string function_;
};

}  // namespace

LayerOr MakeDropout(const DropoutSpec& spec, LayerInfo info,
                    const std::string& path, ModelFactory& factory) {
  SG_RETURN_IF_ERROR(CheckRate(absl::StrCat(path, ".rate"), spec.rate()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(path, factory.stream().width));
  return std::make_unique<DropoutLayer>(std::move(info), spec.rate());
}

LayerOr MakeActivation(const ActivationSpec& spec, LayerInfo info,
                       const std::string& path, ModelFactory& factory) {
  SG_RETURN_IF_ERROR(
      CheckActivation(absl::StrCat(path, ".function"), spec.function()));
  SG_RETURN_IF_ERROR(factory.TakeActivations(path, factory.stream().width));
  return std::make_unique<ActivationLayer>(std::move(info), spec.function());
}

}  // namespace shardgraph
