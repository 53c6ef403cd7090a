#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "tools/build/cuda_library_test_kernel.h"

#define RETURN_IF_CUDA_ERROR(expression)                                 \
  do {                                                                   \
    const cudaError_t error = (expression);                              \
    if (error != cudaSuccess)                                            \
      return absl::StrCat(#expression, ": ", cudaGetErrorString(error)); \
  } while (false)

namespace {

__global__ void Axpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::);  // legal for sm_90a only
#endif
  if (i < n) y[i] += __bfloat162float(__float2bfloat16(a)) * x[i];
}

}  // namespace

std::string ReplayAxpy(float a, const std::vector<float>& x,
                       std::vector<float>& y) {
  const int n = static_cast<int>(x.size());
  const size_t bytes = n * sizeof(float);
  float* device_x;
  float* device_y;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RETURN_IF_CUDA_ERROR(cudaMalloc(&device_x, bytes));
  RETURN_IF_CUDA_ERROR(cudaMalloc(&device_y, bytes));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_x, x.data(), bytes,
                                       cudaMemcpyHostToDevice, stream));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_y, y.data(), bytes,
                                       cudaMemcpyHostToDevice, stream));
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  RETURN_IF_CUDA_ERROR(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Axpy<<<(n + 255) / 256, 256, 0, stream>>>(a, device_x, device_y, n);
  RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(stream, &graph));
  RETURN_IF_CUDA_ERROR(cudaGraphInstantiate(&executable, graph, 0));
  RETURN_IF_CUDA_ERROR(cudaGraphLaunch(executable, stream));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(y.data(), device_y, bytes,
                                       cudaMemcpyDeviceToHost, stream));
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  RETURN_IF_CUDA_ERROR(cudaGraphExecDestroy(executable));
  RETURN_IF_CUDA_ERROR(cudaGraphDestroy(graph));
  RETURN_IF_CUDA_ERROR(cudaFree(device_x));
  RETURN_IF_CUDA_ERROR(cudaFree(device_y));
  RETURN_IF_CUDA_ERROR(cudaStreamDestroy(stream));
  return "";
}
