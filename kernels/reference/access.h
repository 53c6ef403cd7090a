// Element access by double for reference kernels: one code path for every
// dtype, rounding once on store.
//
// Slow and plain on purpose. Offsets count elements.
#ifndef KERNELS_REFERENCE_ACCESS_H_
#define KERNELS_REFERENCE_ACCESS_H_

#include <cstdint>

#include "kernels/check.h"
#include "kernels/round_to_odd.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Element `offset` of memory that holds `dtype`; integers convert exactly up to
// 2^53.
inline double LoadElement(DType dtype, const void* data, int64_t offset) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[offset];
    case DType::kBF16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[offset]);
    case DType::kF16:
      return static_cast<float>(static_cast<const Float16*>(data)[offset]);
    case DType::kF64:
      return static_cast<const double*>(data)[offset];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[offset];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[offset]);
    case DType::kU8:
      return static_cast<const uint8_t*>(data)[offset];
    case DType::kU16:
      return static_cast<const uint16_t*>(data)[offset];
    case DType::kU32:
      return static_cast<const uint32_t*>(data)[offset];
  }
  SG_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return 0;
}

// Rounds `value` to nearest even in `dtype` (towards zero for integers) and
// stores it.
inline void StoreElement(DType dtype, void* data, int64_t offset,
                         double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[offset] = static_cast<float>(value);
      return;
    case DType::kBF16:
      static_cast<BFloat16*>(data)[offset] = BFloat16(RoundToOdd(value));
      return;
    case DType::kF16:
      static_cast<Float16*>(data)[offset] = Float16(RoundToOdd(value));
      return;
    case DType::kF64:
      static_cast<double*>(data)[offset] = value;
      return;
    case DType::kI32:
      static_cast<int32_t*>(data)[offset] = static_cast<int32_t>(value);
      return;
    case DType::kI64:
      static_cast<int64_t*>(data)[offset] = static_cast<int64_t>(value);
      return;
    case DType::kU8:
      static_cast<uint8_t*>(data)[offset] = static_cast<uint8_t>(value);
      return;
    case DType::kU16:
      static_cast<uint16_t*>(data)[offset] = static_cast<uint16_t>(value);
      return;
    case DType::kU32:
      static_cast<uint32_t*>(data)[offset] = static_cast<uint32_t>(value);
      return;
  }
  SG_CHECK(false) << "dtype " << static_cast<int>(dtype);
}

// `value` as it reads back after a store in `dtype`: a declared rounding point.
inline double RoundTo(DType dtype, double value) {
  double bits = 0;
  StoreElement(dtype, &bits, 0, value);
  return LoadElement(dtype, &bits, 0);
}

// Offset of the element with row-major index `index` (0 <= index <
// num_elements).
inline int64_t OffsetOf(const TensorType& type, int64_t index) {
  int64_t offset = 0;
  for (int i = type.rank() - 1; i >= 0; --i) {
    offset += index % type.shape[i] * type.strides[i];
    index /= type.shape[i];
  }
  return offset;
}

// A tensor read and written by index, strides honoured. Keeps the data pointer
// and a copy of the type.
class Elements {
 public:
  explicit Elements(const Tensor& tensor)
      : data_(tensor.data), type_(tensor.type) {}

  const TensorType& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  int64_t dim(int i) const { return type_.dim(i); }
  int64_t size() const { return type_.num_elements(); }

  // One index per dimension; none for a scalar.
  template <typename... Index>
  double Get(Index... index) const {
    return LoadElement(type_.dtype, data_, Offset(index...));
  }
  template <typename... Index>
  void Set(double value, Index... index) const {
    StoreElement(type_.dtype, data_, Offset(index...), value);
  }

  // By row-major index.
  double GetFlat(int64_t index) const {
    return LoadElement(type_.dtype, data_, OffsetOf(type_, index));
  }
  void SetFlat(double value, int64_t index) const {
    StoreElement(type_.dtype, data_, OffsetOf(type_, index), value);
  }

 private:
  template <typename... Index>
  int64_t Offset(Index... index) const {
    int64_t offset = 0;
    int i = 0;
    ((offset += static_cast<int64_t>(index) * type_.strides[i++]), ...);
    return offset;
  }

  void* data_;
  TensorType type_;
};

}  // namespace shardgraph

#endif  // KERNELS_REFERENCE_ACCESS_H_
