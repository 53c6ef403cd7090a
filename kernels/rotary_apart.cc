#include "kernels/rotary_apart.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace shardgraph {

absl::StatusOr<Composition> ComposeRotaryApart(
    absl::string_view op, const Attributes& attributes,
    absl::Span<const TensorType> operands,
    absl::Span<const TensorType> results) {
  if (attributes.Int("has_rotary") == 0)
    return absl::UnimplementedError("no rotary positions");
  const bool gradient = op == "attention_gradient";
  const int q = gradient ? 1 : 0, positions = gradient ? 6 : 3;
  Composition composition(operands, results);
  const auto like = [&](const TensorType& type) {
    return composition.AddTensor(TensorType(type.dtype, type.shape));
  };
  const auto turn = [&](int from, bool inverse, int to) {
    Attributes turning = attributes;
    turning.SetInt("inverse", inverse);
    composition.Add("rotary", std::move(turning), {from, positions}, {to});
  };
  std::vector<int> inner_operands, inner_results;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    if (i == positions) continue;
    const bool turned = i == q || i == q + 1;
    inner_operands.push_back(turned ? like(operands[i]) : i);
    if (turned) turn(i, /*inverse=*/false, inner_operands.back());
  }
  for (int r = 0; r < static_cast<int>(results.size()); ++r) {
    const bool turned = gradient && r < 2;
    inner_results.push_back(turned ? like(results[r]) : composition.result(r));
  }
  Attributes inner = attributes;
  inner.SetInt("has_rotary", 0);
  composition.Add(op, std::move(inner), inner_operands, inner_results);
  for (int r = 0; gradient && r < 2; ++r)
    turn(inner_results[r], /*inverse=*/true, composition.result(r));
  return composition;
}

}  // namespace shardgraph
