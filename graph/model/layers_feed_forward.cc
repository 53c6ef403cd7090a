// FeedForward: down(activation(up x)), or down(silu(gate x) * up x).
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/model/factory.h"
#include "graph/model/fields.h"
#include "graph/model/layers_linear.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class FeedForwardLayer : public Layer {
 public:
  FeedForwardLayer(LayerInfo info, ModelFactory& factory,
                   const FeedForwardSpec& spec)
      : Layer(std::move(info)),
        activation_(spec.activation()),
        output_dropout_(spec.output_dropout()),
        inner_(spec.inner()) {
    const bool input_major = spec.input_major();
    const char* class_name = LinearClassName(input_major);
    const LinearOptions in{.in = spec.width(),
                           .out = spec.inner(),
                           .bias = spec.bias(),
                           .input_major = input_major,
                           .std = spec.init().std()};
    const LinearOptions out{.in = spec.inner(),
                            .out = spec.width(),
                            .bias = spec.bias(),
                            .input_major = input_major,
                            .std = spec.output_init().std()};
    if (spec.gated()) {
      gate_ = factory.AddPart<LinearLayer>(*this, "gate_proj", class_name, in);
    }
    up_ = factory.AddPart<LinearLayer>(*this, input_major ? "c_fc" : "up_proj",
                                       class_name, in);
    down_ = factory.AddPart<LinearLayer>(
        *this, input_major ? "c_proj" : "down_proj", class_name, out);
    if (spec.gated()) StackLinears({gate_, up_}, factory);
  }

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override {
    const ValueId inner =
        gate_ == nullptr
            ? EmitActivation(context, up_->Run(context, x), activation_)
            : EmitGated(context, x);
    return EmitDropout(context, down_->Run(context, inner), output_dropout_,
                       absl::StrCat(site(), "/output_dropout"));
  }

 private:
  ValueId EmitGated(EmitContext& context, ValueId x) const {
    GraphBuilder& builder = context.builder;
    ValueId gate, up;
    if (const std::optional<ValueId> both =
            EmitStackedLinears(context, x, {gate_, up_})) {
      gate = builder.Slice(*both, 1, 0, inner_);
      up = builder.Slice(*both, 1, inner_, 2 * inner_);
    } else {
      gate = gate_->Run(context, x);
      up = up_->Run(context, x);
    }
    return builder.Emit1("swiglu", {gate, up});
  }

  std::string activation_;
  double output_dropout_;
  int64_t inner_;
  const LinearLayer* gate_ = nullptr;  // null: not gated
  const LinearLayer* up_;
  const LinearLayer* down_;
};

}  // namespace

LayerOr MakeFeedForward(const FeedForwardSpec& spec, LayerInfo info,
                        const std::string& path, ModelFactory& factory) {
  const auto field = [&](absl::string_view name) {
    return absl::StrCat(path, ".", name);
  };
  SG_RETURN_IF_ERROR(CheckSize(field("width"), spec.width()));
  SG_RETURN_IF_ERROR(CheckSize(field("inner"), spec.inner()));
  SG_RETURN_IF_ERROR(CheckActivation(field("activation"), spec.activation()));
  SG_RETURN_IF_ERROR(CheckRate(field("output_dropout"), spec.output_dropout()));
  SG_RETURN_IF_ERROR(CheckInit(field("init"), spec.init()));
  SG_RETURN_IF_ERROR(CheckInit(field("output_init"), spec.output_init()));
  if (spec.gated() && spec.activation() != "silu") {
    return BadField(field("activation"),
                    absl::StrCat("\"", spec.activation(), "\""),
                    "a gated feed-forward has \"silu\"");
  }
  if (spec.gated() && spec.input_major()) {
    return BadField(field("input_major"), "true",
                    "a gated feed-forward has weights [out, in]; remove it");
  }
  SG_RETURN_IF_ERROR(factory.TakeActivations(field("width"), spec.width()));
  info.feed_forward = true;
  return std::make_unique<FeedForwardLayer>(std::move(info), factory, spec);
}

}  // namespace shardgraph
