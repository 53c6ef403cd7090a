#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/embedding/cuda.h"

namespace shardgraph::cuda {
namespace {

constexpr int kThreads = 256;

// `width` words of type T to a row.
template <typename T>
__global__ __launch_bounds__(kThreads) void EmbeddingKernel(EmbeddingLaunch a,
                                                            int64_t width) {
  const T* const weight = static_cast<const T*>(a.weight);
  T* const y = static_cast<T*>(a.y);
  const int64_t count = a.count * width;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < count; i += step) {
    const int64_t n = i / width;
    const int64_t id = a.ids[n];
    T word{};
    if (id >= 0 && id < a.rows) word = weight[id * width + (i - n * width)];
    y[i] = word;
  }
}

template <typename T>
cudaError_t EnqueueEmbedding(const EmbeddingLaunch& launch,
                             cudaStream_t stream) {
  const int64_t width = launch.row_bytes / static_cast<int64_t>(sizeof(T));
  return Launch(EmbeddingKernel<T>, Blocks(launch.count * width, kThreads),
                kThreads, 0, stream, launch, width);
}

// The positions of each row of the table: counted, placed behind each other,
// sorted when they are summed. Only integers are added atomically, and what
// order they are placed in does not matter.
struct Buckets {
  int32_t* begins;  // [rows + 1]; before StartKernel, counts from 1 on
  int32_t* placed;  // [rows]
  int32_t* order;   // [count]
};

__global__ __launch_bounds__(kThreads) void CountKernel(
    const int32_t* __restrict__ ids, int64_t count, int64_t rows,
    int32_t* begins) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count) return;
  const int32_t id = ids[n];
  if (id >= 0 && id < rows) atomicAdd(&begins[id + 1], 1);
}

constexpr int kScanThreads = 1024;

// Counts become where buckets begin: one block, each thread a stretch of rows.
__global__ __launch_bounds__(kScanThreads) void StartKernel(int32_t* begins,
                                                            int64_t rows) {
  __shared__ int32_t of_warp[kWarpSize];
  const int64_t stretch = (rows + kScanThreads - 1) / kScanThreads;
  const int64_t first = threadIdx.x * stretch + 1;
  const int64_t last = first + stretch < rows + 1 ? first + stretch : rows + 1;
  int32_t mine = 0;
  for (int64_t i = first; i < last; ++i) mine += begins[i];
  // Sums of the threads up to and with this one, in its warp, then before it.
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int32_t sum = mine;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarpSize - 1) of_warp[warp] = sum;
  __syncthreads();
  int32_t total = sum - mine;
  for (int w = 0; w < warp; ++w) total += of_warp[w];
  for (int64_t i = first; i < last; ++i) {
    total += begins[i];
    begins[i] = total;
  }
}

__global__ __launch_bounds__(kThreads) void PlaceKernel(
    const int32_t* __restrict__ ids, int64_t count, int64_t rows, Buckets b) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count) return;
  const int32_t id = ids[n];
  if (id < 0 || id >= rows) return;
  b.order[b.begins[id] + atomicAdd(&b.placed[id], 1)] = static_cast<int32_t>(n);
}

// The positions in `chunk`, at most one to a thread, in ascending order into
// `sorted`. A thread's own is -1 when it has none.
__device__ __forceinline__ void SortInto(int32_t own, int count,
                                         int32_t* unsorted, int32_t* sorted) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < count) unsorted[t] = own;
  __syncthreads();
  if (t < count) {
    int rank = 0;
    for (int k = 0; k < count; ++k) rank += unsorted[k] < own;
    sorted[rank] = own;
  }
  __syncthreads();
}

// A block to a row of the table. A bucket of up to kThreads is sorted at once;
// of a larger one the positions are found in order among all ids.
template <typename From, typename To>
__global__ __launch_bounds__(kThreads) void SumRowsKernel(
    EmbeddingGradientLaunch a, Buckets b, bool vector) {
  constexpr int kWidth = kGroup<From, To>;
  constexpr int kTile = kThreads * kWidth;  // columns at a time
  __shared__ int32_t unsorted[kThreads], sorted[kThreads];
  __shared__ int matches_of_warp[kThreads / kWarpSize];
  const int64_t row = blockIdx.x, columns = a.columns;
  const int32_t begin = b.begins[row], end = b.begins[row + 1];
  const int32_t size = end - begin;
  if (size == 0 && a.accumulate) return;
  const int t = static_cast<int>(threadIdx.x);
  const From* const dy = static_cast<const From*>(a.dy);
  To* const out = static_cast<To*>(a.dweight) + row * columns;
  const bool at_once = size <= kThreads;
  if (at_once && size > 0)
    SortInto(t < size ? b.order[begin + t] : -1, size, unsorted, sorted);
  for (int64_t tile = 0; tile < columns; tile += kTile) {
    const int64_t column = tile + t * kWidth, left = columns - column;
    float sum[kWidth] = {};
    if (a.accumulate && left > 0) LoadGroup(out + column, left, vector, sum);
    const auto add = [&](int count) {
      for (int k = 0; k < count && left > 0; ++k) {
        float value[kWidth];
        LoadGroup(dy + sorted[k] * columns + column, left, vector, value);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += value[i];
      }
    };
    if (at_once) {
      add(size);
    } else {
      const int lane = t % kWarpSize, warp = t / kWarpSize;
      for (int64_t start = 0; start < a.count; start += kThreads) {
        const int64_t n = start + t;
        const bool match = n < a.count && a.ids[n] == row;
        const unsigned ballot = __ballot_sync(kFullWarp, match);
        if (lane == 0) matches_of_warp[warp] = __popc(ballot);
        __syncthreads();
        int before = 0, total = 0;
#pragma unroll
        for (int w = 0; w < kThreads / kWarpSize; ++w) {
          before += w < warp ? matches_of_warp[w] : 0;
          total += matches_of_warp[w];
        }
        if (match) {
          sorted[before + __popc(ballot & ((1u << lane) - 1u))] =
              static_cast<int32_t>(n);
        }
        __syncthreads();
        add(total);
        __syncthreads();  // the lists are written again
      }
    }
    if (left > 0) StoreGroup(out + column, left, vector, sum);
  }
}

__global__ __launch_bounds__(kThreads) void PositionsKernel(
    const int64_t* __restrict__ position, int64_t count, int64_t length,
    int32_t* __restrict__ y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = static_cast<int32_t>(*position + i % length);
}

// A thread to a group of angles of a position, for all heads.
template <typename T>
__global__ __launch_bounds__(kThreads) void RotaryKernel(RotaryLaunch a,
                                                         bool vector) {
  constexpr int kWidth = kGroup<T>;
  const int64_t groups = (a.half + kWidth - 1) / kWidth;
  const int64_t count = a.batch * a.length * groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       g < count; g += step) {
    const int64_t n = g / groups, i = (g - n * groups) * kWidth;
    const int64_t left = a.half - i;
    const float position = static_cast<float>(a.positions[n]);
    float cosine[kWidth], sine[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float angle =
          k < left ? __fmul_rn(position, a.frequencies[i + k]) : 0.0f;
      cosine[k] = Rounded<T>(cosf(angle));
      sine[k] = Rounded<T>(sinf(angle)) * a.sign;
    }
    const int64_t b = n / a.length, t = n - b * a.length;
    const T* x = static_cast<const T*>(a.x) + b * a.x_strides[0] +
                 t * a.x_strides[1] + i;
    T* y = static_cast<T*>(a.y) + b * a.y_strides[0] + t * a.y_strides[1] + i;
    for (int64_t h = 0; h < a.heads; ++h) {
      float first[kWidth], second[kWidth], to_first[kWidth], to_second[kWidth];
      LoadGroup(x, left, vector, first);
      LoadGroup(x + a.half, left, vector, second);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        to_first[k] = first[k] * cosine[k] - second[k] * sine[k];
        to_second[k] = second[k] * cosine[k] + first[k] * sine[k];
      }
      StoreGroup(y, left, vector, to_first);
      StoreGroup(y + a.half, left, vector, to_second);
      x += a.x_strides[2];
      y += a.y_strides[2];
    }
  }
}

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

cudaError_t LaunchEmbedding(const EmbeddingLaunch& launch,
                            cudaStream_t stream) {
  if (launch.count == 0 || launch.row_bytes == 0) return cudaSuccess;
  if (launch.row_bytes % 16 == 0 && Aligned(launch.weight) && Aligned(launch.y))
    return EnqueueEmbedding<uint4>(launch, stream);
  return EnqueueEmbedding<uint16_t>(launch, stream);
}

cudaError_t LaunchEmbeddingGradient(const EmbeddingGradientLaunch& launch,
                                    cudaStream_t stream) {
  const int64_t rows = launch.rows, count = launch.count;
  if (rows == 0 || launch.columns == 0) return cudaSuccess;
  Buckets buckets;
  buckets.begins = static_cast<int32_t*>(launch.workspace);
  buckets.placed = buckets.begins + rows + 1;
  buckets.order = buckets.placed + rows;
  cudaError_t error = cudaMemsetAsync(buckets.begins, 0,
                                      (2 * rows + 1) * sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  if (count > 0) {
    const unsigned blocks =
        static_cast<unsigned>((count + kThreads - 1) / kThreads);
    error = Launch(CountKernel, blocks, kThreads, 0, stream, launch.ids, count,
                   rows, buckets.begins);
    if (error != cudaSuccess) return error;
    error =
        Launch(StartKernel, 1, kScanThreads, 0, stream, buckets.begins, rows);
    if (error != cudaSuccess) return error;
    error = Launch(PlaceKernel, blocks, kThreads, 0, stream, launch.ids, count,
                   rows, buckets);
    if (error != cudaSuccess) return error;
  }
  return DispatchElement(launch.from, [&]<typename From>(
                                          std::type_identity<From>) {
    return DispatchElement(launch.to, [&]<typename To>(std::type_identity<To>) {
      const bool vector = launch.columns % kGroup<From, To> == 0 &&
                          Aligned(launch.dy) && Aligned(launch.dweight);
      return Launch(SumRowsKernel<From, To>, static_cast<unsigned>(rows),
                    kThreads, 0, stream, launch, buckets, vector);
    });
  });
}

cudaError_t LaunchPositions(const int64_t* position, int64_t count,
                            int64_t length, int32_t* y, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const unsigned blocks =
      static_cast<unsigned>((count + kThreads - 1) / kThreads);
  return Launch(PositionsKernel, blocks, kThreads, 0, stream, position, count,
                length, y);
}

cudaError_t LaunchRotary(const RotaryLaunch& launch, cudaStream_t stream) {
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    constexpr int kWidth = kGroup<T>;
    bool vector =
        Aligned(launch.x) && Aligned(launch.y) && launch.half % kWidth == 0;
    for (int i = 0; i < 3; ++i) {
      vector &= launch.x_strides[i] % kWidth == 0 &&
                launch.y_strides[i] % kWidth == 0;
    }
    const int64_t groups = (launch.half + kWidth - 1) / kWidth;
    const int64_t count = launch.batch * launch.length * groups;
    if (count == 0) return cudaSuccess;
    return Launch(RotaryKernel<T>, Blocks(count, kThreads), kThreads, 0, stream,
                  launch, vector);
  });
}

}  // namespace shardgraph::cuda
