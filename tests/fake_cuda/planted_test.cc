// Planted mistakes in kernels and between streams: each must be found.

#include "tests/fake_cuda/planted.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/test_device.h"

namespace shardgraph::fake_cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const bool kChecked = KernelsAreChecked();

#ifdef SG_ASAN
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

// The access checker and the block's own checks.

// Runs one kernel on 512 floats; returns the report and the final error.
std::string Report(Mistake mistake, uint64_t seed, cudaError_t* error,
                   std::vector<float>* result = nullptr) {
  std::string report;
  {
    TwoStreams s(seed);
    const int n = 512;
    DeviceArray<float> x(n, s.a);
    std::vector<float> values(n);
    for (int i = 0; i < n; ++i) values[i] = 1.0f / (i + 1);
    if (mistake == Mistake::kLastBlock || mistake == Mistake::kMissingFence) {
      values[1] = 0.0f;
    }
    // kReadUnwritten: only fresh memory.
    if (mistake != Mistake::kReadUnwritten) x.Set(values);
    const int blocks = mistake == Mistake::kBlocksCollide ||
                               mistake == Mistake::kNone ||
                               mistake == Mistake::kAtomicFloat ||
                               mistake == Mistake::kLastBlock ||
                               mistake == Mistake::kMissingFence
                           ? 2
                           : 1;
    EXPECT_CUDA(RunPlanted(mistake, x.get(), n, blocks, s.a));
    *error = cudaStreamSynchronize(s.a);
    report = TakeReport();
    if (result != nullptr && *error == cudaSuccess) *result = x.Get();
  }
  Reset({});
  TakeReport();
  return report;
}

TEST(Planted, HonestKernelsAreClean) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (Mistake m : {Mistake::kNone, Mistake::kLastBlock}) {
      cudaError_t error;
      std::vector<float> x;
      EXPECT_EQ(Report(m, seed, &error, &x), "");
      EXPECT_EQ(error, cudaSuccess);
      if (m == Mistake::kLastBlock) {
        EXPECT_EQ(x[0], 3.0f);
      }
      if (m == Mistake::kNone) {
        EXPECT_EQ(x[0], 1.0f / 256);
      }
    }
  }
}

TEST(Planted, FoundWithoutChecker) {
  cudaError_t error;
  EXPECT_THAT(Report(Mistake::kEarlyReturn, 0, &error),
              HasSubstr("barrier never completed"));
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_THAT(Report(Mistake::kDivergentShuffle, 0, &error),
              HasSubstr("barrier never completed"));
  EXPECT_THAT(Report(Mistake::kShuffleInactive, 0, &error),
              HasSubstr("does not take part"));
  if (!kAddressSanitizer) {
    EXPECT_THAT(Report(Mistake::kStackOverflow, 0, &error),
                HasSubstr("stack overflow at planted"));
  }
  if (kAddressSanitizer) {
    EXPECT_DEATH(Report(Mistake::kWritePastEnd, 0, &error),
                 "AddressSanitizer.*PastEndKernel");
    EXPECT_DEATH(Report(Mistake::kDynamicSharedPastEnd, 0, &error),
                 "AddressSanitizer: use-after-poison");
    return;
  }
  EXPECT_THAT(
      Report(Mistake::kWritePastEnd, 0, &error),
      HasSubstr("0 bytes past the end of device allocation #1 of 2048 bytes"));
  EXPECT_THAT(Report(Mistake::kDynamicSharedPastEnd, 0, &error),
              HasSubstr("dynamic shared"));
  // The compiler's own check comes first, or the double's.
  EXPECT_THAT(Report(Mistake::kMisaligned, 0, &error),
              AnyOf(HasSubstr("undefined behaviour"), HasSubstr("misaligned")));
  if (!kChecked) {
    EXPECT_THAT(Report(Mistake::kFarPastEnd, 0, &error),
                HasSubstr("illegal address"));
    EXPECT_EQ(error, cudaErrorIllegalAddress);
  }
}

// Without the checker these show as results that depend on the seed, or as NaN.
TEST(Planted, FoundBySeeds) {
  for (Mistake m : {Mistake::kMissingBarrier, Mistake::kMissingWarpSync,
                    Mistake::kBlocksCollide, Mistake::kAtomicFloat}) {
    std::set<std::string> results;
    for (uint64_t seed = 1; seed <= 16; ++seed) {
      cudaError_t error;
      std::vector<float> x;
      Report(m, seed, &error, &x);
      results.insert(Bits(x));
    }
    EXPECT_GT(results.size(), 1u) << static_cast<int>(m);
  }
  cudaError_t error;
  std::vector<float> x;
  Report(Mistake::kSharedUnwritten, 0, &error, &x);
  EXPECT_TRUE(std::isnan(x[5]));
  Report(Mistake::kReadUnwritten, 0, &error, &x);
  EXPECT_TRUE(std::isnan(x[0]));
}

TEST(Planted, FoundByChecker) {
  if (!kChecked) GTEST_SKIP() << "kernels not compiled for the checker";
  const std::pair<Mistake, const char*> cases[] = {
      {Mistake::kMissingBarrier, "race in a block: read by ReverseKernel"},
      {Mistake::kMissingWarpSync, "race in a block: read by WarpReverseKernel"},
      {Mistake::kWritePastEnd, "outside memory: write by PastEndKernel"},
      {Mistake::kReadPastEnd, "outside memory: read by ReadPastEndKernel"},
      {Mistake::kFarPastEnd, "outside memory: write by PastEndKernel"},
      {Mistake::kReadUnwritten, "never written: read by ReadUnwrittenKernel"},
      {Mistake::kSharedUnwritten,
       "never written: read by SharedUnwrittenKernel"},
      {Mistake::kDynamicSharedPastEnd,
       "outside memory: write by DynamicSharedKernel"},
      {Mistake::kBlocksCollide, "race between blocks: write by CollideKernel"},
      {Mistake::kHostPointer, "host memory: read by ReverseKernel"},
      {Mistake::kMissingFence, "race between blocks: read by LastBlockKernel"},
  };
  for (auto [mistake, text] : cases) {
    cudaError_t error;
    const std::string report = Report(mistake, 0, &error);
    EXPECT_THAT(report, HasSubstr(text));
  }
}

// Order between streams.

// x -> y on stream a, y -> z on stream b, with or without the edge between.
std::vector<float> Pipeline(uint64_t seed, bool with_edge,
                            std::string* report) {
  std::vector<float> result;
  {
    TwoStreams s(seed);
    const int n = 1000;
    DeviceArray<float> x(std::vector<float>(n, 2.0f), s.a),
        y(std::vector<float>(n, 0.0f), s.a), z(n, s.b),
        bias(std::vector<float>(1, 1.0f), s.a);
    EXPECT_CUDA(Affine(y.get(), x.get(), 10, bias.get(), n, s.a));
    if (with_edge) {
      EXPECT_CUDA(cudaEventRecord(s.fork, s.a));
      EXPECT_CUDA(cudaStreamWaitEvent(s.b, s.fork, 0));
    }
    EXPECT_CUDA(Affine(z.get(), y.get(), 1, bias.get(), n, s.b));
    result = z.Get();
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  *report = TakeReport();
  return result;
}

TEST(Streams, MissingEventEdge) {
  std::set<std::string> with, without;
  int reports = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::string report;
    with.insert(Bits(Pipeline(seed, true, &report)));
    EXPECT_EQ(report, "");
    without.insert(Bits(Pipeline(seed, false, &report)));
    if (kChecked) {
      EXPECT_THAT(report, HasSubstr("missing order: "));
      reports += !report.empty();
    }
  }
  EXPECT_EQ(with.size(), 1u);
  EXPECT_GT(without.size(), 1u);
  if (kChecked) {
    EXPECT_EQ(reports, 20);
  }
}

TEST(Streams, UseAfterFree) {
  if (kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer ends the program";
  std::string report;
  cudaError_t error;
  {
    TwoStreams s(0);
    DeviceArray<float> x(std::vector<float>(64, 1.0f), s.a),
        bias(std::vector<float>(1, 1.0f), s.a);
    float* y = nullptr;
    ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&y), 64 * sizeof(float)));
    ASSERT_CUDA(Affine(y, x.get(), 1, bias.get(), 64, s.a));
    ASSERT_CUDA(cudaFree(y));  // Still in use by enqueued work.
    error = cudaStreamSynchronize(s.a);
    report = TakeReport();
    EXPECT_THAT(report, HasSubstr("freed device allocation #5 of 256 bytes"));
    EXPECT_EQ(error, cudaErrorIllegalAddress);
  }
  Reset({});
  TakeReport();
}

TEST(Streams, PinnedBufferReusedTooEarly) {
  std::set<float> results;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    TwoStreams s(seed);
    float *host, *device;
    ASSERT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host), 4));
    ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&device), 4));
    *host = 1;
    ASSERT_CUDA(cudaMemcpyAsync(device, host, 4, cudaMemcpyHostToDevice, s.a));
    *host = 2;  // The copy may not have happened yet.
    float got = 0;
    ASSERT_CUDA(cudaMemcpyAsync(&got, device, 4, cudaMemcpyDeviceToHost, s.a));
    results.insert(got);
    cudaFree(device);
    cudaFreeHost(host);
  }
  EXPECT_EQ(results, (std::set<float>{1, 2}));
}

TEST(Streams, LegacyStreamWaitsForBlockingStreams) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    {
      TwoStreams s(seed, cudaStreamDefault);
      DeviceArray<float> x(std::vector<float>(64, 1.0f), s.a),
          y(std::vector<float>(64, 0.0f), s.a),
          bias(std::vector<float>(1, 1.0f), s.a);
      ASSERT_CUDA(Affine(y.get(), x.get(), 1, bias.get(), 64, s.a));
      float got[64];
      ASSERT_CUDA(
          cudaMemcpy(got, y.get(), sizeof(got), cudaMemcpyDeviceToHost));
      EXPECT_EQ(got[5], 2.0f);
    }
    EXPECT_EQ(TakeReport(), "");
  }
}

TEST(Launch, ConfigurationErrors) {
  TwoStreams s(0);
  float* x;
  ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&x), 1024));
  // Over the limits of block, grid and shared memory.
  EXPECT_EQ(RunShaped(x, dim3(1), dim3(1025), 0, s.a),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunShaped(x, dim3(1), dim3(1, 1, 65), 0, s.a),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunShaped(x, dim3(1, 65536), dim3(1), 0, s.a),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunShaped(x, dim3(1), dim3(1), (47 << 10) + 1, s.a),
            cudaErrorInvalidValue);
  EXPECT_CUDA(RunShaped(x, dim3(1), dim3(1), 47 << 10, s.a));
  EXPECT_CUDA(AllowShared(200 << 10));
  EXPECT_CUDA(RunShaped(x, dim3(1), dim3(1), 200 << 10, s.a));
  EXPECT_EQ(AllowShared(228 << 10), cudaErrorInvalidValue);
  EXPECT_CUDA(AllowShared(48 << 10));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(RunPlanted(Mistake::kNone, x, 256, 0, s.a),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaStream_t gone;
  ASSERT_CUDA(cudaStreamCreate(&gone));
  ASSERT_CUDA(cudaStreamDestroy(gone));
  EXPECT_EQ(RunPlanted(Mistake::kNone, x, 256, 1, gone),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemcpyAsync(x, x, 4, cudaMemcpyHostToDevice, s.a),
            cudaErrorInvalidValue);
  ASSERT_CUDA(cudaStreamSynchronize(s.a));  // two of the launches were right
  ASSERT_CUDA(cudaFree(x));
  EXPECT_EQ(cudaFree(x), cudaErrorInvalidValue);
}

TEST(Leaks, AreReported) {
  Reset({});
  TakeReport();
  void* p;
  cudaStream_t s;
  ASSERT_CUDA(cudaMalloc(&p, 16));
  ASSERT_CUDA(cudaStreamCreate(&s));
  Reset({});
  EXPECT_EQ(TakeReport(), "leak: 1 allocations\nleak: 1 streams\n");
}

}  // namespace
}  // namespace shardgraph::fake_cuda
