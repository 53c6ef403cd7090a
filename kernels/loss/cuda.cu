#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/loss/cuda.h"

namespace shardgraph::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarpSize;

// A running softmax: the maximum so far and the sum of exp(x - maximum).
struct Softmax {  // no initialisers: it also stands in shared memory
  float maximum, sum;
};

// NaN goes to the sum.
__device__ __forceinline__ void Add(Softmax& s, float x) {
  if (x == -INFINITY) return;
  if (x > s.maximum) {
    s.sum *= expf(s.maximum - x);  // exp(-infinity) = 0 the first time
    s.maximum = x;
  }
  s.sum += expf(x - s.maximum);
}

__device__ __forceinline__ Softmax Merge(const Softmax& a, const Softmax& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum};  // 0 or NaN
  return {maximum, a.sum * expf(a.maximum - maximum) +
                       b.sum * expf(b.maximum - maximum)};
}

__device__ __forceinline__ Softmax WarpMerge(Softmax s) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    Softmax other;
    other.maximum = __shfl_xor_sync(kFullWarp, s.maximum, offset);
    other.sum = __shfl_xor_sync(kFullWarp, s.sum, offset);
    s = Merge(s, other);
  }
  return s;
}

// A block to a row.
template <typename T>
__global__ __launch_bounds__(kMostThreads) void CrossEntropyKernel(
    CrossEntropyLaunch a) {
  constexpr int kWidth = kGroup<T>;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  const int64_t row = blockIdx.x;
  const int64_t vocabulary = a.vocabulary;
  T* const logits = static_cast<T*>(a.logits) + row * a.row_stride;
  const int64_t target = a.targets[row];
  const int64_t first = threadIdx.x * kWidth;
  const bool gradient = a.loss_scale != nullptr;

  if (target < 0 || target >= vocabulary) {  // the same for the whole block
    const float zeros[kWidth] = {};
    for (int64_t c = first; c < vocabulary && gradient; c += step)
      StoreGroup(logits + c, vocabulary - c, true, zeros);
    if (threadIdx.x == 0) a.losses[row] = 0.0f;
    return;
  }

  Softmax mine = {-INFINITY, 0.0f};
  for (int64_t c = first; c < vocabulary; c += step) {
    float z[kWidth];
    LoadGroup(logits + c, vocabulary - c, true, z);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (c + i < vocabulary) Add(mine, z[i]);
    }
  }
  __shared__ Softmax partial[kMostWarps];
  __shared__ float target_logit;
  mine = WarpMerge(mine);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) partial[threadIdx.x / kWarpSize] = mine;
  // Read before any thread overwrites the logits with gradients.
  if (threadIdx.x == 0) target_logit = ToFloat(logits[target]);
  __syncthreads();
  Softmax all = {-INFINITY, 0.0f};
  if (lane < warps) all = partial[lane];
  all = WarpMerge(all);
  const float log_sum = logf(all.sum);
  const float log_probability = target_logit - all.maximum - log_sum;
  const float share = a.label_smoothing / static_cast<float>(vocabulary);
  const float log_sum_exp = all.maximum + log_sum;
  float below[1] = {};  // the sum of logits below the maximum
  if (a.label_smoothing > 0) {
    for (int64_t c = first; c < vocabulary; c += step) {
      float z[kWidth];
      LoadGroup(logits + c, vocabulary - c, true, z);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        below[0] += c + i < vocabulary ? z[i] - all.maximum : 0.0f;
    }
    BlockSums(below);
  }
  if (threadIdx.x == 0) {
    a.losses[row] = (1 - a.label_smoothing) * -log_probability +
                    a.label_smoothing * log_sum - share * below[0] +
                    a.z_loss * log_sum_exp * log_sum_exp;
  }
  if (!gradient) return;

  const float scale = static_cast<float>(*a.loss_scale / *a.nominal_tokens);
  const float drift = 2 * a.z_loss * log_sum_exp;
  for (int64_t c = first; c < vocabulary; c += step) {
    float z[kWidth];
    LoadGroup(logits + c, vocabulary - c, true, z);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      // expm1: no digits are lost where the probability is near 1.
      z[i] = c + i == target
                 ? (expm1f(log_probability) + drift * expf(log_probability) +
                    (a.label_smoothing - share)) *
                       scale
                 : expf(z[i] - all.maximum - log_sum) * ((1 + drift) * scale) -
                       share * scale;
    }
    StoreGroup(logits + c, vocabulary - c, true, z);
  }
}

// One block.
constexpr int kThreads = 256;
__global__ __launch_bounds__(kThreads) void LossStatsKernel(
    const float* __restrict__ losses, const int32_t* __restrict__ targets,
    int64_t rows, int64_t vocabulary, double* stats) {
  __shared__ double sums[kThreads];
  __shared__ int64_t counts[kThreads];
  const int64_t stretch = (rows + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * stretch;
  const int64_t end = begin + stretch < rows ? begin + stretch : rows;
  double sum = 0;
  int64_t count = 0;
  for (int64_t n = begin; n < end; ++n) {
    if (targets[n] < 0 || targets[n] >= vocabulary) continue;
    sum += losses[n];
    ++count;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  count = 0;
  for (int i = 0; i < kThreads; ++i) {
    sum += sums[i];
    count += counts[i];
  }
  stats[0] = sum;
  stats[1] = static_cast<double>(count);
}

}  // namespace

cudaError_t LaunchCrossEntropy(const CrossEntropyLaunch& launch,
                               cudaStream_t stream) {
  if (launch.rows == 0) return cudaSuccess;
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    return Launch(CrossEntropyKernel<T>, static_cast<unsigned>(launch.rows),
                  ThreadsForRow(launch.vocabulary, kGroup<T>, kMostThreads), 0,
                  stream, launch);
  });
}

cudaError_t LaunchLossStats(const float* losses, const int32_t* targets,
                            int64_t rows, int64_t vocabulary, double* stats,
                            cudaStream_t stream) {
  return Launch(LossStatsKernel, 1, kThreads, 0, stream, losses, targets, rows,
                vocabulary, stats);
}

}  // namespace shardgraph::cuda
