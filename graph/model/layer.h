// Layer: a module that can emit itself, and what it needs to be made.
//
// Each kind of module lives in one layers_<kind>.cc: the checks of its spec,
// its parameters, its children and the nodes it emits. ModelFactory
// (factory.h) walks the spec and calls the Make functions declared there.
#ifndef GRAPH_MODEL_LAYER_H_
#define GRAPH_MODEL_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "graph/model/module.h"

namespace shardgraph {

// One emission: where nodes go and what all layers share.
struct EmitContext {
  GraphBuilder& builder;
  ParameterSource& source;
  const ForwardOptions& options;
  ValueId positions = kNone;  // I32[B*T]; only when a layer wants them
  ForwardResult result;       // filled by the head

  bool training() const { return options.mode == ForwardMode::kTrain; }
  bool generating() const { return options.mode == ForwardMode::kGenerate; }
  int64_t rows() const { return options.batch * options.length; }
  // A batch tensor, under the name that the options give it.
  ValueId Input(absl::string_view name, DType dtype, int64_t size);
  ValueId SequenceIds() {
    return Input("sequence_ids", DType::kI64, options.batch);
  }
  // Of each token, [B, T].
  ValueId Documents() {
    return builder.Reshape(Input("documents", DType::kI32, rows()),
                           {options.batch, options.length});
  }
  // Scalars of StepState.
  ValueId RunStep();
  ValueId Position();
};

// Who a module is, before it has children.
struct LayerInfo {
  std::string name;  // full; the parent's when transparent
  std::string class_name;
  std::string site;  // unique in the model: the name, or the parent's site and
                     // an index; keys dropout
  bool transparent = false;
  bool block = false;
  bool list = false;
  bool feed_forward = false;
  bool attention = false;
};

class Layer : public Module {
 public:
  explicit Layer(LayerInfo info);

  // Emits the layer within its scope, between Enter and Exit of the source
  // (transparent: neither). `x` is I32[B*T] tokens for an embedding,
  // activations [B*T, C] for the others.
  ValueId Run(EmitContext& context, ValueId x) const;

  const std::string& site() const { return site_; }
  const Layer& child(int i) const {
    return static_cast<const Layer&>(*children_[i]);
  }
  int num_children() const { return static_cast<int>(children_.size()); }

 protected:
  virtual ValueId Emit(EmitContext& context, ValueId x) const = 0;
  ValueId EmitChildren(EmitContext& context, ValueId x) const;

 private:
  std::string site_;
};

// Drops elements of activations [B*T, C] in training; `x` itself otherwise or
// at rate 0. `site` keys the numbers: the same for every rank and run.
ValueId EmitDropout(EmitContext& context, ValueId x, double rate,
                    absl::string_view site);
// The int attribute that keys dropout at `site`.
int64_t DropoutKey(absl::string_view site);
// `function` as CheckActivation accepts it.
ValueId EmitActivation(EmitContext& context, ValueId x,
                       absl::string_view function);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_LAYER_H_
