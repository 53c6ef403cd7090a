// OpDef: everything backend-neutral about an op.
//
// Conventions all ops follow:
//
// - Operands and results are tensors; constants are Attributes. Scalars that
//   change from step to step are operands: zero-dimensional views of StepState
//   (kernels/step_state.h), never attributes.
//
// - An optional operand that is absent shortens the operand list; an attribute
//   says which are there (documented at the op).
//
// - Gradients: an op that produces gradients lists in `accumulates` the results
//   that it can add to an existing value. The attribute "accumulate" is a bit
//   mask of the results that do: for each such result, in result order, one
//   more operand is appended at the end, tied to it; the result is operand +
//   contribution, in place. Without the bit the result is overwritten (it may
//   hold anything before, NaN included).
//
// - A result that nobody wants is left out where the op lists it in
//   `optional_results`: the attribute "omit" is a bit mask of those. Each keeps
//   its place among the results, but is an empty tensor, of shape [0], and
//   nothing is computed for it.
//
// - "dtype" is the attribute (a DTypeName) of the results whose dtype is not
//   that of the operands, where an op says so.
//
// - Reductions and products accumulate in FP32 (FP64 where an operand is FP64);
//   each result is rounded once, when it is stored, unless the op's header
//   lists further rounding points.
#ifndef KERNELS_OP_H_
#define KERNELS_OP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/attributes.h"
#include "kernels/tensor.h"

namespace shardgraph {

// What an op instance costs, from its definition alone; time is the target's
// business.
struct OpCost {
  double matmul_flops =
      0;  // 2 m n k of GEMMs; causal attention counts half of the square
  double pointwise_flops = 0;  // everything else, roughly
  int64_t bytes = 0;  // read plus written, each operand and result once
};

// Which queue of a device an op runs on. A target may fold several into one.
enum class LaneKind : uint8_t { kCompute, kGather, kReduce, kCopy };

// Where the executor finds a collective's communicator: attribute "group" names
// the group of the mesh.
inline constexpr absl::string_view kGroupAttribute = "group";

struct OpDef {
  absl::string_view name;  // "matmul"; unique

  // Checks operands and appends the type of each result (contiguous). An error
  // says which operand or attribute is wrong.
  absl::Status (*infer)(const Attributes& attributes,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) = nullptr;

  // Null means: no FLOPs, all operands and results moved once.
  OpCost (*cost)(const Attributes& attributes,
                 absl::Span<const TensorType> operands,
                 absl::Span<const TensorType> results) = nullptr;

  // Results that can accumulate (bit r = result r); see the conventions above.
  uint32_t accumulates = 0;

  // Results that can be left out (bit r); see the conventions above.
  uint32_t optional_results = 0;

  // Results that nobody need read: statistics for the gradient, and what comes
  // off on the way to the others. Any other result that is not read is a
  // mistake in the plan.
  uint32_t incidental_results = 0;

  // Result r always updates operand in_place[r] (same bytes, next version); -1
  // for a fresh result. Shorter than the results means -1 for the rest.
  // Operands tied by "accumulate" are not listed here.
  absl::InlinedVector<int, 4> in_place;

  // Operands and results that may have gaps (strides other than contiguous).
  uint32_t strided_operands = 0;
  uint32_t strided_results = 0;

  LaneKind lane = LaneKind::kCompute;
};

// Whether result `r` is left out.
bool Omits(const Attributes& attributes, int r);

// Operand that result `r` shares its bytes with, or -1. Handles both `in_place`
// and the "accumulate" convention.
int TiedOperand(const OpDef& op, const Attributes& attributes, int num_operands,
                int num_results, int r);

// Types of all results, those left out included; checks operand contiguity
// against `strided_operands` first. Errors are InvalidArgument and start with
// the op's name.
absl::Status InferResults(const OpDef& op, const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          std::vector<TensorType>* results);

// No FLOPs, every operand and result moved once.
OpCost CostOfMemory(absl::Span<const TensorType> operands,
                    absl::Span<const TensorType> results);

OpCost CostOf(const OpDef& op, const Attributes& attributes,
              absl::Span<const TensorType> operands,
              absl::Span<const TensorType> results);

}  // namespace shardgraph

#endif  // KERNELS_OP_H_
