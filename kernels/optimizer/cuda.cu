#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/optimizer/cuda.h"
#include "kernels/random/cuda_random.h"

namespace shardgraph::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

struct AdamWScalars {
  PhiloxKey random;
  float gradient_scale, l2, decay, one_minus_beta1, beta2, one_minus_beta2;
  float root_correction2, epsilon, step;
};

// Of the rounding of moments.
__device__ __forceinline__ PhiloxKey RandomOf(const UpdateLaunch& a) {
  if (!a.rounds) return {0, 0};
  return KeyOf(a.seed, a.key, static_cast<uint64_t>(*a.run_step), 0);
}

__device__ __forceinline__ AdamWScalars ScalarsOf(const AdamWLaunch& a,
                                                  int group) {
  const double rate = a.update.learning_rate[group];
  const double beta1 = a.beta1[group], beta2 = a.beta2[group];
  const double decay = a.update.weight_decay[group];
  return {RandomOf(a.update),
          static_cast<float>(*a.update.gradient_scale),
          a.l2 ? static_cast<float>(decay) : 0.0f,
          a.l2 ? 1.0f : static_cast<float>(1 - rate * decay),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(sqrt(1 - a.beta2_power[group] * beta2)),
          static_cast<float>(a.epsilon[group]),
          static_cast<float>(-rate / (1 - a.beta1_power[group] * beta1))};
}

struct SgdScalars {
  PhiloxKey random;
  float gradient_scale, weight_decay, momentum, rate;
};

__device__ __forceinline__ SgdScalars ScalarsOf(const SgdLaunch& a, int group) {
  return {RandomOf(a.update), static_cast<float>(*a.update.gradient_scale),
          static_cast<float>(a.update.weight_decay[group]),
          static_cast<float>(a.momentum[group]), a.update.learning_rate[group]};
}

struct LionScalars {
  PhiloxKey random;
  float gradient_scale, decay, rate;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
};

__device__ __forceinline__ LionScalars ScalarsOf(const LionLaunch& a,
                                                 int group) {
  const double rate = a.update.learning_rate[group];
  return {RandomOf(a.update),
          static_cast<float>(*a.update.gradient_scale),
          static_cast<float>(1 - rate * a.update.weight_decay[group]),
          a.update.learning_rate[group],
          static_cast<float>(a.beta1[group]),
          static_cast<float>(1 - a.beta1[group]),
          static_cast<float>(a.beta2[group]),
          static_cast<float>(1 - a.beta2[group])};
}

// The last range that begins at or before `tile`.
__device__ __forceinline__ UpdateRange RangeOfTile(const UpdateRanges& ranges,
                                                   int64_t tile) {
  int64_t low = 0, high = ranges.count - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (ranges.ranges[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return ranges.ranges[low];
}

// Four elements at `from`, of which only [first, last) are there.
template <typename T>
__device__ __forceinline__ void LoadFour(const T* from, int64_t first,
                                         int64_t last, bool vector,
                                         float (&to)[kWidth]) {
  if (first <= 0) return LoadGroup(from, last, vector, to);
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    to[i] = i >= first && i < last ? ToFloat(from[i]) : 0.0f;
}
template <typename T>
__device__ __forceinline__ void StoreFour(T* to, int64_t first, int64_t last,
                                          bool vector,
                                          const float (&from)[kWidth]) {
  if (first <= 0) return StoreGroup(to, last, vector, from);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i >= first && i < last) to[i] = FromFloat<T>(from[i]);
  }
}

// Calls body(i, first, last) for the groups of four elements, from i on, of
// this block's tile, of which [first, last) are in the range; before that
// scalars(group) on one thread.
template <typename Scalars, typename Body>
__device__ __forceinline__ void ForTile(const UpdateLaunch& a, Scalars scalars,
                                        Body body) {
  if (*a.found_inf != 0) return;
  for (int64_t tile = blockIdx.x; tile < a.ranges.tiles; tile += gridDim.x) {
    const UpdateRange range = RangeOfTile(a.ranges, tile);
    __syncthreads();  // the last tile's scalars have been read
    if (threadIdx.x == 0) scalars(range.group);
    __syncthreads();
    const int64_t begin =
        range.begin / kWidth * kWidth + (tile - range.first_tile) * kUpdateTile;
#pragma unroll
    for (int k = 0; k < kUpdateTile / (kThreads * kWidth); ++k) {
      const int64_t i = begin + (k * kThreads + threadIdx.x) * kWidth;
      if (i < range.end) body(i, range.begin - i, range.end - i);
    }
  }
}

// The random numbers of elements i to i + 3 of the shard.
template <typename Moment>
__device__ __forceinline__ void RandomFour(const UpdateLaunch& a,
                                           const PhiloxKey& key, int64_t i,
                                           uint32_t (&numbers)[kWidth]) {
  if constexpr (sizeof(Moment) == 2) {
    const uint64_t element = static_cast<uint64_t>(a.offset + i);
    if (element % kWidth == 0) return PhiloxWords(key, element / 4, numbers);
    for (int k = 0; k < kWidth; ++k) numbers[k] = PhiloxWord(key, element + k);
  }
}

// Moments: those in FP32 as they are, those in BF16 rounded by chance, to what
// a plain store leaves alone.
template <int index>
__device__ __forceinline__ void StoreMoment(float* to, int64_t first,
                                            int64_t last, bool vector,
                                            const uint32_t (&)[kWidth],
                                            const float (&from)[kWidth]) {
  StoreFour(to, first, last, vector, from);
}
template <int index>
__device__ __forceinline__ void StoreMoment(__nv_bfloat16* to, int64_t first,
                                            int64_t last, bool vector,
                                            const uint32_t (&numbers)[kWidth],
                                            const float (&from)[kWidth]) {
  float rounded[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const uint32_t number =
        index == 0 ? numbers[k] & 0xffffu : numbers[k] >> 16;
    uint32_t bits;
    memcpy(&bits, &from[k], sizeof(bits));
    if ((bits & 0x7f800000u) != 0x7f800000u)
      bits = (bits + number) & 0xffff0000u;
    memcpy(&rounded[k], &bits, sizeof(bits));
  }
  StoreFour(to, first, last, vector, rounded);
}

__device__ __forceinline__ void StoreParameters(const UpdateLaunch& a,
                                                int64_t i, int64_t first,
                                                int64_t last,
                                                const float (&p)[kWidth]) {
  StoreFour(a.master + i, first, last, a.vector, p);
  if (a.compute == nullptr) return;
  if (a.compute_type == ElementType::kF16) {
    StoreFour(static_cast<__half*>(a.compute) + i, first, last, a.vector, p);
  } else {
    StoreFour(static_cast<__nv_bfloat16*>(a.compute) + i, first, last, a.vector,
              p);
  }
}

template <typename Moment>
__global__ __launch_bounds__(kThreads) void AdamWKernel(AdamWLaunch a) {
  __shared__ AdamWScalars s;
  Moment* const exp_avg = static_cast<Moment*>(a.update.moments[0]);
  Moment* const exp_avg_sq = static_cast<Moment*>(a.update.moments[1]);
  const bool vector = a.update.vector;
  ForTile(
      a.update, [&](int group) { s = ScalarsOf(a, group); },
      [&](int64_t i, int64_t first, int64_t last) {
        float p[kWidth], g[kWidth], m[kWidth], v[kWidth];
        LoadFour(a.update.master + i, first, last, vector, p);
        LoadFour(a.update.gradient + i, first, last, vector, g);
        LoadFour(exp_avg + i, first, last, vector, m);
        LoadFour(exp_avg_sq + i, first, last, vector, v);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float d = g[k] * s.gradient_scale + s.l2 * p[k];
          m[k] = m[k] + s.one_minus_beta1 * (d - m[k]);
          v[k] = v[k] * s.beta2 + s.one_minus_beta2 * d * d;
          const float denominator =
              sqrtf(v[k]) / s.root_correction2 + s.epsilon;
          p[k] = p[k] * s.decay + s.step * m[k] / denominator;
        }
        uint32_t numbers[kWidth];
        RandomFour<Moment>(a.update, s.random, i, numbers);
        StoreMoment<0>(exp_avg + i, first, last, vector, numbers, m);
        StoreMoment<1>(exp_avg_sq + i, first, last, vector, numbers, v);
        StoreParameters(a.update, i, first, last, p);
      });
}

template <typename Moment>
__global__ __launch_bounds__(kThreads) void SgdKernel(SgdLaunch a) {
  __shared__ SgdScalars s;
  Moment* const momentum_buffer = static_cast<Moment*>(a.update.moments[0]);
  const bool vector = a.update.vector;
  ForTile(
      a.update, [&](int group) { s = ScalarsOf(a, group); },
      [&](int64_t i, int64_t first, int64_t last) {
        float p[kWidth], d[kWidth], buffer[kWidth];
        LoadFour(a.update.master + i, first, last, vector, p);
        LoadFour(a.update.gradient + i, first, last, vector, d);
        if (momentum_buffer != nullptr)
          LoadFour(momentum_buffer + i, first, last, vector, buffer);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          d[k] = d[k] * s.gradient_scale + s.weight_decay * p[k];
          if (momentum_buffer != nullptr) d[k] = buffer[k] * s.momentum + d[k];
          p[k] = p[k] - s.rate * d[k];
        }
        if (momentum_buffer != nullptr) {
          uint32_t numbers[kWidth];
          RandomFour<Moment>(a.update, s.random, i, numbers);
          StoreMoment<0>(momentum_buffer + i, first, last, vector, numbers, d);
        }
        StoreParameters(a.update, i, first, last, p);
      });
}

template <typename Moment>
__global__ __launch_bounds__(kThreads) void LionKernel(LionLaunch a) {
  __shared__ LionScalars s;
  Moment* const exp_avg = static_cast<Moment*>(a.update.moments[0]);
  const bool vector = a.update.vector;
  ForTile(
      a.update, [&](int group) { s = ScalarsOf(a, group); },
      [&](int64_t i, int64_t first, int64_t last) {
        float p[kWidth], g[kWidth], m[kWidth];
        LoadFour(a.update.master + i, first, last, vector, p);
        LoadFour(a.update.gradient + i, first, last, vector, g);
        LoadFour(exp_avg + i, first, last, vector, m);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float d = g[k] * s.gradient_scale;
          const float c = m[k] * s.beta1 + s.one_minus_beta1 * d;
          const float move = c > 0.0f ? s.rate : c < 0.0f ? -s.rate : 0.0f;
          p[k] = p[k] * s.decay - move;
          m[k] = m[k] * s.beta2 + s.one_minus_beta2 * d;
        }
        uint32_t numbers[kWidth];
        RandomFour<Moment>(a.update, s.random, i, numbers);
        StoreMoment<0>(exp_avg + i, first, last, vector, numbers, m);
        StoreParameters(a.update, i, first, last, p);
      });
}

// A block to a block of the flat parameter. Which thread sums what depends on
// places in the flat parameter alone.
__global__ __launch_bounds__(kThreads) void SquaresKernel(
    SumOfSquaresLaunch a) {
  const int64_t first_block = a.offset / kSquaresBlock;
  const int64_t begin = (first_block + blockIdx.x) * kSquaresBlock - a.offset;
  float sum[1] = {};
  // The first range that ends behind `begin`.
  int64_t low = 0, high = a.ranges.count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a.ranges.ranges[middle].end > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const bool vector =
      (reinterpret_cast<uintptr_t>(a.gradient) / sizeof(float) + begin) %
          kWidth ==
      0;
  for (; low < a.ranges.count; ++low) {
    const UpdateRange range = a.ranges.ranges[low];
    if (range.begin >= begin + kSquaresBlock) break;
    for (int k = 0; k < kSquaresBlock / (kThreads * kWidth); ++k) {
      const int64_t i = begin + (k * kThreads + threadIdx.x) * kWidth;
      if (i >= range.end || i + kWidth <= range.begin) continue;
      float g[kWidth];
      LoadFour(a.gradient + i, range.begin - i, range.end - i, vector, g);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[0] += g[e] * g[e];
    }
  }
  BlockSums(sum);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum[0];
}

// One block: each thread adds up a stretch of the partial sums, then the first
// thread the stretches, in order.
__global__ __launch_bounds__(kThreads) void SumKernel(
    const float* __restrict__ partial, int64_t count, double* sum) {
  __shared__ double sums[kThreads];
  const int64_t stretch = (count + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * stretch;
  const int64_t end = begin + stretch < count ? begin + stretch : count;
  double mine = 0;
  for (int64_t i = begin; i < end; ++i) mine += partial[i];
  sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < kThreads; ++i) total += sums[i];
  *sum = total;
}

template <typename T>
__global__ __launch_bounds__(kThreads) void AccumulateKernel(
    T* __restrict__ destination, const T* __restrict__ contribution, int64_t n,
    const int64_t* __restrict__ micro, bool vector) {
  constexpr int kEach = 16 / sizeof(T);
  const bool first = *micro == 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kEach;
  for (int64_t i =
           (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
       i < n; i += step) {
    if (vector && i + kEach <= n) {
      uint4 word = *reinterpret_cast<const uint4*>(contribution + i);
      if (!first) {
        T values[kEach], old[kEach];
        const uint4 before = *reinterpret_cast<const uint4*>(destination + i);
        memcpy(values, &word, sizeof(word));
        memcpy(old, &before, sizeof(before));
#pragma unroll
        for (int k = 0; k < kEach; ++k) values[k] = old[k] + values[k];
        memcpy(&word, values, sizeof(word));
      }
      *reinterpret_cast<uint4*>(destination + i) = word;
      continue;
    }
    for (int k = 0; k < kEach && i + k < n; ++k) {
      destination[i + k] = first ? contribution[i + k]
                                 : destination[i + k] + contribution[i + k];
    }
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void SumPiecesKernel(
    const T* __restrict__ pieces, float* __restrict__ sum, int64_t n,
    int64_t size, bool vector) {
  constexpr int kEach = kGroup<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kEach;
  for (int64_t i =
           (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
       i < n; i += step) {
    float total[kEach];
    LoadGroup(pieces + i, n - i, vector, total);
    for (int64_t piece = 1; piece < size; ++piece) {
      float value[kEach];
      LoadGroup(pieces + piece * n + i, n - i, vector, value);
#pragma unroll
      for (int k = 0; k < kEach; ++k) total[k] += value[k];
    }
    StoreGroup(sum + i, n - i, vector, total);
  }
}

__global__ void FinishGradientsKernel(FinishGradientsLaunch a) {
  double sum = 0;
  for (int64_t i = 0; i < a.count; ++i) sum += a.sums[i];
  const double tokens = *a.token_count;
  const double average =
      tokens == 0 ? 0 : *a.nominal_tokens / tokens / *a.loss_scale;
  const double norm = sqrt(sum) * average;
  double clip = 1;
  if (a.max_norm > 0 && a.max_norm / (norm + 1e-6) < 1)
    clip = a.max_norm / (norm + 1e-6);
  const bool bad = !(fabs(sum) < INFINITY);
  if (bad && a.stops) *a.stop = 1;
  const bool found_inf = !a.ignores && (bad || *a.stop != 0);
  *a.gradient_norm = norm;
  *a.gradient_scale = found_inf ? 0.0 : average * clip;
  *a.found_inf = found_inf;
}

__global__ void UpdateLossScaleKernel(UpdateLossScaleLaunch a) {
  const float scale = *a.loss_scale;
  if (*a.found_inf != 0) {
    *a.loss_scale = static_cast<float>(scale * a.backoff);
    *a.growth_counter = 0;
    return;
  }
  const int32_t counter = *a.growth_counter + 1;
  const bool grows = counter == a.interval;
  const float grown = static_cast<float>(scale * a.growth);
  if (grows && grown < INFINITY) *a.loss_scale = grown;
  *a.growth_counter = grows ? 0 : counter;
}

__global__ void AdvanceStateKernel(AdvanceStateLaunch a) {
  if (*a.found_inf != 0) return;
  const int group = static_cast<int>(threadIdx.x);
  if (group == 0) ++*a.optimizer_step;
  a.beta1_power[group] *= a.beta1[group];
  a.beta2_power[group] *= a.beta2[group];
}

template <typename T>
cudaError_t Accumulate(const AccumulateLaunch& launch, cudaStream_t stream) {
  const bool vector = (reinterpret_cast<uintptr_t>(launch.destination) |
                       reinterpret_cast<uintptr_t>(launch.contribution)) %
                          16 ==
                      0;
  constexpr int64_t kPerBlock = kThreads * 16 / sizeof(T);
  return Launch(AccumulateKernel<T>, Blocks(launch.n, kPerBlock), kThreads, 0,
                stream, static_cast<T*>(launch.destination),
                static_cast<const T*>(launch.contribution), launch.n,
                launch.micro, vector);
}

template <typename T>
cudaError_t SumPieces(const SumPiecesLaunch& launch, cudaStream_t stream) {
  constexpr int kEach = kGroup<T>;
  const bool vector = (reinterpret_cast<uintptr_t>(launch.pieces) |
                       reinterpret_cast<uintptr_t>(launch.sum)) %
                              16 ==
                          0 &&
                      (launch.size == 1 || launch.n % kEach == 0);
  return Launch(SumPiecesKernel<T>, Blocks(launch.n, kThreads * kEach),
                kThreads, 0, stream, static_cast<const T*>(launch.pieces),
                launch.sum, launch.n, launch.size, vector);
}

template <typename L>
cudaError_t LaunchUpdate(void (*kernel)(L), const L& launch,
                         cudaStream_t stream) {
  const int64_t tiles = launch.update.ranges.tiles;
  if (tiles == 0) return cudaSuccess;
  return Launch(kernel, Blocks(tiles, 1), kThreads, 0, stream, launch);
}

}  // namespace

cudaError_t LaunchAdamW(const AdamWLaunch& launch, cudaStream_t stream) {
  return LaunchUpdate(
      launch.update.rounds ? AdamWKernel<__nv_bfloat16> : AdamWKernel<float>,
      launch, stream);
}

cudaError_t LaunchSgd(const SgdLaunch& launch, cudaStream_t stream) {
  return LaunchUpdate(
      launch.update.rounds ? SgdKernel<__nv_bfloat16> : SgdKernel<float>,
      launch, stream);
}

cudaError_t LaunchLion(const LionLaunch& launch, cudaStream_t stream) {
  return LaunchUpdate(
      launch.update.rounds ? LionKernel<__nv_bfloat16> : LionKernel<float>,
      launch, stream);
}

cudaError_t LaunchSumOfSquares(const SumOfSquaresLaunch& launch,
                               cudaStream_t stream) {
  const int64_t first = launch.offset / kSquaresBlock;
  const int64_t blocks =
      launch.n == 0
          ? 0
          : (launch.offset + launch.n - 1) / kSquaresBlock - first + 1;
  if (blocks > 0) {
    const cudaError_t error =
        Launch(SquaresKernel, static_cast<unsigned>(blocks), kThreads, 0,
               stream, launch);
    if (error != cudaSuccess) return error;
  }
  return Launch(SumKernel, 1, kThreads, 0, stream, launch.partial, blocks,
                launch.sum);
}

cudaError_t LaunchAccumulate(const AccumulateLaunch& launch,
                             cudaStream_t stream) {
  if (launch.n == 0) return cudaSuccess;
  return launch.f64 ? Accumulate<double>(launch, stream)
                    : Accumulate<float>(launch, stream);
}

cudaError_t LaunchSumPieces(const SumPiecesLaunch& launch,
                            cudaStream_t stream) {
  if (launch.n == 0) return cudaSuccess;
  return launch.type == ElementType::kBF16
             ? SumPieces<__nv_bfloat16>(launch, stream)
             : SumPieces<float>(launch, stream);
}

cudaError_t LaunchFinishGradients(const FinishGradientsLaunch& launch,
                                  cudaStream_t stream) {
  return Launch(FinishGradientsKernel, 1, 1, 0, stream, launch);
}

cudaError_t LaunchUpdateLossScale(const UpdateLossScaleLaunch& launch,
                                  cudaStream_t stream) {
  return Launch(UpdateLossScaleKernel, 1, 1, 0, stream, launch);
}

cudaError_t LaunchAdvanceState(const AdvanceStateLaunch& launch,
                               cudaStream_t stream) {
  return Launch(AdvanceStateKernel, 1, kOptimizerGroups, 0, stream, launch);
}

}  // namespace shardgraph::cuda
