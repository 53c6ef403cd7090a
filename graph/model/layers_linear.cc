#include "graph/model/layers_linear.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

ValueId EmitProduct(EmitContext& context, ValueId x, ValueId weight,
                    ValueId bias, bool input_major) {
  Attributes attributes;
  if (!input_major) attributes.SetInt("transpose_b", 1);
  if (bias == kNone) {
    return context.builder.Emit1("matmul", {x, weight}, attributes);
  }
  attributes.SetInt("bias", 1);
  return context.builder.Emit1("matmul", {x, weight, bias}, attributes);
}

}  // namespace

LinearLayer::LinearLayer(LayerInfo info, ModelFactory& factory,
                         const LinearOptions& options)
    : Layer(std::move(info)), input_major_(options.input_major) {
  const Dims shape = options.input_major ? Dims{options.in, options.out}
                                         : Dims{options.out, options.in};
  weight_ = factory.AddParameter(*this, "weight", shape,
                                 Parameter::Init::kNormal, options.std);
  if (options.bias) {
    bias_ = factory.AddParameter(*this, "bias", {options.out},
                                 Parameter::Init::kZeros);
  }
  const Lora* const lora = factory.LoraOf(name());
  if (lora == nullptr) return;
  lora_ = *lora;
  // The deviation of PEFT's uniform numbers.
  lora_a_ = factory.AddParameter(
      *this, "lora_A.weight", {lora_.rank, options.in},
      Parameter::Init::kNormal,
      1 / std::sqrt(3.0 * static_cast<double>(options.in)), /*adapter=*/true);
  lora_b_ =
      factory.AddParameter(*this, "lora_B.weight", {options.out, lora_.rank},
                           Parameter::Init::kZeros, 0, /*adapter=*/true);
}

ValueId LinearLayer::Emit(EmitContext& context, ValueId x) const {
  const ValueId weight = context.source.Get(*weight_);
  const ValueId bias = bias_ == nullptr ? kNone : context.source.Get(*bias_);
  const ValueId y = EmitProduct(context, x, weight, bias, input_major_);
  if (!has_adapter()) return y;
  return context.builder.Emit1("add", {y, EmitAdapter(context, x)});
}

ValueId LinearLayer::EmitAdapter(EmitContext& context, ValueId x) const {
  GraphBuilder& builder = context.builder;
  const ValueId dropped = EmitDropout(context, x, lora_.dropout,
                                      absl::StrCat(site(), "/lora_dropout"));
  ValueId inner = EmitProduct(context, dropped, context.source.Get(*lora_a_),
                              kNone, /*input_major=*/false);
  if (lora_.scale != 1) {
    const ValueId scale =
        builder.Emit1("fill", {},
                      Attributes()
                          .SetInts("shape", {})
                          .SetString("dtype", DTypeName(DType::kF32))
                          .SetDouble("value", lora_.scale));
    inner = builder.Emit1("scale", {inner, scale});
  }
  return EmitProduct(context, inner, context.source.Get(*lora_b_), kNone,
                     /*input_major=*/false);
}

void StackLinears(absl::Span<const LinearLayer* const> layers,
                  ModelFactory& factory) {
  std::vector<const Parameter*> weights, biases;
  for (const LinearLayer* layer : layers) {
    if (layer->has_adapter()) return;
    weights.push_back(layer->weight());
    if (layer->bias() != nullptr) biases.push_back(layer->bias());
  }
  factory.AddStack(std::move(weights));
  if (!biases.empty()) factory.AddStack(std::move(biases));
}

std::optional<ValueId> EmitStackedLinears(
    EmitContext& context, ValueId x,
    absl::Span<const LinearLayer* const> layers) {
  std::vector<const Parameter*> weights, biases;
  for (const LinearLayer* layer : layers) {
    if (layer->has_adapter()) return std::nullopt;
    weights.push_back(layer->weight());
    if (layer->bias() != nullptr) biases.push_back(layer->bias());
  }
  const std::optional<ValueId> weight = context.source.GetStacked(weights);
  if (!weight.has_value()) return std::nullopt;
  ValueId bias = kNone;
  if (!biases.empty()) {
    const std::optional<ValueId> stacked = context.source.GetStacked(biases);
    if (!stacked.has_value()) return std::nullopt;
    bias = *stacked;
  }
  return EmitProduct(context, x, *weight, bias, /*input_major=*/false);
}

LayerOr MakeLinear(const LinearSpec& spec, LayerInfo info,
                   const std::string& path, ModelFactory& factory) {
  SG_RETURN_IF_ERROR(CheckSize(absl::StrCat(path, ".in"), spec.in()));
  SG_RETURN_IF_ERROR(CheckSize(absl::StrCat(path, ".out"), spec.out()));
  SG_RETURN_IF_ERROR(CheckInit(absl::StrCat(path, ".init"), spec.init()));
  SG_RETURN_IF_ERROR(
      factory.TakeActivations(absl::StrCat(path, ".in"), spec.in()));
  factory.stream().width = spec.out();
  return std::make_unique<LinearLayer>(
      std::move(info), factory,
      LinearOptions{.in = spec.in(),
                    .out = spec.out(),
                    .bias = spec.bias(),
                    .input_major = spec.input_major(),
                    .std = spec.init().std()});
}

}  // namespace shardgraph
