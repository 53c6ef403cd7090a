// What the KernelDefs of the CUDA backend share: the dtypes they take, folding
// of dimensions, alignment, and launching as a PreparedKernel.
#ifndef KERNELS_CUDA_PREPARE_H_
#define KERNELS_CUDA_PREPARE_H_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/strides.h"
#include "kernels/kernel.h"

namespace shardgraph::cuda {

// KernelDef::supports of kernels for activations of F32 and BF16. F64 is taken
// only where the op prescribes it: for scalars behind the first operand, and
// for results that have no attribute "dtype".
absl::Status SupportsF32AndBf16(const Attributes& attributes,
                                absl::Span<const TensorType> operands,
                                absl::Span<const TensorType> results);

// F32, BF16 or F16.
ElementType ElementOf(const TensorType& type);

inline bool IsAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Whether all strides are multiples of `elements`.
template <int N>
bool StepsBy(const Dimensions<N>& dimensions, int64_t elements) {
  for (int t = 0; t < N; ++t) {
    for (int d = 0; d < dimensions.rank; ++d)
      if (dimensions.strides[t][d] % elements != 0) return false;
  }
  return true;
}

// Folds the first `rank` dimensions of `types`, which are of one shape:
// neighbours that lie without a gap in every tensor become one, sizes of 1 go.
template <size_t N>
Dimensions<N> FoldDimensions(const std::array<const TensorType*, N>& types,
                             int rank) {
  Dimensions<N> folded;
  for (int d = 0; d < rank; ++d) {
    const int64_t size = types[0]->shape[d];
    folded.count *= size;
    if (size == 1) continue;
    const int last = folded.rank - 1;
    bool joins = last >= 0;
    for (size_t t = 0; t < N && joins; ++t)
      joins = folded.strides[t][last] == size * types[t]->strides[d];
    const int to = joins ? last : folded.rank++;
    folded.sizes[to] = joins ? folded.sizes[last] * size : size;
    for (size_t t = 0; t < N; ++t) folded.strides[t][to] = types[t]->strides[d];
  }
  return folded;
}

// Rows that are contiguous in every tensor, as long as may be.
template <size_t N>
ElementRows<N> FoldElements(const std::array<const TensorType*, N>& types) {
  ElementRows<N> elements;
  Dimensions<N>& rows = elements.rows;
  rows = FoldDimensions<N>(types, types[0]->rank());
  const int last = rows.rank - 1;
  bool contiguous = last >= 0;
  for (size_t t = 0; t < N && contiguous; ++t)
    contiguous = rows.strides[t][last] == 1;
  if (!contiguous) return elements;
  elements.columns = rows.sizes[last];
  rows.rank = last;
  rows.count = 1;
  for (int d = 0; d < last; ++d) rows.count *= rows.sizes[d];
  return elements;
}

// Rows of a tensor: all dimensions but the last.
inline Dimensions<1> RowsOf(const TensorType& type) {
  return FoldDimensions<1>({&type}, type.rank() - 1);
}

// A kernel that calls launch(stream), which returns cudaError_t, and names `op`
// in errors. `op` outlives the kernel.
template <typename F>
std::unique_ptr<PreparedKernel> MakeCudaKernel(absl::string_view op, F launch) {
  return MakeKernel([op, launch = std::move(launch)](Lane& lane) {
    return CudaStatus(launch(StreamOf(lane)), op);
  });
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_PREPARE_H_
