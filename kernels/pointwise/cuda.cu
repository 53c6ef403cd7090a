#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/pointwise/cuda.h"
#include "kernels/pointwise/cuda_functions.h"

namespace shardgraph::cuda {
namespace {

constexpr int kThreads = 256;

template <Pointwise kFunction, typename In, typename Out>
__global__ __launch_bounds__(kThreads) void PointwiseKernel(PointwiseLaunch a) {
  constexpr int kWidth = kGroup<In, Out>;
  constexpr int kInputs = PointwiseInputs(kFunction);
  constexpr int kResults = PointwiseResults(kFunction);
  const int64_t columns = a.shape.columns;
  const int64_t groups = (columns + kWidth - 1) / kWidth;  // of a row
  const int64_t count = groups * a.shape.rows.count;
  const float factor = kFunction == Pointwise::kScale ? *a.factor : 1.0f;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       g < count; g += step) {
    int64_t row = 0, column = g * kWidth;
    int64_t at[kPointwiseTensors] = {};
    if (a.shape.rows.count > 1) {
      row = g / groups;
      column = (g - row * groups) * kWidth;
      Offsets(a.shape.rows, row, at);
    }
    const int64_t left = columns - column;
    float in[kInputs][kWidth], out[kResults][kWidth];
#pragma unroll
    for (int t = 0; t < kInputs; ++t) {
      LoadGroup(static_cast<const In*>(a.in[t]) + at[t] + column, left,
                a.vector, in[t]);
    }
    Out* results[kResults];
#pragma unroll
    for (int r = 0; r < kResults; ++r)
      results[r] = static_cast<Out*>(a.out[r]) + at[3 + r] + column;
    if constexpr (kFunction == Pointwise::kCastAdd)
      LoadGroup(results[0], left, a.vector, out[0]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (kFunction == Pointwise::kSwigluGradient) {
        const float dy = in[0][i], gate = in[1][i];
        out[0][i] = dy * in[2][i] * SiluSlope(gate);
        out[1][i] = dy * Rounded<Out>(Silu(gate));
      } else if constexpr (kFunction == Pointwise::kCastAdd) {
        out[0][i] += in[0][i];
      } else if constexpr (kFunction == Pointwise::kScale) {
        out[0][i] = in[0][i] * factor;
      } else {
        out[0][i] = PointwiseValue<Out>(kFunction, in[0][i],
                                        kInputs > 1 ? in[kInputs - 1][i] : 0);
      }
    }
#pragma unroll
    for (int r = 0; r < kResults; ++r)
      StoreGroup(results[r], left, a.vector, out[r]);
  }
}

template <Pointwise kFunction, typename In, typename Out>
cudaError_t Enqueue(const PointwiseLaunch& launch, cudaStream_t stream) {
  constexpr int kWidth = kGroup<In, Out>;
  const int64_t groups = (launch.shape.columns + kWidth - 1) / kWidth;
  const int64_t count = groups * launch.shape.rows.count;
  if (count == 0) return cudaSuccess;  // CUDA refuses an empty grid
  return Launch(PointwiseKernel<kFunction, In, Out>, Blocks(count, kThreads),
                kThreads, 0, stream, launch);
}

// All tensors of one type.
template <Pointwise kFunction>
cudaError_t Alike(const PointwiseLaunch& launch, cudaStream_t stream) {
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    return Enqueue<kFunction, T, T>(launch, stream);
  });
}

// F16 is cast to and from F32, and copied.
template <Pointwise kFunction>
cudaError_t Casting(const PointwiseLaunch& launch, cudaStream_t stream) {
  if (launch.type == ElementType::kF16) {
    return launch.to_type == ElementType::kF16
               ? Enqueue<kFunction, __half, __half>(launch, stream)
               : Enqueue<kFunction, __half, float>(launch, stream);
  }
  if (launch.to_type == ElementType::kF16)
    return Enqueue<kFunction, float, __half>(launch, stream);
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    return DispatchElement(launch.to_type,
                           [&]<typename To>(std::type_identity<To>) {
                             return Enqueue<kFunction, T, To>(launch, stream);
                           });
  });
}

}  // namespace

cudaError_t LaunchPointwise(const PointwiseLaunch& launch,
                            cudaStream_t stream) {
  switch (launch.function) {
    case Pointwise::kAdd:
      return Alike<Pointwise::kAdd>(launch, stream);
    case Pointwise::kGeluTanh:
      return Alike<Pointwise::kGeluTanh>(launch, stream);
    case Pointwise::kGeluErf:
      return Alike<Pointwise::kGeluErf>(launch, stream);
    case Pointwise::kSilu:
      return Alike<Pointwise::kSilu>(launch, stream);
    case Pointwise::kRelu:
      return Alike<Pointwise::kRelu>(launch, stream);
    case Pointwise::kGeluTanhGradient:
      return Alike<Pointwise::kGeluTanhGradient>(launch, stream);
    case Pointwise::kGeluErfGradient:
      return Alike<Pointwise::kGeluErfGradient>(launch, stream);
    case Pointwise::kSiluGradient:
      return Alike<Pointwise::kSiluGradient>(launch, stream);
    case Pointwise::kReluGradient:
      return Alike<Pointwise::kReluGradient>(launch, stream);
    case Pointwise::kSwiglu:
      return Alike<Pointwise::kSwiglu>(launch, stream);
    case Pointwise::kSwigluGradient:
      return Alike<Pointwise::kSwigluGradient>(launch, stream);
    case Pointwise::kScale:
      return Alike<Pointwise::kScale>(launch, stream);
    case Pointwise::kCast:
      return Casting<Pointwise::kCast>(launch, stream);
    case Pointwise::kCastAdd:
      return Casting<Pointwise::kCastAdd>(launch, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace shardgraph::cuda
