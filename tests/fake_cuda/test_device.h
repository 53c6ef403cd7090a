// What tests on the double share: arrays on the device, two streams in a fresh
// world, a captured graph.
#ifndef TESTS_FAKE_CUDA_TEST_DEVICE_H_
#define TESTS_FAKE_CUDA_TEST_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"

namespace shardgraph::fake_cuda {

#define ASSERT_CUDA(expression) ASSERT_EQ((expression), cudaSuccess)
#define EXPECT_CUDA(expression) EXPECT_EQ((expression), cudaSuccess)

// Copies through pinned memory on `stream`; the destructor frees.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(size_t count, cudaStream_t stream)
      : count_(count), stream_(stream) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), Bytes()));
    EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), Bytes()));
  }
  DeviceArray(const std::vector<T>& values, cudaStream_t stream)
      : DeviceArray(values.size(), stream) {
    Set(values);
  }
  ~DeviceArray() {
    // Unchecked: after a planted mistake every call returns its error.
    cudaFree(data_);
    cudaFreeHost(host_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() { return data_; }
  size_t Bytes() const { return count_ * sizeof(T); }

  void Set(const std::vector<T>& values) {
    std::copy(values.begin(), values.end(), host_);
    EXPECT_CUDA(cudaMemcpyAsync(data_, host_, Bytes(), cudaMemcpyHostToDevice,
                                stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
  }
  std::vector<T> Get() {
    EXPECT_CUDA(cudaMemcpyAsync(host_, data_, Bytes(), cudaMemcpyDeviceToHost,
                                stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    return std::vector<T>(host_, host_ + count_);
  }

 private:
  size_t count_;
  cudaStream_t stream_;
  T* data_ = nullptr;
  T* host_ = nullptr;
};

// The bytes of values, for sets of results that must be equal bit by bit.
inline std::string Bits(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
}

// Two streams and what they need, in a fresh world.
struct TwoStreams {
  explicit TwoStreams(uint64_t seed, unsigned flags = cudaStreamNonBlocking) {
    Reset({.seed = seed});
    TakeReport();
    EXPECT_CUDA(cudaStreamCreateWithFlags(&a, flags));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&b, flags));
    EXPECT_CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    EXPECT_CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  }
  ~TwoStreams() {
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
  cudaStream_t a, b;
  cudaEvent_t fork, join;
};

// What `body` enqueues on `stream` and on streams that it joins to it.
class CapturedGraph {
 public:
  CapturedGraph(cudaStream_t stream, const std::function<void()>& body) {
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    body();
    EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
    EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes_));
    EXPECT_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  }
  ~CapturedGraph() { cudaGraphExecDestroy(exec_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  size_t nodes() const { return nodes_; }
  void Launch(cudaStream_t stream) {
    EXPECT_CUDA(cudaGraphLaunch(exec_, stream));
  }

 private:
  size_t nodes_ = 0;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_TEST_DEVICE_H_
