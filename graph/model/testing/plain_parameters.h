// PlainParameters: a ParameterSource for tests. Every parameter lies whole in a
// run-lifetime buffer of the kind kMasterParameter, in the compute dtype.
#ifndef GRAPH_MODEL_TESTING_PLAIN_PARAMETERS_H_
#define GRAPH_MODEL_TESTING_PLAIN_PARAMETERS_H_

#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "graph/model/module.h"

namespace shardgraph {

class PlainParameters : public ParameterSource {
 public:
  // Adds the buffers: one for each parameter under its name; or, `stacked`, one
  // for each of model.stacks() under its first parameter's name. The model
  // outlives the source.
  PlainParameters(GraphBuilder& builder, const Model& model, DType dtype,
                  bool stacked);

  // The same value each time.
  ValueId Get(const Parameter& parameter) override;
  std::optional<ValueId> GetStacked(
      absl::Span<const Parameter* const> parameters) override;

 private:
  std::map<const Parameter*, ValueId> values_;
  std::map<std::vector<const Parameter*>, ValueId> stacks_;
};

}  // namespace shardgraph

#endif  // GRAPH_MODEL_TESTING_PLAIN_PARAMETERS_H_
