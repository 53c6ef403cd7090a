#include "kernels/cuda/prepare.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shardgraph::cuda {

absl::Status SupportsF32AndBf16(const Attributes& attributes,
                                absl::Span<const TensorType> operands,
                                absl::Span<const TensorType> results) {
  const auto refused = [](absl::string_view dtype) {
    return absl::UnimplementedError(
        absl::StrCat(dtype, "; F32 and BF16 are supported"));
  };
  for (const auto& types : {operands, results}) {
    for (const TensorType& type : types) {
      if (type.dtype == DType::kF16) return refused("F16");
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].dtype == DType::kF64 && (i == 0 || operands[i].rank() > 0))
      return refused("F64");
  }
  if (attributes.String("dtype") == "F64") return refused("F64");
  return absl::OkStatus();
}

ElementType ElementOf(const TensorType& type) {
  switch (type.dtype) {
    case DType::kF32:
      return ElementType::kF32;
    case DType::kBF16:
      return ElementType::kBF16;
    default:
      SG_CHECK(type.dtype == DType::kF16) << type.ToString();
      return ElementType::kF16;
  }
}

}  // namespace shardgraph::cuda
