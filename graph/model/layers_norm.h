// RmsNormLayer: over rows of activations, or over the heads of q and k.
#ifndef GRAPH_MODEL_LAYERS_NORM_H_
#define GRAPH_MODEL_LAYERS_NORM_H_

#include <cstdint>

#include "graph/model/factory.h"
#include "graph/model/layer.h"

namespace shardgraph {

class RmsNormLayer : public Layer {
 public:
  RmsNormLayer(LayerInfo info, ModelFactory& factory, int64_t width,
               double epsilon);

 protected:
  // x: [..., width], strided.
  ValueId Emit(EmitContext& context, ValueId x) const override;

 private:
  double epsilon_;
  const Parameter* weight_;
};

}  // namespace shardgraph

#endif  // GRAPH_MODEL_LAYERS_NORM_H_
