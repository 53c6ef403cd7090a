// Intrinsics against their definition, and host threads with devices of their
// own. Nothing here knows of the double except for its control.

#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <functional>
#include <thread>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/intrinsics.h"
#include "tests/fake_cuda/planted.h"
#include "tests/fake_cuda/test_device.h"

namespace shardgraph::fake_cuda {
namespace {

TEST(Device, Intrinsics) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Reset({.seed = seed});
    TakeReport();
    cudaStream_t stream;
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<unsigned> got;
    {
      DeviceArray<unsigned> out(std::vector<unsigned>(kIntrinsics * 32, 0),
                                stream);
      ASSERT_CUDA(Intrinsics(out.get(), stream));
      got = out.Get();
    }
    ASSERT_CUDA(cudaStreamDestroy(stream));
    auto check = [&](int row, const std::function<unsigned(unsigned)>& want) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(got[32 * row + lane], want(lane))
            << "row " << row << " lane " << lane;
      }
    };
    auto check_float = [&](int row,
                           const std::function<float(unsigned)>& want) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        EXPECT_FLOAT_EQ(std::bit_cast<float>(got[32 * row + lane]), want(lane))
            << "row " << row << " lane " << lane;
      }
    };
    auto bf16 = [](float x) {
      return __bfloat162float(__float2bfloat16_rn(x));
    };
    auto fp16 = [](float x) { return __half2float(__float2half_rn(x)); };
    check(0, [](unsigned) { return 15; });
    check(1, [](unsigned l) { return 3 * (l / 8 * 8 + (l + 1) % 8); });
    check(2, [](unsigned l) { return 3 * (l < 4 ? l : l - 4); });
    check(3, [](unsigned l) { return 3 * (l % 16 + 4 < 16 ? l + 4 : l); });
    check(4, [](unsigned l) { return 3 * (l ^ 5); });
    check_float(5, [](unsigned l) { return (l ^ 1) * 0.5f; });
    check_float(6, [&](unsigned l) { return bf16((l ^ 2) * 1.5f); });
    check_float(7, [](unsigned l) { return (l < 31 ? l + 1 : l) * 0.25f; });
    check(8, [](unsigned l) { return l ^ 16; });
    check(9, [](unsigned) { return 0x49249249u; });
    check(10, [](unsigned) { return 2; });
    check(11, [](unsigned l) { return 0xffu << (l / 8 * 8); });
    check(12, [](unsigned) { return 496; });
    check(13, [](unsigned) { return static_cast<unsigned>(-9); });
    check(14, [](unsigned) { return 7; });
    check(15, [](unsigned) { return ~0u; });
    check(16, [](unsigned l) { return l < 16 ? 120 : 37600; });
    check(17, [](unsigned l) { return 4 * std::popcount(l); });
    check(18, [](unsigned l) { return std::countl_zero(l); });
    check(19, [](unsigned l) { return l == 0 ? 0 : std::countr_zero(l) + 4; });
    check(20, [](unsigned l) { return l * 0x10000000u >> 1; });
    check(21, [](unsigned l) { return l << 8 | 0x89; });
    check_float(23, [](unsigned l) { return 1 / std::sqrt(l + 1.0f); });
    check_float(24, [](unsigned l) { return std::fma(l, 1.1f, 0.3f); });
    check_float(25,
                [&](unsigned l) { return bf16(bf16(l * 0.37f) + bf16(1.7f)); });
    check_float(26,
                [&](unsigned l) { return bf16(bf16(l * 0.37f) * bf16(1.7f)); });
    check_float(27,
                [&](unsigned l) { return bf16(l * 0.1f) + bf16(l * 0.2f); });
    check_float(28, [&](unsigned l) { return fp16(fp16(l) * fp16(0.1f)); });
    check(29, [](unsigned l) { return l == 3 ? 1 : 32; });
    check(30, [](unsigned) { return 1; });
    EXPECT_EQ(got[32 * 31 + 31], 32u);
    Reset({});
    EXPECT_EQ(TakeReport(), "");
  }
}

// One rank per thread, each with its own device, streams and captures.
TEST(Device, RanksAsThreads) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Reset({.seed = seed, .devices = 4});
    TakeReport();
    auto rank = [](int r) {
      ASSERT_CUDA(cudaSetDevice(r));
      cudaStream_t s;
      ASSERT_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
      {
        const int n = 1000;
        DeviceArray<float> x(std::vector<float>(n, 1.0f), s),
            y(std::vector<float>(n, 0.0f), s),
            one(std::vector<float>(1, static_cast<float>(r)), s);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        ASSERT_CUDA(
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        EXPECT_CUDA(Affine(y.get(), x.get(), 2.0f, one.get(), n, s));
        EXPECT_CUDA(Affine(x.get(), y.get(), 1.0f, one.get(), n, s));
        ASSERT_CUDA(cudaStreamEndCapture(s, &graph));
        ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        ASSERT_CUDA(cudaGraphDestroy(graph));
        float want = 1.0f;
        for (int i = 0; i < 5; ++i) {
          ASSERT_CUDA(cudaGraphLaunch(exec, s));
          want = 2 * want + 2 * r;
        }
        EXPECT_EQ(x.Get(), std::vector<float>(n, want));
        ASSERT_CUDA(cudaGraphExecDestroy(exec));
      }
      ASSERT_CUDA(cudaStreamDestroy(s));
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < 4; ++r) threads.emplace_back(rank, r);
    for (auto& t : threads) t.join();
    Reset({});
    EXPECT_EQ(TakeReport(), "");
  }
}

TEST(DeviceDeathTest, HostAccessFaults) {
  Reset({.protect_device_memory = true});
  TakeReport();
  cudaStream_t s;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  {
    DeviceArray<float> x(std::vector<float>(100, 1.0f), s),
        one(std::vector<float>(1, 1.0f), s);
    ASSERT_CUDA(Affine(x.get(), x.get(), 2.0f, one.get(), 100, s));
    EXPECT_EQ(x.Get()[7], 3.0f);
    EXPECT_DEATH(x.get()[0] = 1.0f, "");
  }
  ASSERT_CUDA(cudaStreamDestroy(s));
  Reset({});
  EXPECT_EQ(TakeReport(), "");
}

}  // namespace
}  // namespace shardgraph::fake_cuda
