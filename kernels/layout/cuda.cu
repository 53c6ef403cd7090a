#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/layout/cuda.h"

namespace shardgraph::cuda {
namespace {

constexpr int kThreads = 256;

// `bits` twice: 16 bytes of the same element over and over.
__device__ __forceinline__ uint4 WordOf(uint64_t bits) {
  const uint32_t low = static_cast<uint32_t>(bits);
  const uint32_t high = static_cast<uint32_t>(bits >> 32);
  return {low, high, low, high};
}

// Rows that do not lie behind each other, 16 bytes at a time.
template <typename T>
__global__ __launch_bounds__(kThreads) void FillKernel(FillLaunch a) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  const uint4 word = WordOf(a.bits);
  const int64_t columns = a.shape.columns;
  const int64_t groups = (columns + kEach - 1) / kEach;  // of a row
  const int64_t count = groups * a.shape.rows.count;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       g < count; g += step) {
    const int64_t row = g / groups, column = (g - row * groups) * kEach;
    int64_t at[1];
    Offsets(a.shape.rows, row, at);
    T* const y = static_cast<T*>(a.y) + at[0] + column;
    if (a.vector && column + kEach <= columns) {
      __stwb(reinterpret_cast<uint4*>(y), word);
      continue;
    }
    for (int i = 0; i < kEach && column + i < columns; ++i)
      y[i] = static_cast<T>(a.bits);
  }
}

// Contiguous memory, whose bytes are those of `bits` over and over: 16 bytes at
// a time, what is in front and behind byte by byte.
__global__ __launch_bounds__(kThreads) void FillBytesKernel(
    unsigned char* __restrict__ y, int64_t bytes, uint64_t bits, int phase) {
  const int64_t front = (16 - phase) % 16 < bytes ? (16 - phase) % 16 : bytes;
  const int64_t words = (bytes - front) / 16;
  const auto byte = [=](int64_t i) {
    return static_cast<unsigned char>(bits >> (i % 8 * 8));
  };
  // The pattern as a word at an aligned address has it.
  uint64_t turned = 0;
  for (int i = 0; i < 8; ++i)
    turned |= static_cast<uint64_t>(byte(front + i)) << (i * 8);
  const uint4 word = WordOf(turned);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < words; i += step)
    reinterpret_cast<uint4*>(y + front)[i] = word;
  if (first < front) y[first] = byte(first);
  const int64_t behind = front + words * 16 + first;
  if (behind < bytes) y[behind] = byte(behind);
}

// A thread for each T of a row [K, D]: 16 bytes where alignment allows, else 2.
template <typename T>
__global__ __launch_bounds__(kThreads) void KvWriteKernel(KvWriteLaunch a,
                                                          int64_t width) {
  const int64_t count = a.batch * a.length * a.heads * width;
  const int64_t position = *a.position;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < count; i += step) {
    const int64_t d = i % width, k = i / width % a.heads;
    const int64_t t = i / width / a.heads % a.length;
    const int64_t b = i / width / a.heads / a.length;
    const int64_t to = position + t;
    if (to < 0 || to >= a.capacity) continue;
    const int64_t from =
        b * a.rows_strides[0] + t * a.rows_strides[1] + k * a.rows_strides[2];
    const int64_t at = b * a.cache_strides[0] + to * a.cache_strides[1] +
                       k * a.cache_strides[2];
    reinterpret_cast<T*>(static_cast<char*>(a.cache) + at * a.size)[d] =
        reinterpret_cast<const T*>(static_cast<const char*>(a.rows) +
                                   from * a.size)[d];
  }
}

template <typename T>
cudaError_t EnqueueKvWrite(const KvWriteLaunch& launch, cudaStream_t stream) {
  const int64_t width =
      launch.width * launch.size / static_cast<int64_t>(sizeof(T));
  const int64_t count = launch.batch * launch.length * launch.heads * width;
  if (count == 0) return cudaSuccess;
  return Launch(KvWriteKernel<T>, Blocks(count, kThreads), kThreads, 0, stream,
                launch, width);
}

}  // namespace

cudaError_t LaunchFill(const FillLaunch& launch, cudaStream_t stream) {
  const int64_t count = launch.shape.columns * launch.shape.rows.count;
  if (count == 0) return cudaSuccess;
  FillLaunch filled = launch;  // with the element over and over
  for (int size = launch.size; size < 8; size *= 2) {
    filled.bits &= (uint64_t{1} << (size * 8)) - 1;
    filled.bits |= filled.bits << (size * 8);
  }
  if (launch.shape.rows.rank == 0) {
    const int64_t bytes = count * launch.size;
    return Launch(FillBytesKernel, Blocks(bytes / 16 + 1, kThreads), kThreads,
                  0, stream, static_cast<unsigned char*>(launch.y), bytes,
                  filled.bits,
                  static_cast<int>(reinterpret_cast<uintptr_t>(launch.y) % 16));
  }
  auto* const kernel = launch.size == 1   ? &FillKernel<uint8_t>
                       : launch.size == 2 ? &FillKernel<uint16_t>
                       : launch.size == 4 ? &FillKernel<uint32_t>
                                          : &FillKernel<uint64_t>;
  const int64_t each = 16 / launch.size;
  const int64_t groups = (launch.shape.columns + each - 1) / each;
  return Launch(kernel, Blocks(groups * launch.shape.rows.count, kThreads),
                kThreads, 0, stream, filled);
}

cudaError_t LaunchKvWrite(const KvWriteLaunch& launch, cudaStream_t stream) {
  uint64_t bits = reinterpret_cast<uintptr_t>(launch.cache) |
                  reinterpret_cast<uintptr_t>(launch.rows) |
                  static_cast<uint64_t>(launch.width * launch.size);
  for (int i = 0; i < 3; ++i) {
    bits |= static_cast<uint64_t>(
        (launch.cache_strides[i] | launch.rows_strides[i]) * launch.size);
  }
  return bits % 16 == 0 ? EnqueueKvWrite<uint4>(launch, stream)
                        : EnqueueKvWrite<uint16_t>(launch, stream);
}

}  // namespace shardgraph::cuda
