#include "tests/fake_cuda/intrinsics.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace shardgraph::fake_cuda {
namespace {

using cuda::kFullWarp;

__global__ void IntrinsicsKernel(unsigned* out) {
  const unsigned lane = threadIdx.x;
  int row = 0;
  auto put = [&](unsigned value) { out[32 * row++ + lane] = value; };
  auto put_float = [&](float value) { put(__float_as_uint(value)); };

  put(__shfl_sync(kFullWarp, lane * 3, 5));                           // 0
  put(__shfl_sync(kFullWarp, lane * 3, lane + 1, 8));                 // 1
  put(__shfl_up_sync(kFullWarp, lane * 3, 4));                        // 2
  put(__shfl_down_sync(kFullWarp, lane * 3, 4, 16));                  // 3
  put(__shfl_xor_sync(kFullWarp, lane * 3, 5));                       // 4
  put_float(__shfl_xor_sync(kFullWarp, lane * 0.5f, 1));              // 5
  put_float(__bfloat162float(                                         // 6
      __shfl_xor_sync(kFullWarp, __float2bfloat16_rn(lane * 1.5f), 2)));
  put_float(__half2float(                                             // 7
      __shfl_down_sync(kFullWarp, __float2half_rn(lane * 0.25f), 1)));
  put(static_cast<unsigned>(                                          // 8
      __shfl_xor_sync(kFullWarp, lane * 0x100000001ull, 16) >> 32));
  put(__ballot_sync(kFullWarp, lane % 3 == 0));                       // 9
  put(__any_sync(kFullWarp, lane == 40) + 2 * __all_sync(kFullWarp, lane < 32));
  put(__match_any_sync(kFullWarp, lane / 8));                         // 11
  put(__reduce_add_sync(kFullWarp, lane));                            // 12
  put(__reduce_max_sync(kFullWarp, static_cast<int>(lane) - 40));     // 13
  put(__reduce_min_sync(kFullWarp, lane + 7));                        // 14
  put(__reduce_or_sync(kFullWarp, 1u << lane));                       // 15
  // Half a warp each, through different masks.
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  if (lane < 16) {
    put(__reduce_add_sync(half, lane));                               // 16
  } else {
    put(__reduce_add_sync(half, 100 * lane));
  }
  put(__popc(lane * 0x01010101u));                                    // 17
  put(__clz(static_cast<int>(lane)));                                 // 18
  put(__ffs(static_cast<int>(lane << 3)));                            // 19
  put(__umulhi(lane * 0x10000000u, 0x80000000u));                     // 20
  put(__funnelshift_l(0x89abcdefu, lane, 8));                         // 21
  put(__byte_perm(0x33221100u, 0x77665544u, 0x6240u + lane % 8));     // 22
  put_float(rsqrtf(lane + 1.0f));                                     // 23
  put_float(__fmaf_rn(lane, 1.1f, 0.3f));                             // 24
  const __nv_bfloat16 a = __float2bfloat16_rn(lane * 0.37f);
  const __nv_bfloat16 b = __float2bfloat16_rn(1.7f);
  put_float(__bfloat162float(__hadd(a, b)));                          // 25
  put_float(__bfloat162float(a * b));                                 // 26
  const __nv_bfloat162 pair = __floats2bfloat162_rn(lane * 0.1f, lane * 0.2f);
  const float2 both = __bfloat1622float2(pair);
  put_float(both.x + both.y);                                         // 27
  put_float(__half2float(__hmul(__float2half_rn(lane), __float2half_rn(0.1f))));
  put(lane == 3 ? 1u : static_cast<unsigned>(warpSize));              // 29
  put(atomicAdd(&out[32 * 31 + 31], 1u) < 32u);                       // 30
}

}  // namespace

cudaError_t Intrinsics(unsigned* out, cudaStream_t stream) {
  return cuda::Launch(IntrinsicsKernel, 1, 32, 0, stream, out);
}

}  // namespace shardgraph::fake_cuda
