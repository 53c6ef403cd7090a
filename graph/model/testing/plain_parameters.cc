#include "graph/model/testing/plain_parameters.h"

#include <string>

namespace shardgraph {
namespace {

ValueId AddParameterBuffer(GraphBuilder& builder, const std::string& name,
                           const TensorType& type) {
  const BufferId buffer =
      builder.AddBuffer({.name = name,
                         .bytes = type.span_bytes(),
                         .lifetime = Lifetime::kRun,
                         .kind = MemoryKind::kMasterParameter});
  return builder.External(buffer, type);
}

}  // namespace

PlainParameters::PlainParameters(GraphBuilder& builder, const Model& model,
                                 DType dtype, bool stacked) {
  if (stacked) {
    for (const std::vector<const Parameter*>& stack : model.stacks()) {
      Dims shape = stack[0]->shape;
      shape[0] = 0;
      for (const Parameter* parameter : stack) shape[0] += parameter->shape[0];
      const ValueId whole =
          AddParameterBuffer(builder, stack[0]->name, TensorType(dtype, shape));
      stacks_.emplace(stack, whole);
      int64_t row = 0;
      for (const Parameter* parameter : stack) {
        const int64_t rows = parameter->shape[0];
        values_.emplace(parameter, builder.Slice(whole, 0, row, row + rows));
        row += rows;
      }
    }
  }
  for (const Parameter* parameter : model.parameters()) {
    if (values_.count(parameter) != 0) continue;
    values_.emplace(parameter,
                    AddParameterBuffer(builder, parameter->name,
                                       TensorType(dtype, parameter->shape)));
  }
}

ValueId PlainParameters::Get(const Parameter& parameter) {
  return values_.at(&parameter);
}

std::optional<ValueId> PlainParameters::GetStacked(
    absl::Span<const Parameter* const> parameters) {
  const auto it = stacks_.find({parameters.begin(), parameters.end()});
  if (it == stacks_.end()) return std::nullopt;
  return it->second;
}

}  // namespace shardgraph
