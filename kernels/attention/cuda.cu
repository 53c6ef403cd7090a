#include <cstdint>

#include "kernels/attention/cuda.h"
#include "kernels/attention/cuda_tile.h"

namespace shardgraph::cuda {
namespace {

constexpr int kQueries = 32;  // of a block
constexpr int kThreads = kQueries * kLanesOfRow;

// Keys of a tile: fewer of wide heads, for the sake of shared memory.
constexpr int KeysOf(int per_thread) { return per_thread > 32 ? 16 : 32; }

constexpr int64_t SharedBytes(int64_t width, int keys) {
  const int64_t stride = TileStride(width);
  return ((kQueries + 2 * keys) * stride + kQueries * (keys + 1)) *
         static_cast<int64_t>(sizeof(float));
}

// Online softmax over tiles of keys. `kWidth` elements of out to a thread.
template <typename T, int kWidth>
__global__ __launch_bounds__(kThreads, MinBlocks(kWidth)) void AttentionKernel(
    AttentionLaunch a) {
  constexpr int kKeys = KeysOf(kWidth);
  constexpr int kOwn = kKeys / kLanesOfRow;  // keys to a thread
  const int width = static_cast<int>(a.width), stride = TileStride(a.width);
  float* const q_tile = DynamicShared<float>();
  float* const k_tile = q_tile + kQueries * stride;
  float* const v_tile = k_tile + kKeys * stride;
  float* const p_tile = v_tile + kKeys * stride;
  const BlockOfHeads block(a.batch, a.heads, a.queries, kQueries);
  const int64_t b = block.b, h = block.h, g = h / (a.heads / a.kv_heads);
  const HeadMask mask(a, b, h);
  const HeadRows<const T> k(a.k, b, g), v(a.v, b, g);
  LoadRows<kQueries>(HeadRows<const T>(a.q, b, h), block.first, a.queries,
                     a.width, q_tile);
  const int row = static_cast<int>(threadIdx.x) / kLanesOfRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const int64_t i = block.first + row;
  float* const p_row = p_tile + row * (kKeys + 1);

  int64_t end = a.keys;  // of the keys that any query of the block sees
  if (a.causal) {
    const int64_t last =
        block.first + kQueries < a.queries ? block.first + kQueries : a.queries;
    if (last + mask.offset < end) end = last + mask.offset;
  }
  float maximum = -INFINITY, sum = 0.0f;
  float out[kWidth] = {};
  for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
    __syncthreads();  // the last tile has been read
    LoadRows<kKeys>(k, j0, a.keys, a.width, k_tile);
    LoadRows<kKeys>(v, j0, a.keys, a.width, v_tile);
    __syncthreads();
    float s[kOwn];
    Products(q_tile + row * stride, k_tile, lane, a.width, s);
    unsigned seen = 0;
    float largest = -INFINITY;
#pragma unroll
    for (int x = 0; x < kOwn; ++x) {
      const int at = lane + kLanesOfRow * x;
      if (!mask.Sees(i, j0 + at)) continue;
      seen |= 1u << at;
      s[x] *= a.scale;
      largest = fmaxf(largest, s[x]);  // passes over NaN, which goes to the sum
    }
    largest = fmaxf(maximum, RowMax(largest));
    const float base = largest == -INFINITY ? 0.0f : largest;
    const float correction = expf(maximum - base);
    maximum = largest;
    float of_tile = 0.0f;
#pragma unroll
    for (int x = 0; x < kOwn; ++x) {
      const int at = lane + kLanesOfRow * x;
      float p = (seen >> at & 1) != 0 ? expf(s[x] - base) : 0.0f;
      of_tile += p;
      if (mask.has_dropout && (seen >> at & 1) != 0) p *= mask.Kept(i, j0 + at);
      p_row[at] = p;
    }
    sum = sum * correction + RowSum(of_tile);
    seen = RowOr(seen);
    __syncwarp();  // the other lanes' probabilities
#pragma unroll
    for (int x = 0; x < kWidth; ++x) out[x] *= correction;
    for (int j = 0; j < kKeys; ++j) {
      // What is not seen may be NaN.
      if ((seen >> j & 1) == 0) continue;
      AddScaled(p_row[j], v_tile + j * stride, lane, width, out);
    }
  }
  if (i >= a.queries) return;
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  StoreRow(HeadRows<T>(a.out, b, h), i, lane, width, inverse, out);
  if (lane == 0) {
    a.lse[(b * a.heads + h) * a.queries + i] =
        sum == 0.0f ? -INFINITY : maximum + logf(sum);
  }
}

}  // namespace

cudaError_t LaunchAttention(const AttentionLaunch& launch,
                            cudaStream_t stream) {
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    return DispatchWidth(launch.width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const unsigned blocks =
          BlocksOfHeads(launch.batch, launch.heads, launch.queries, kQueries);
      if (blocks == 0) return cudaSuccess;
      return LaunchWithShared(&AttentionKernel<T, kWidth>, blocks, kThreads,
                              SharedBytes(launch.width, KeysOf(kWidth)),
                              SharedBytes(WidestHead(kWidth), KeysOf(kWidth)),
                              stream, launch);
    });
  });
}

}  // namespace shardgraph::cuda
