// Loops of CPU kernels: dispatch over dtypes, elementwise loops over strided
// tensors.
#ifndef KERNELS_CPU_LOOPS_H_
#define KERNELS_CPU_LOOPS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attributes.h"
#include "kernels/check.h"
#include "kernels/cpu/element_type.h"
#include "kernels/lane.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Calls f(std::type_identity<T>()) with the C++ type of F32, BF16 or F16: the
// dtypes of activations on a CPU, all computed in float.
template <typename F>
auto DispatchActivation(DType dtype, F f) {
  switch (dtype) {
    case DType::kBF16:
      return f(std::type_identity<BFloat16>());
    case DType::kF16:
      return f(std::type_identity<Float16>());
    default:
      SG_CHECK(dtype == DType::kF32) << std::string(DTypeName(dtype));
      return f(std::type_identity<float>());
  }
}

// The same for interfaces of plain structs.
inline ElementType ElementTypeOf(DType dtype) {
  return DispatchActivation(dtype, []<typename T>(std::type_identity<T>) {
    return std::is_same_v<T, BFloat16>  ? ElementType::kBF16
           : std::is_same_v<T, Float16> ? ElementType::kF16
                                        : ElementType::kF32;
  });
}

// KernelDef::supports of kernels that compute in float: no F64 anywhere.
inline absl::Status SupportsNoF64(const Attributes&,
                                  absl::Span<const TensorType> operands,
                                  absl::Span<const TensorType> results) {
  for (const auto& types : {operands, results}) {
    for (const TensorType& type : types) {
      if (type.dtype == DType::kF64)
        return absl::UnimplementedError("F64 is not computed here");
    }
  }
  return absl::OkStatus();
}

// Elements that one task of a pointwise loop handles.
inline constexpr int64_t kPointwiseGrain = 16384;

// The elements of N tensors of one shape, in row-major order, as runs that are
// contiguous in all of them. Made once in `prepare`; copyable.
template <size_t N>
class ElementwiseLoop {
 public:
  using Offsets = std::array<int64_t, N>;  // in elements, one per tensor

  explicit ElementwiseLoop(const std::array<const TensorType*, N>& types)
      : size_(types[0]->num_elements()) {
    const TensorType& first = *types[0];
    // Folds each dimension into the one behind it where all strides allow.
    for (int i = first.rank() - 1; i >= 0; --i) {
      const bool last = i == first.rank() - 1;  // always a run, even of one
      if (first.shape[i] == 1 && !last) continue;
      Dimension dimension{first.shape[i], {}};
      for (size_t k = 0; k < N; ++k) {
        SG_CHECK(types[k]->shape == first.shape);
        dimension.strides[k] = types[k]->strides[i];
      }
      if (last) {
        inner_ = dimension.size;
        for (size_t k = 0; k < N; ++k)
          SG_CHECK(inner_ <= 1 || dimension.strides[k] == 1);
        rank_ = 1;
        continue;
      }
      Dimension* behind = rank_ > 1 ? &outer_[rank_ - 2] : nullptr;
      bool folds = true;
      for (size_t k = 0; k < N; ++k) {
        const int64_t span =
            behind == nullptr ? inner_ : behind->size * behind->strides[k];
        folds = folds && dimension.strides[k] == span;
      }
      if (folds) {
        (behind == nullptr ? inner_ : behind->size) *= dimension.size;
      } else {
        SG_CHECK_LT(rank_ - 1, kMaxRank);
        outer_[rank_ - 1] = dimension;
        ++rank_;
      }
    }
  }

  // Calls body(offsets, count) for runs that cover all elements, in parallel.
  template <typename Body>
  void Run(ThreadPool& pool, Body body) const {
    pool.ParallelFor(size_, kPointwiseGrain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t column = begin % inner_;
        const int64_t count = std::min(end - begin, inner_ - column);
        Offsets offsets;
        offsets.fill(column);
        int64_t row = begin / inner_;
        for (int i = 0; i + 1 < rank_; ++i) {
          const int64_t index = row % outer_[i].size;
          row /= outer_[i].size;
          for (size_t k = 0; k < N; ++k)
            offsets[k] += index * outer_[i].strides[k];
        }
        body(offsets, count);
        begin += count;
      }
    });
  }

 private:
  static constexpr int kMaxRank = 8;
  struct Dimension {
    int64_t size = 1;
    Offsets strides;
  };

  int64_t size_;
  int64_t inner_ = 1;
  int rank_ = 0;  // dimensions left, the inner one included
  std::array<Dimension, kMaxRank> outer_;  // from the inside out
};

// A tensor as rows: all dimensions but the last, which is contiguous.
class RowLayout {
 public:
  explicit RowLayout(const TensorType& type)
      : columns_(type.dim(-1)),
        shape_(type.shape.begin(), type.shape.end() - 1),
        strides_(type.strides.begin(), type.strides.end() - 1) {}

  int64_t rows() const { return NumElements(shape_); }
  int64_t columns() const { return columns_; }
  // Of the first element of a row, in elements.
  int64_t Offset(int64_t row) const {
    int64_t offset = 0;
    for (int i = static_cast<int>(shape_.size()) - 1; i >= 0; --i) {
      offset += row % shape_[i] * strides_[i];
      row /= shape_[i];
    }
    return offset;
  }

 private:
  int64_t columns_;
  Dims shape_;
  Dims strides_;
};

// Rows that one task handles.
inline int64_t RowGrain(int64_t columns) {
  return std::max<int64_t>(1, kPointwiseGrain / std::max<int64_t>(1, columns));
}

}  // namespace shardgraph

#endif  // KERNELS_CPU_LOOPS_H_
