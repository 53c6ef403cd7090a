// Launching of pointwise kernels on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_POINTWISE_CUDA_H_
#define KERNELS_POINTWISE_CUDA_H_

#include <cuda_runtime.h>

#include "kernels/cpu/element_type.h"
#include "kernels/cuda/strides.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph::cuda {

// Inputs first, then results; unused places are null with strides of 0.
inline constexpr int kPointwiseTensors = 5;

struct PointwiseLaunch {
  Pointwise function = Pointwise::kAdd;
  ElementType type = ElementType::kF32;     // of inputs
  ElementType to_type = ElementType::kF32;  // of results
  ElementRows<kPointwiseTensors> shape;
  const void* in[3] = {};
  void* out[2] = {};
  const float* factor = nullptr;  // of kScale, in device memory
  bool vector = false;            // all data and strides allow 16-byte accesses
};

// Number of inputs and results of a function.
constexpr int PointwiseInputs(Pointwise function) {
  switch (function) {
    case Pointwise::kAdd:
    case Pointwise::kGeluTanhGradient:
    case Pointwise::kGeluErfGradient:
    case Pointwise::kSiluGradient:
    case Pointwise::kReluGradient:
    case Pointwise::kSwiglu:
      return 2;
    case Pointwise::kSwigluGradient:
      return 3;
    default:
      return 1;
  }
}
constexpr int PointwiseResults(Pointwise function) {
  return function == Pointwise::kSwigluGradient ? 2 : 1;
}

cudaError_t LaunchPointwise(const PointwiseLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_POINTWISE_CUDA_H_
