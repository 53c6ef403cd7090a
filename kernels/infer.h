// What the `infer` and `cost` functions of ops share: checks of counts, dtypes
// and shapes of operands, with messages that name the operand.
//
// Errors are InvalidArgument; InferResults puts the op's name in front. Call
// CheckCount first: the others take operands that exist.
#ifndef KERNELS_INFER_H_
#define KERNELS_INFER_H_

#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/attributes.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Any size, in the shapes below.
inline constexpr int64_t kAnySize = -1;

// One operand per name.
absl::Status CheckCount(absl::Span<const TensorType> operands,
                        const std::vector<absl::string_view>& names);

absl::Status CheckDType(const TensorType& type, absl::string_view name,
                        std::initializer_list<DType> allowed);
absl::Status CheckFloating(const TensorType& type, absl::string_view name);
absl::Status CheckRank(const TensorType& type, absl::string_view name,
                       int at_least, int at_most);
// `shape` may hold kAnySize.
absl::Status CheckShape(const TensorType& type, absl::string_view name,
                        absl::Span<const int64_t> shape);
absl::Status CheckType(const TensorType& type, absl::string_view name,
                       DType dtype, absl::Span<const int64_t> shape);
// Zero-dimensional.
absl::Status CheckScalar(const TensorType& type, absl::string_view name,
                         DType dtype);
absl::Status CheckAttribute(const Attributes& attributes,
                            absl::string_view name);

// The attribute "dtype", which must be a floating one; `otherwise` when absent.
absl::Status ResultDType(const Attributes& attributes, DType otherwise,
                         DType* dtype);

// A cost without FLOPs: every operand and result moved once.
OpCost BytesMoved(absl::Span<const TensorType> operands,
                  absl::Span<const TensorType> results);

// What sums of this dtype are kept in, and saved statistics stored as: F64 for
// F64, else F32.
constexpr DType AccumulationDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace shardgraph

#endif  // KERNELS_INFER_H_
