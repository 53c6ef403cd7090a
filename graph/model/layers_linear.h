// LinearLayer: y = x W + b, alone or side by side with others of the same
// input.
#ifndef GRAPH_MODEL_LAYERS_LINEAR_H_
#define GRAPH_MODEL_LAYERS_LINEAR_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "graph/model/factory.h"
#include "graph/model/layer.h"

namespace shardgraph {

struct LinearOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  bool input_major = false;  // weight [in, out], else [out, in]
  double std = 0;
};

class LinearLayer : public Layer {
 public:
  LinearLayer(LayerInfo info, ModelFactory& factory,
              const LinearOptions& options);

  const Parameter* weight() const { return weight_; }
  const Parameter* bias() const { return bias_; }  // null: none
  bool has_adapter() const { return lora_a_ != nullptr; }

 protected:
  ValueId Emit(EmitContext& context, ValueId x) const override;

 private:
  ValueId EmitAdapter(EmitContext& context, ValueId x) const;

  bool input_major_;
  const Parameter* weight_;
  const Parameter* bias_ = nullptr;
  Lora lora_;
  const Parameter* lora_a_ = nullptr;  // null: no adapter
  const Parameter* lora_b_ = nullptr;
};

// Class name of a linear module as Hugging Face has it.
inline const char* LinearClassName(bool input_major) {
  return input_major ? "Conv1D" : "Linear";
}

// Declares that weights, and biases if there are any, lie side by side, unless
// one has an adapter. All layers are output-major; all have a bias or none has.
void StackLinears(absl::Span<const LinearLayer* const> layers,
                  ModelFactory& factory);

// [N, sum of out]: all products as one, when the source has the parameters side
// by side; nullopt otherwise: then run the layers one by one.
std::optional<ValueId> EmitStackedLinears(
    EmitContext& context, ValueId x,
    absl::Span<const LinearLayer* const> layers);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_LAYERS_LINEAR_H_
