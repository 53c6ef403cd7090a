// Capture and replay: what is refused, what is frozen, what is found.

#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/planted.h"
#include "tests/fake_cuda/test_device.h"

namespace shardgraph::fake_cuda {
namespace {

using ::testing::HasSubstr;

const bool kChecked = KernelsAreChecked();

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

// Capture.

// A miniature step: on a, the forward; on b, meanwhile, another; joined; then
// the optimizer, whose learning rate changes between replays.
TEST(Capture, ForkJoinReplayWithChangedScalars) {
  std::set<std::string> results;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    {
      TwoStreams s(seed);
      const int n = 1000;
      DeviceArray<float> w(std::vector<float>(n, 1.0f), s.a), g1(n, s.a),
          g2(n, s.a), g3(n, s.a), one({std::vector<float>(1, 1.0f)}, s.a),
          rate(1, s.a);
      auto step = [&] {
        EXPECT_CUDA(Affine(g1.get(), w.get(), 0.5f, one.get(), n, s.a));
        EXPECT_CUDA(cudaEventRecord(s.fork, s.a));
        EXPECT_CUDA(cudaStreamWaitEvent(s.b, s.fork, 0));
        EXPECT_CUDA(Affine(g2.get(), g1.get(), 2.0f, one.get(), n, s.b));
        EXPECT_CUDA(Affine(g2.get(), g2.get(), 1.0f, one.get(), n, s.b));
        EXPECT_CUDA(cudaEventRecord(s.join, s.b));
        EXPECT_CUDA(Affine(g3.get(), g1.get(), 1.0f, one.get(), n, s.a));
        EXPECT_CUDA(cudaStreamWaitEvent(s.a, s.join, 0));
        EXPECT_CUDA(Sgd(w.get(), g2.get(), rate.get(), n, s.a));
      };
      auto set_step = [&](int i) { rate.Set({1e-2f / (i + 1)}); };
      for (int i = 0; i < 3; ++i) {
        set_step(i);
        step();
      }
      const auto eager = w.Get();
      // The same three steps as replays of one graph.
      w.Set(std::vector<float>(n, 1.0f));
      CapturedGraph graph(s.a, step);
      EXPECT_EQ(graph.nodes(), 5u);
      EXPECT_EQ(w.Get(), std::vector<float>(n, 1.0f));  // Nothing was executed.
      const auto before = GetCounters();
      for (int i = 0; i < 3; ++i) {
        set_step(i);
        graph.Launch(s.a);
      }
      EXPECT_EQ(w.Get(), eager);
      const auto after = GetCounters();
      EXPECT_EQ(after.kernels - before.kernels, 15);
      EXPECT_EQ(after.allocations - before.allocations, 0);
      results.insert(Bits(eager));
    }
    Reset({});
    EXPECT_EQ(TakeReport(), "") << seed;
  }
  EXPECT_EQ(results.size(), 1u);
}

// A learning rate passed by value is frozen: the replay repeats the first.
TEST(Capture, AnArgumentByValueIsFrozen) {
  TwoStreams s(0);
  const int n = 10;
  DeviceArray<float> x(std::vector<float>(n, 1.0f), s.a), y(n, s.a),
      one(std::vector<float>(1, 1.0f), s.a);
  float scale = 2.0f;
  auto step = [&] {
    EXPECT_CUDA(Affine(y.get(), x.get(), scale, one.get(), n, s.a));
  };
  CapturedGraph graph(s.a, step);
  scale = 3.0f;
  graph.Launch(s.a);
  const auto captured = y.Get();
  step();
  EXPECT_EQ(captured, std::vector<float>(n, 3.0f));
  EXPECT_EQ(y.Get(), std::vector<float>(n, 4.0f));
}

// The next input is copied while the last replay may still read it: the edge
// from replay to copy stream is missing, or there.
TEST(Capture, HazardBetweenConsecutiveReplays) {
  for (const bool with_edge : {false, true}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      TwoStreams s(seed);
      const int n = 300;
      DeviceArray<float> x(std::vector<float>(n, 1.0f), s.a), y(n, s.a),
          one(std::vector<float>(1, 1.0f), s.a);
      CapturedGraph graph(s.a, [&] {
        EXPECT_CUDA(Affine(y.get(), x.get(), 1.0f, one.get(), n, s.a));
      });
      graph.Launch(s.a);
      if (with_edge) {
        EXPECT_CUDA(cudaEventRecord(s.fork, s.a));
        EXPECT_CUDA(cudaStreamWaitEvent(s.b, s.fork, 0));
      }
      EXPECT_CUDA(cudaMemsetAsync(x.get(), 0, x.Bytes(), s.b));
      EXPECT_CUDA(cudaEventRecord(s.join, s.b));
      EXPECT_CUDA(cudaStreamWaitEvent(s.a, s.join, 0));
      graph.Launch(s.a);
      EXPECT_EQ(y.Get(), std::vector<float>(n, 1.0f));
      EXPECT_CUDA(cudaDeviceSynchronize());
      const std::string report = TakeReport();
      if (with_edge) {
        EXPECT_EQ(report, "");
      } else if (kChecked) {
        EXPECT_THAT(report, HasSubstr("missing order: ")) << seed;
      }
    }
  }
}

TEST(Capture, UseAfterFreeInAReplay) {
  if (kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer ends the program";
  {
    TwoStreams s(0);
    DeviceArray<float> x(std::vector<float>(64, 1.0f), s.a),
        one(std::vector<float>(1, 1.0f), s.a);
    float* y = nullptr;
    ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&y), 64 * sizeof(float)));
    CapturedGraph graph(
        s.a, [&] { EXPECT_CUDA(Affine(y, x.get(), 1, one.get(), 64, s.a)); });
    graph.Launch(s.a);
    ASSERT_CUDA(cudaStreamSynchronize(s.a));
    EXPECT_EQ(TakeReport(), "");
    ASSERT_CUDA(cudaFree(y));
    graph.Launch(s.a);
    EXPECT_EQ(cudaStreamSynchronize(s.a), cudaErrorIllegalAddress);
    EXPECT_THAT(TakeReport(), HasSubstr("freed device allocation"));
  }
  Reset({});
  TakeReport();
}

// The fork is taken before the producer is enqueued, so the graph lacks the
// edge.
TEST(Capture, MissingEdgeInGraph) {
  std::set<std::string> results;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TwoStreams s(seed);
    const int n = 1000;
    DeviceArray<float> x(std::vector<float>(n, 2.0f), s.a),
        y(std::vector<float>(n, 0.0f), s.a), z(n, s.a),
        one(std::vector<float>(1, 1.0f), s.a);
    CapturedGraph graph(s.a, [&] {
      EXPECT_CUDA(cudaEventRecord(s.fork, s.a));
      EXPECT_CUDA(Affine(y.get(), x.get(), 10, one.get(), n, s.a));
      EXPECT_CUDA(cudaStreamWaitEvent(s.b, s.fork, 0));
      EXPECT_CUDA(Affine(z.get(), y.get(), 1, one.get(), n, s.b));
      EXPECT_CUDA(cudaEventRecord(s.join, s.b));
      EXPECT_CUDA(cudaStreamWaitEvent(s.a, s.join, 0));
    });
    graph.Launch(s.a);
    results.insert(Bits(z.Get()));
    const std::string report = TakeReport();
    if (kChecked) {
      EXPECT_THAT(report, HasSubstr("missing order: ")) << seed;
    }
  }
  EXPECT_GT(results.size(), 1u);
}

// One capture whose body breaks a rule: what the call and EndCapture return.
struct Outcome {
  cudaError_t call, end;
};
Outcome CaptureWith(const std::function<cudaError_t(TwoStreams&, float*)>& body,
                    unsigned flags = cudaStreamNonBlocking,
                    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  Outcome outcome;
  {
    TwoStreams s(0, flags);
    float* x;
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&x), 1024));
    EXPECT_CUDA(cudaMemsetAsync(x, 0, 1024, s.a));
    EXPECT_CUDA(cudaStreamSynchronize(s.a));
    EXPECT_CUDA(cudaStreamBeginCapture(s.a, mode));
    EXPECT_CUDA(RunPlanted(Mistake::kNone, x, 256, 1, s.a));
    outcome.call = body(s, x);
    cudaGraph_t graph;
    outcome.end = cudaStreamEndCapture(s.a, &graph);
    EXPECT_EQ(outcome.end == cudaSuccess, graph != nullptr);
    if (graph != nullptr) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
    EXPECT_CUDA(cudaFree(x));
  }
  return outcome;
}

#define EXPECT_OUTCOME(outcome, call_error, end_error) \
  do {                                                 \
    const Outcome o = (outcome);                       \
    EXPECT_EQ(o.call, call_error);                     \
    EXPECT_EQ(o.end, end_error);                       \
  } while (false)

TEST(Capture, ErrorCodes) {
  // Fine: events forked and joined.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float* x) {
                   cudaEventRecord(s.fork, s.a);
                   cudaStreamWaitEvent(s.b, s.fork, 0);
                   RunPlanted(Mistake::kNone, x, 256, 1, s.b);
                   cudaEventRecord(s.join, s.b);
                   return cudaStreamWaitEvent(s.a, s.join, 0);
                 }),
                 cudaSuccess, cudaSuccess);
  // 900: allocation, synchronization.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams&, float*) {
                   void* p;
                   return cudaMalloc(&p, 16);
                 }),
                 cudaErrorStreamCaptureUnsupported,
                 cudaErrorStreamCaptureInvalidated);
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float*) {
                   return cudaStreamSynchronize(s.a);
                 }),
                 cudaErrorStreamCaptureUnsupported,
                 cudaErrorStreamCaptureInvalidated);
  EXPECT_OUTCOME(
      CaptureWith([](TwoStreams&, float*) { return cudaDeviceSynchronize(); }),
      cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
  // Allowed in relaxed mode.
  EXPECT_OUTCOME(CaptureWith(
                     [](TwoStreams&, float*) {
                       void* p;
                       EXPECT_CUDA(cudaMalloc(&p, 16));
                       return cudaFree(p);
                     },
                     cudaStreamNonBlocking, cudaStreamCaptureModeRelaxed),
                 cudaSuccess, cudaSuccess);
  // 901: anything after such a mistake.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float* x) {
                   cudaStreamSynchronize(s.a);
                   return RunPlanted(Mistake::kNone, x, 256, 1, s.a);
                 }),
                 cudaErrorStreamCaptureInvalidated,
                 cudaErrorStreamCaptureInvalidated);
  // 902: two captures meet.
  EXPECT_OUTCOME(
      CaptureWith([](TwoStreams& s, float*) {
        cudaStreamBeginCapture(s.b, cudaStreamCaptureModeGlobal);
        cudaEventRecord(s.fork, s.b);
        const cudaError_t error = cudaStreamWaitEvent(s.a, s.fork, 0);
        cudaGraph_t graph;
        EXPECT_EQ(cudaStreamEndCapture(s.b, &graph),
                  cudaErrorStreamCaptureInvalidated);
        return error;
      }),
      cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureInvalidated);
  // 903: ended on a stream that only joined.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float*) {
                   cudaEventRecord(s.fork, s.a);
                   cudaStreamWaitEvent(s.b, s.fork, 0);
                   cudaGraph_t graph;
                   return cudaStreamEndCapture(s.b, &graph);
                 }),
                 cudaErrorStreamCaptureUnmatched,
                 cudaErrorStreamCaptureInvalidated);
  // 904: forked, not joined; and joined, then used again.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float* x) {
                   cudaEventRecord(s.fork, s.a);
                   cudaStreamWaitEvent(s.b, s.fork, 0);
                   return RunPlanted(Mistake::kNone, x, 256, 1, s.b);
                 }),
                 cudaSuccess, cudaErrorStreamCaptureUnjoined);
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float* x) {
                   cudaEventRecord(s.fork, s.a);
                   cudaStreamWaitEvent(s.b, s.fork, 0);
                   cudaEventRecord(s.join, s.b);
                   cudaStreamWaitEvent(s.a, s.join, 0);
                   return RunPlanted(Mistake::kNone, x, 256, 1, s.b);
                 }),
                 cudaSuccess, cudaErrorStreamCaptureUnjoined);
  // 905: an event recorded outside.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float*) {
                   EXPECT_CUDA(cudaEventRecord(s.fork, s.b));
                   return cudaStreamWaitEvent(s.a, s.fork, 0);
                 }),
                 cudaErrorStreamCaptureIsolation,
                 cudaErrorStreamCaptureInvalidated);
  // 906: the legacy stream while a blocking stream captures; fine if it is not.
  EXPECT_OUTCOME(CaptureWith(
                     [](TwoStreams&, float* x) {
                       return RunPlanted(Mistake::kNone, x, 256, 1, nullptr);
                     },
                     cudaStreamDefault),
                 cudaErrorStreamCaptureImplicit,
                 cudaErrorStreamCaptureInvalidated);
  EXPECT_OUTCOME(CaptureWith([](TwoStreams&, float* x) {
                   return RunPlanted(Mistake::kNone, x, 256, 1, nullptr);
                 }),
                 cudaSuccess, cudaSuccess);
  // 907: waiting for a captured event.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float*) {
                   EXPECT_CUDA(cudaEventRecord(s.fork, s.a));
                   return cudaEventSynchronize(s.fork);
                 }),
                 cudaErrorCapturedEvent, cudaErrorStreamCaptureInvalidated);
  // 908: ended by another thread.
  EXPECT_OUTCOME(CaptureWith([](TwoStreams& s, float*) {
                   cudaError_t error;
                   std::thread([&] {
                     cudaGraph_t graph;
                     error = cudaStreamEndCapture(s.a, &graph);
                   }).join();
                   return error;
                 }),
                 cudaErrorStreamCaptureWrongThread, cudaSuccess);
  // Another thread's allocation: spoils a global capture, not a thread-local
  // one.
  auto allocate_elsewhere = [](TwoStreams&, float*) {
    cudaError_t error;
    std::thread([&] {
      void* p = nullptr;
      error = cudaMalloc(&p, 16);
      if (error == cudaSuccess) cudaFree(p);
    }).join();
    return error;
  };
  EXPECT_OUTCOME(CaptureWith(allocate_elsewhere),
                 cudaErrorStreamCaptureUnsupported,
                 cudaErrorStreamCaptureInvalidated);
  EXPECT_OUTCOME(CaptureWith(allocate_elsewhere, cudaStreamNonBlocking,
                             cudaStreamCaptureModeThreadLocal),
                 cudaSuccess, cudaSuccess);
  TakeReport();
}

}  // namespace
}  // namespace shardgraph::fake_cuda
