#include "kernels/widened.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/op_table.h"

namespace shardgraph {

absl::StatusOr<Composition> ComposeWidened(
    absl::string_view op, const Attributes& attributes,
    absl::Span<const TensorType> operands,
    absl::Span<const TensorType> results) {
  const OpDef* const def = FindOp(op);
  SG_CHECK(def != nullptr);
  Composition composition(operands, results);
  bool widens = false;
  // The number of what holds tensor `number` in F32.
  const auto wide = [&](int number) {
    const TensorType type = composition.type(number);
    if (type.dtype != DType::kF16) return number;
    widens = true;
    return composition.AddTensor(TensorType(DType::kF32, type.shape));
  };
  const auto cast = [&](int from, int to) {
    if (from == to || composition.type(from).num_elements() == 0) return;
    Attributes to_dtype;
    to_dtype.SetString("dtype", DTypeName(composition.type(to).dtype));
    composition.Add("cast", std::move(to_dtype), {from}, {to});
  };
  std::vector<int> inner_operands, inner_results;
  const int num_operands = static_cast<int>(operands.size());
  const int num_results = static_cast<int>(results.size());
  for (int i = 0; i < num_operands; ++i) {
    inner_operands.push_back(wide(i));
    cast(i, inner_operands.back());
  }
  for (int r = 0; r < num_results; ++r) {
    const int tied =
        TiedOperand(*def, attributes, num_operands, num_results, r);
    inner_results.push_back(tied >= 0 && inner_operands[tied] != tied
                                ? inner_operands[tied]
                                : wide(composition.result(r)));
  }
  if (!widens) return absl::UnimplementedError("no tensor is F16");
  Attributes inner = attributes;
  if (inner.String("dtype") == "F16") inner.SetString("dtype", "F32");
  composition.Add(op, std::move(inner), inner_operands, inner_results);
  for (int r = 0; r < num_results; ++r)
    cast(inner_results[r], composition.result(r));
  return composition;
}

}  // namespace shardgraph
