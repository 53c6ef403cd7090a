// Dtypes, shapes and views of memory: the vocabulary that ops, kernels and the
// graph share.
//
// A TensorType is static: dtype, shape and strides are known when a plan is
// made. Strides count elements; the last dimension always has stride 1 (a
// zero-dimensional tensor is a scalar). Nothing here owns memory.
#ifndef KERNELS_TENSOR_H_
#define KERNELS_TENSOR_H_

#include <bit>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shardgraph {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32
};

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "F32", "BF16", "I64", ...: the names used by safetensors.
absl::string_view DTypeName(DType dtype);
// False when `name` is none of the names above.
bool ParseDType(absl::string_view name, DType* dtype);
bool IsFloating(DType dtype);

// bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest,
// ties to even; NaN stays a (quiet) NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }  // NOLINT: widening
};

// IEEE binary16, round to nearest even, subnormals kept.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float f);
  operator float() const;  // NOLINT: widening
};

using Dims = absl::InlinedVector<int64_t, 4>;

int64_t NumElements(absl::Span<const int64_t> shape);
// Row-major strides of `shape`, in elements.
Dims ContiguousStrides(absl::Span<const int64_t> shape);

struct TensorType {
  DType dtype = DType::kF32;
  Dims shape;
  Dims strides;  // same length as shape, in elements

  TensorType() = default;
  // Contiguous.
  TensorType(DType dtype, Dims shape);
  TensorType(DType dtype, Dims shape, Dims strides);

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t dim(int i) const { return shape[i < 0 ? i + shape.size() : i]; }
  int64_t num_elements() const { return NumElements(shape); }
  // Row-major without gaps; dimensions of size 1 may have any stride.
  bool contiguous() const;
  // Bytes from the first element to one past the last one: the footprint in
  // memory, gaps included. 0 when empty.
  int64_t span_bytes() const;
  // "BF16[2,128,768]", with strides appended when not contiguous:
  // "BF16[2,128,256]{98304,768,1}".
  std::string ToString() const;

  friend bool operator==(const TensorType& a, const TensorType& b);
};

// A typed view of memory that somebody else owns. `data` points at the first
// element.
struct Tensor {
  void* data = nullptr;
  TensorType type;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace shardgraph

#endif  // KERNELS_TENSOR_H_
