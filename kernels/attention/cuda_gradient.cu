#include <cstdint>

#include "kernels/attention/cuda.h"
#include "kernels/attention/cuda_tile.h"

namespace shardgraph::cuda {
namespace {

// Queries and keys of a tile: fewer of wide heads, for the sake of shared
// memory and registers.
constexpr int TileOf(int per_thread) { return per_thread > 32 ? 16 : 32; }

constexpr int ThreadsOf(int per_thread) {
  return TileOf(per_thread) * kLanesOfRow;
}

constexpr int64_t SharedBytes(int64_t width, int tile) {
  const int64_t stride = TileStride(width);
  return (4 * tile * stride + 2 * tile * (tile + 1) + 2 * tile) *
         static_cast<int64_t>(sizeof(float));
}

// The tiles of a block: its own rows and those it goes over, both of two
// tensors; p' and ds of all pairs; lse and delta of the queries.
struct Tiles {
  float *own_a, *own_b, *other_a, *other_b, *p, *ds, *lse, *delta;

  __device__ Tiles(int tile, int stride) {
    own_a = DynamicShared<float>();
    own_b = own_a + tile * stride;
    other_a = own_b + tile * stride;
    other_b = other_a + tile * stride;
    p = other_b + tile * stride;
    ds = p + tile * (tile + 1);
    lse = ds + tile * (tile + 1);
    delta = lse + tile;
  }
};

// delta[i] = sum over d of dout[i, d] out[i, d]; a warp to a query.
constexpr int kDeltaThreads = 256;
template <typename T>
__global__ __launch_bounds__(kDeltaThreads) void DeltaKernel(
    AttentionGradientLaunch g) {
  const AttentionLaunch& a = g.forward;
  const int64_t row =
      (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) /
      kWarpSize;
  if (row >= a.batch * a.heads * a.queries) return;  // the whole warp
  const int64_t i = row % a.queries, head = row / a.queries;
  const int64_t b = head / a.heads, h = head % a.heads;
  const HeadRows<const T> out(a.out, b, h), dout(g.dout, b, h);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kWidth = kGroup<T>;
  const bool vector = out.vector() && dout.vector();
  float sum = 0.0f;
  for (int64_t d = lane * kWidth; d < a.width; d += kWarpSize * kWidth) {
    float x[kWidth], y[kWidth];
    LoadGroup(out.data + i * out.stride + d, a.width - d, vector, x);
    LoadGroup(dout.data + i * dout.stride + d, a.width - d, vector, y);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += x[k] * y[k];
  }
  sum = WarpSum(sum);
  if (lane == 0) g.deltas[row] = sum;
}

// lse and delta of kRows queries of a head.
template <int kRows>
__device__ __forceinline__ void LoadStatistics(const AttentionGradientLaunch& g,
                                               int64_t head, int64_t first,
                                               float* lse, float* delta) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kRows) return;
  const bool there = first + t < g.forward.queries;
  const int64_t at = head * g.forward.queries + first + t;
  lse[t] = there ? g.forward.lse[at] : 0.0f;
  delta[t] = there ? g.deltas[at] : 0.0f;
}

// p' and ds of one pair, from its products.
struct PairGradient {
  float p, ds;
};
__device__ __forceinline__ PairGradient GradientOf(const HeadMask& mask,
                                                   int64_t i, int64_t j,
                                                   float scale, float score,
                                                   float dp, float lse,
                                                   float delta) {
  const float p = expf(score * scale - lse);
  const float kept = mask.Kept(i, j);
  return {p * kept, p * (kept * dp - delta) * scale};
}

// A block to a tile of queries of a head, over the keys.
template <typename T, int kWidth>
__global__ __launch_bounds__(
    ThreadsOf(kWidth),
    MinBlocks(kWidth)) void QueryGradientKernel(AttentionGradientLaunch g) {
  constexpr int kTile = TileOf(kWidth), kOwn = kTile / kLanesOfRow;
  const AttentionLaunch& a = g.forward;
  const int width = static_cast<int>(a.width), stride = TileStride(a.width);
  const Tiles tiles(kTile, stride);
  const BlockOfHeads block(a.batch, a.heads, a.queries, kTile);
  const int64_t b = block.b, h = block.h, group = h / (a.heads / a.kv_heads);
  const HeadMask mask(a, b, h);
  const HeadRows<const T> k(a.k, b, group), v(a.v, b, group);
  LoadRows<kTile>(HeadRows<const T>(a.q, b, h), block.first, a.queries, a.width,
                  tiles.own_a);
  LoadRows<kTile>(HeadRows<const T>(g.dout, b, h), block.first, a.queries,
                  a.width, tiles.own_b);
  LoadStatistics<kTile>(g, b * a.heads + h, block.first, tiles.lse,
                        tiles.delta);
  const int row = static_cast<int>(threadIdx.x) / kLanesOfRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const int64_t i = block.first + row;
  float* const ds_row = tiles.ds + row * (kTile + 1);
  const int64_t end =
      a.causal && block.first + kTile < a.keys ? block.first + kTile : a.keys;
  float dq[kWidth] = {};
  for (int64_t j0 = 0; j0 < end; j0 += kTile) {
    __syncthreads();  // the last tile has been read
    LoadRows<kTile>(k, j0, a.keys, a.width, tiles.other_a);
    LoadRows<kTile>(v, j0, a.keys, a.width, tiles.other_b);
    __syncthreads();
    float s[kOwn], dp[kOwn];
    Products(tiles.own_a + row * stride, tiles.other_a, lane, a.width, s);
    Products(tiles.own_b + row * stride, tiles.other_b, lane, a.width, dp);
    unsigned seen = 0;
#pragma unroll
    for (int x = 0; x < kOwn; ++x) {
      const int at = lane + kLanesOfRow * x;
      if (!mask.Sees(i, j0 + at)) continue;
      seen |= 1u << at;
      ds_row[at] = GradientOf(mask, i, j0 + at, a.scale, s[x], dp[x],
                              tiles.lse[row], tiles.delta[row])
                       .ds;
    }
    seen = RowOr(seen);
    __syncwarp();  // the other lanes' ds
    for (int j = 0; j < kTile; ++j) {
      if ((seen >> j & 1) == 0) continue;
      AddScaled(ds_row[j], tiles.other_a + j * stride, lane, width, dq);
    }
  }
  if (i >= a.queries) return;
  StoreRow(HeadRows<T>(g.dq, b, h), i, lane, width, 1.0f, dq);
}

// A block to a tile of keys of a key head, over its query heads and queries.
template <typename T, int kWidth>
__global__ __launch_bounds__(
    ThreadsOf(kWidth),
    MinBlocks(kWidth)) void KeyGradientKernel(AttentionGradientLaunch g) {
  constexpr int kTile = TileOf(kWidth), kOwn = kTile / kLanesOfRow;
  const AttentionLaunch& a = g.forward;
  const int width = static_cast<int>(a.width), stride = TileStride(a.width);
  const Tiles tiles(kTile, stride);
  const BlockOfHeads block(a.batch, a.kv_heads, a.keys, kTile);
  const int64_t b = block.b, group = block.h;
  LoadRows<kTile>(HeadRows<const T>(a.k, b, group), block.first, a.keys,
                  a.width, tiles.own_a);
  LoadRows<kTile>(HeadRows<const T>(a.v, b, group), block.first, a.keys,
                  a.width, tiles.own_b);
  const int row = static_cast<int>(threadIdx.x) / kLanesOfRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const int64_t j = block.first + row;
  float* const p_row = tiles.p + row * (kTile + 1);
  float* const ds_row = tiles.ds + row * (kTile + 1);
  const int64_t heads = a.heads / a.kv_heads;
  float dk[kWidth] = {}, dv[kWidth] = {};
  for (int64_t h = group * heads; h < (group + 1) * heads; ++h) {
    const HeadMask mask(a, b, h);
    const HeadRows<const T> q(a.q, b, h), dout(g.dout, b, h);
    for (int64_t i0 = a.causal ? block.first : 0; i0 < a.queries; i0 += kTile) {
      __syncthreads();  // the last tile has been read
      LoadRows<kTile>(q, i0, a.queries, a.width, tiles.other_a);
      LoadRows<kTile>(dout, i0, a.queries, a.width, tiles.other_b);
      LoadStatistics<kTile>(g, b * a.heads + h, i0, tiles.lse, tiles.delta);
      __syncthreads();
      float s[kOwn], dp[kOwn];
      Products(tiles.own_a + row * stride, tiles.other_a, lane, a.width, s);
      Products(tiles.own_b + row * stride, tiles.other_b, lane, a.width, dp);
      unsigned seen = 0;
#pragma unroll
      for (int x = 0; x < kOwn; ++x) {
        const int at = lane + kLanesOfRow * x;
        if (!mask.Sees(i0 + at, j)) continue;
        seen |= 1u << at;
        const PairGradient pair =
            GradientOf(mask, i0 + at, j, a.scale, s[x], dp[x], tiles.lse[at],
                       tiles.delta[at]);
        p_row[at] = pair.p;
        ds_row[at] = pair.ds;
      }
      seen = RowOr(seen);
      __syncwarp();  // the other lanes' p and ds
      for (int i = 0; i < kTile; ++i) {
        if ((seen >> i & 1) == 0) continue;
        AddScaled(ds_row[i], tiles.other_a + i * stride, lane, width, dk);
        AddScaled(p_row[i], tiles.other_b + i * stride, lane, width, dv);
      }
    }
  }
  if (j >= a.keys) return;
  StoreRow(HeadRows<T>(g.dk, b, group), j, lane, width, 1.0f, dk);
  StoreRow(HeadRows<T>(g.dv, b, group), j, lane, width, 1.0f, dv);
}

}  // namespace

cudaError_t LaunchAttentionGradient(const AttentionGradientLaunch& launch,
                                    cudaStream_t stream) {
  const AttentionLaunch& a = launch.forward;
  return DispatchElement(a.type, [&]<typename T>(std::type_identity<T>) {
    const int64_t rows = a.batch * a.heads * a.queries;
    const unsigned blocks = static_cast<unsigned>(
        (rows * kWarpSize + kDeltaThreads - 1) / kDeltaThreads);
    if (blocks > 0) {
      const cudaError_t failed =
          Launch(&DeltaKernel<T>, blocks, kDeltaThreads, 0, stream, launch);
      if (failed != cudaSuccess) return failed;
    }
    return DispatchWidth(a.width, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kTile = TileOf(kWidth);
      constexpr unsigned kThreads = ThreadsOf(kWidth);
      const int64_t bytes = SharedBytes(a.width, kTile);
      constexpr int64_t kMost = SharedBytes(WidestHead(kWidth), kTile);
      const auto launch_for = [&](auto* kernel, int64_t heads, int64_t rows) {
        const unsigned tiles = BlocksOfHeads(a.batch, heads, rows, kTile);
        return tiles == 0 ? cudaSuccess
                          : LaunchWithShared(kernel, tiles, kThreads, bytes,
                                             kMost, stream, launch);
      };
      const cudaError_t failed =
          launch_for(&QueryGradientKernel<T, kWidth>, a.heads, a.queries);
      if (failed != cudaSuccess) return failed;
      return launch_for(&KeyGradientKernel<T, kWidth>, a.kv_heads, a.keys);
    });
  });
}

}  // namespace shardgraph::cuda
