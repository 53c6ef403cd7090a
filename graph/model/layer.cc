#include "graph/model/layer.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/random/random.h"
#include "kernels/step_state.h"

namespace shardgraph {

ValueId EmitContext::Input(absl::string_view name, DType dtype, int64_t size) {
  return builder.Input(absl::StrCat(options.input_prefix, name),
                       TensorType(dtype, {size}));
}

ValueId EmitContext::RunStep() {
  return builder.StateField(offsetof(StepState, run_step),
                            TensorType(DType::kI64, {}));
}

ValueId EmitContext::Position() {
  return builder.StateField(offsetof(StepState, position),
                            TensorType(DType::kI64, {}));
}

Layer::Layer(LayerInfo info) : site_(std::move(info.site)) {
  name_ = std::move(info.name);
  class_name_ = std::move(info.class_name);
  transparent_ = info.transparent;
  block_ = info.block;
  list_ = info.list;
  attention_ = info.attention;
  feed_forward_ = info.feed_forward;
}

ValueId Layer::Run(EmitContext& context, ValueId x) const {
  if (transparent()) return Emit(context, x);
  const std::string outer(context.builder.scope());
  context.source.Enter(*this);
  context.builder.SetScope(name());
  const ValueId y = Emit(context, x);
  context.source.Exit(*this, y);
  context.builder.SetScope(outer);
  return y;
}

ValueId Layer::EmitChildren(EmitContext& context, ValueId x) const {
  for (int i = 0; i < num_children(); ++i) x = child(i).Run(context, x);
  return x;
}

int64_t DropoutKey(absl::string_view site) {
  return static_cast<int64_t>(HashName(site));
}

ValueId EmitDropout(EmitContext& context, ValueId x, double rate,
                    absl::string_view site) {
  if (!context.training() || rate == 0) return x;
  GraphBuilder& builder = context.builder;
  const Dims shape = builder.type(x).shape;
  const int64_t batch = context.options.batch;
  const ValueId sequences =
      builder.Reshape(x, {batch, NumElements(shape) / batch});
  const ValueId y = builder.Emit1(
      "dropout", {sequences, context.SequenceIds(), context.RunStep()},
      Attributes()
          .SetDouble("rate", rate)
          .SetInt("seed", static_cast<int64_t>(context.options.seed))
          .SetInt("key", DropoutKey(site)));
  return builder.Reshape(y, shape);
}

ValueId EmitActivation(EmitContext& context, ValueId x,
                       absl::string_view function) {
  GraphBuilder& builder = context.builder;
  if (function == "gelu_new" || function == "gelu") {
    return builder.Emit1("gelu", {x},
                         Attributes().SetInt("tanh", function == "gelu_new"));
  }
  SG_CHECK(function == "silu" || function == "relu") << std::string(function);
  return builder.Emit1(function, {x});
}

}  // namespace shardgraph
