#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/norm/cuda.h"

namespace shardgraph::cuda {
namespace {

constexpr int kMostThreads = 256;
// Sums of weight gradients are kept in shared memory up to so many bytes.
constexpr int64_t kMostSharedBytes = 96 << 10;

// Calls body(c) for the columns at which groups of this thread begin.
template <int kWidth, typename Body>
__device__ __forceinline__ void ForGroups(int64_t columns, Body body) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * kWidth; c < columns;
       c += step) {
    body(c);
  }
}

// A block to a row. What is read twice comes from the L1 cache.
template <typename T, bool kCentered, bool kOfSum>
__global__ __launch_bounds__(kMostThreads) void NormKernel(NormLaunch a) {
  constexpr int kWidth = kGroup<T>;
  const int64_t row = blockIdx.x, columns = a.columns;
  int64_t at[2];
  Offsets(a.rows, row, at);
  const T* const x = static_cast<const T*>(a.x) + at[0];
  const T* const b = static_cast<const T*>(a.b) + at[1];
  T* const total = static_cast<T*>(a.sum) + row * columns;
  T* const y = static_cast<T*>(a.y) + row * columns;
  const T* const weight = static_cast<const T*>(a.weight);
  const T* const bias = static_cast<const T*>(a.bias);
  // A thread reads back what it has stored itself.
  const T* const input = kOfSum ? total : x;
  const float count = columns > 0 ? static_cast<float>(columns) : 1.0f;

  float sum[1] = {};
  ForGroups<kWidth>(columns, [&](int64_t c) {
    float v[kWidth];
    LoadGroup(x + c, columns - c, a.vector, v);
    if constexpr (kOfSum) {
      float u[kWidth];
      LoadGroup(b + c, columns - c, a.vector, u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = Rounded<T>(v[i] + u[i]);
      StoreGroup(total + c, columns - c, a.vector, v);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[0] += kCentered ? v[i] : v[i] * v[i];
  });
  BlockSums(sum);
  float mean = 0.0f;
  if constexpr (kCentered) {
    mean = sum[0] / count;
    sum[0] = 0.0f;
    ForGroups<kWidth>(columns, [&](int64_t c) {
      float v[kWidth];
      LoadGroup(input + c, columns - c, a.vector, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float d = c + i < columns ? v[i] - mean : 0.0f;
        sum[0] += d * d;
      }
    });
    BlockSums(sum);
  }
  const float rstd = 1.0f / sqrtf(sum[0] / count + a.epsilon);
  if (threadIdx.x == 0) {
    if constexpr (kCentered) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  ForGroups<kWidth>(columns, [&](int64_t c) {
    float v[kWidth], w[kWidth], result[kWidth];
    LoadGroup(input + c, columns - c, a.vector, v);
    LoadGroup(weight + c, columns - c, a.vector, w);
    if constexpr (kCentered) {
      float shift[kWidth] = {};
      if (bias != nullptr) LoadGroup(bias + c, columns - c, a.vector, shift);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        result[i] = (v[i] - mean) * rstd * w[i] + shift[i];
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        result[i] = Rounded<T>(v[i] * rstd) * w[i];
    }
    StoreGroup(y + c, columns - c, a.vector, result);
  });
}

// A block to a range of rows. Its threads sum the weight gradients of their own
// columns, row by row: in shared memory, laid out so that neighbours touch
// neighbouring banks, or where that is too small in `partial` itself.
template <typename T, bool kCentered>
__global__ __launch_bounds__(kMostThreads,
                             4) void NormGradientKernel(NormGradientLaunch a,
                                                        int64_t rows_per_block,
                                                        bool shared) {
  constexpr int kWidth = kGroup<T>;
  const int64_t columns = a.columns;
  const int64_t groups = (columns + kWidth - 1) / kWidth;
  const int sums = a.wants_dweight + a.wants_dbias;
  float* const partial =
      a.partial + static_cast<int64_t>(blockIdx.x) * sums * columns;
  float* const dweight = shared ? DynamicShared<float>() : partial;
  float* const dbias =
      dweight + (a.wants_dweight ? (shared ? groups * kWidth : columns) : 0);
  const auto place = [=](int64_t c, int i) {
    return shared ? i * groups + c / kWidth : c + i;
  };
  const T* const weight = static_cast<const T*>(a.weight);
  const float count = columns > 0 ? static_cast<float>(columns) : 1.0f;
  if (sums > 0) {
    ForGroups<kWidth>(columns, [&](int64_t c) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (c + i >= columns) continue;
        if (a.wants_dweight) dweight[place(c, i)] = 0.0f;
        if (a.wants_dbias) dbias[place(c, i)] = 0.0f;
      }
    });
  }
  const int64_t begin = blockIdx.x * rows_per_block;
  const int64_t end = begin + rows_per_block < a.rows.count
                          ? begin + rows_per_block
                          : a.rows.count;
  for (int64_t row = begin; row < end; ++row) {
    int64_t at[2];
    Offsets(a.rows, row, at);
    const T* const dy = static_cast<const T*>(a.dy) + at[0];
    const T* const x = static_cast<const T*>(a.x) + at[1];
    const float mean = kCentered ? a.mean[row] : 0.0f;
    const float rstd = a.rstd[row];
    float sum[2] = {};  // of g and of g h
    ForGroups<kWidth>(columns, [&](int64_t c) {
      float d[kWidth], v[kWidth], w[kWidth];
      LoadGroup(dy + c, columns - c, a.vector, d);
      LoadGroup(x + c, columns - c, a.vector, v);
      LoadGroup(weight + c, columns - c, a.vector, w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float h = (v[i] - mean) * rstd;
        sum[0] += d[i] * w[i];
        sum[1] += d[i] * w[i] * h;
        if (c + i >= columns) continue;
        if (a.wants_dweight) dweight[place(c, i)] += d[i] * h;
        if (a.wants_dbias) dbias[place(c, i)] += d[i];
      }
    });
    if (a.dx == nullptr) continue;
    BlockSums(sum);
    const float mean_g = kCentered ? sum[0] / count : 0.0f;
    const float mean_gh = sum[1] / count;
    T* const dx = static_cast<T*>(a.dx) + row * columns;
    ForGroups<kWidth>(columns, [&](int64_t c) {
      float d[kWidth], v[kWidth], w[kWidth], result[kWidth];
      LoadGroup(dy + c, columns - c, a.vector, d);
      LoadGroup(x + c, columns - c, a.vector, v);
      LoadGroup(weight + c, columns - c, a.vector, w);
      float old[kWidth] = {};
      if (a.accumulate) LoadGroup(dx + c, columns - c, a.vector, old);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float h = (v[i] - mean) * rstd;
        result[i] = rstd * (d[i] * w[i] - mean_g - h * mean_gh) + old[i];
      }
      StoreGroup(dx + c, columns - c, a.vector, result);
    });
  }
  if (!shared) return;
  ForGroups<kWidth>(columns, [&](int64_t c) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (c + i >= columns) continue;
      float* out = partial + c + i;
      if (a.wants_dweight) {
        *out = dweight[place(c, i)];
        out += columns;
      }
      if (a.wants_dbias) *out = dbias[place(c, i)];
    }
  });
}

template <typename T>
auto* ForwardKernel(bool centered, bool of_sum) {
  return centered ? (of_sum ? &NormKernel<T, true, true>
                            : &NormKernel<T, true, false>)
                  : (of_sum ? &NormKernel<T, false, true>
                            : &NormKernel<T, false, false>);
}

}  // namespace

cudaError_t LaunchNorm(const NormLaunch& launch, cudaStream_t stream) {
  if (launch.rows.count == 0) return cudaSuccess;
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    return Launch(ForwardKernel<T>(launch.centered, launch.b != nullptr),
                  static_cast<unsigned>(launch.rows.count),
                  ThreadsForRow(launch.columns, kGroup<T>, kMostThreads), 0,
                  stream, launch);
  });
}

cudaError_t LaunchNormGradient(const NormGradientLaunch& launch,
                               cudaStream_t stream) {
  const int64_t rows = launch.rows.count;
  if (rows == 0) return cudaSuccess;
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    auto* const kernel = launch.centered ? &NormGradientKernel<T, true>
                                         : &NormGradientKernel<T, false>;
    const int64_t groups = (launch.columns + kGroup<T> - 1) / kGroup<T>;
    int64_t bytes = (launch.wants_dweight + launch.wants_dbias) * groups *
                    kGroup<T> * static_cast<int64_t>(sizeof(float));
    const bool shared = bytes > 0 && bytes <= kMostSharedBytes;
    if (!shared) bytes = 0;
    return LaunchWithShared(
        kernel, static_cast<unsigned>(NormGradientBlocks(rows)),
        ThreadsForRow(launch.columns, kGroup<T>, kMostThreads), bytes,
        kMostSharedBytes, stream, launch, NormGradientRows(rows), shared);
  });
}

}  // namespace shardgraph::cuda
