#include "kernels/infer.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardgraph {
namespace {

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ",",
                                    [](std::string* out, int64_t size) {
                                      if (size == kAnySize) {
                                        *out += "*";
                                      } else {
                                        absl::StrAppend(out, size);
                                      }
                                    }),
                      "]");
}

absl::Status Mismatch(const TensorType& type, absl::string_view name,
                      const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", type.ToString(), ", must be ", wanted));
}

bool HasShape(const TensorType& type, absl::Span<const int64_t> shape) {
  return std::equal(type.shape.begin(), type.shape.end(), shape.begin(),
                    shape.end(), [](int64_t size, int64_t wanted) {
                      return wanted == kAnySize || size == wanted;
                    });
}

}  // namespace

absl::Status CheckCount(absl::Span<const TensorType> operands,
                        const std::vector<absl::string_view>& names) {
  if (operands.size() == names.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("got ", operands.size(), " operands, must be ", names.size(),
                   ": (", absl::StrJoin(names, ", "), ")"));
}

absl::Status CheckDType(const TensorType& type, absl::string_view name,
                        std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), type.dtype) != allowed.end()) {
    return absl::OkStatus();
  }
  return Mismatch(
      type, name,
      absl::StrJoin(allowed, " or ", [](std::string* out, DType dtype) {
        absl::StrAppend(out, DTypeName(dtype));
      }));
}

absl::Status CheckFloating(const TensorType& type, absl::string_view name) {
  if (IsFloating(type.dtype)) return absl::OkStatus();
  return Mismatch(type, name, "of a floating dtype");
}

absl::Status CheckRank(const TensorType& type, absl::string_view name,
                       int at_least, int at_most) {
  if (type.rank() >= at_least && type.rank() <= at_most) {
    return absl::OkStatus();
  }
  return Mismatch(
      type, name,
      at_least == at_most
          ? absl::StrCat("of ", at_least, " dimensions")
          : absl::StrCat("of ", at_least, " to ", at_most, " dimensions"));
}

absl::Status CheckShape(const TensorType& type, absl::string_view name,
                        absl::Span<const int64_t> shape) {
  if (HasShape(type, shape)) return absl::OkStatus();
  return Mismatch(type, name, absl::StrCat("of shape ", ShapeToString(shape)));
}

absl::Status CheckType(const TensorType& type, absl::string_view name,
                       DType dtype, absl::Span<const int64_t> shape) {
  if (type.dtype == dtype && HasShape(type, shape)) return absl::OkStatus();
  return Mismatch(type, name,
                  absl::StrCat(DTypeName(dtype), ShapeToString(shape)));
}

absl::Status CheckScalar(const TensorType& type, absl::string_view name,
                         DType dtype) {
  return CheckType(type, name, dtype, {});
}

absl::Status CheckAttribute(const Attributes& attributes,
                            absl::string_view name) {
  if (attributes.Has(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attribute ", name, " is missing"));
}

absl::Status ResultDType(const Attributes& attributes, DType otherwise,
                         DType* dtype) {
  *dtype = otherwise;
  if (!attributes.Has("dtype")) return absl::OkStatus();
  const std::string name = attributes.String("dtype");
  if (!ParseDType(name, dtype) || !IsFloating(*dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute dtype is \"", name,
                     "\", must be one of F32, BF16, F16, F64"));
  }
  return absl::OkStatus();
}

OpCost BytesMoved(absl::Span<const TensorType> operands,
                  absl::Span<const TensorType> results) {
  OpCost cost;
  for (const TensorType& type : operands)
    cost.bytes += type.num_elements() * SizeOf(type.dtype);
  for (const TensorType& type : results)
    cost.bytes += type.num_elements() * SizeOf(type.dtype);
  return cost;
}

}  // namespace shardgraph
