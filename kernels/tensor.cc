#include "kernels/tensor.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardgraph {
namespace {

struct DTypeInfo {
  absl::string_view name;
  int64_t size;
  bool floating;
};

constexpr DTypeInfo kDTypes[] = {
    {"F32", 4, true}, {"BF16", 2, true}, {"F16", 2, true},
    {"F64", 8, true}, {"I32", 4, false}, {"I64", 8, false},
    {"U8", 1, false}, {"U16", 2, false}, {"U32", 4, false},
};

const DTypeInfo& Info(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

}  // namespace

int64_t SizeOf(DType dtype) { return Info(dtype).size; }
absl::string_view DTypeName(DType dtype) { return Info(dtype).name; }
bool IsFloating(DType dtype) { return Info(dtype).floating; }

bool ParseDType(absl::string_view name, DType* dtype) {
  for (int i = 0; i < static_cast<int>(std::size(kDTypes)); ++i) {
    if (kDTypes[i].name == name) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

Float16::Float16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude <
             0x38800000u) {  // subnormal: let the float adder round at 2^-24
    const float scaled =
        std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3f000000u);
    bits = static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
  } else {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) |
                              (mantissa << 13));
}

int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

Dims ContiguousStrides(absl::Span<const int64_t> shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

TensorType::TensorType(DType dtype, Dims shape)
    : dtype(dtype), shape(shape), strides(ContiguousStrides(shape)) {}

TensorType::TensorType(DType dtype, Dims shape, Dims strides)
    : dtype(dtype), shape(shape), strides(strides) {}

bool operator==(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

bool TensorType::contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

int64_t TensorType::span_bytes() const {
  int64_t last = 0;
  for (int i = 0; i < rank(); ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * strides[i];
  }
  return (last + 1) * SizeOf(dtype);
}

std::string TensorType::ToString() const {
  std::string text =
      absl::StrCat(DTypeName(dtype), "[", absl::StrJoin(shape, ","), "]");
  if (!contiguous())
    absl::StrAppend(&text, "{", absl::StrJoin(strides, ","), "}");
  return text;
}

}  // namespace shardgraph
