// The CUDA runtime's functions for streams, events, kernels, capture, graphs.
// See runtime.cc.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fake_cuda/block.h"
#include "tests/fake_cuda/device.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/symbols.h"
#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {
namespace {

struct KernelInfo {
  KernelType type = {};
  // 48 KiB less static variables, whose size the double does not know: it is
  // strict by 1 KiB.
  int max_dynamic_shared = 47 << 10;
};

// Survives Reset: kernels are part of the program.
std::unordered_map<const void*, KernelInfo>& Kernels() {
  static auto* const kernels = new std::unordered_map<const void*, KernelInfo>;
  return *kernels;
}

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         void** arguments) {
  World& world = World::Get();
  const auto info = Kernels().find(kernel);
  if (info == Kernels().end() || info->second.type.invoke == nullptr) {
    return cudaErrorInvalidDeviceFunction;
  }
  cudaStream_t stream = world.Find(config.stream, t_device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->device != t_device) return cudaErrorInvalidResourceHandle;
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535 || block.x == 0 || block.y == 0 ||
      block.z == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      block.x * block.y * block.z > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes >
      static_cast<size_t>(info->second.max_dynamic_shared)) {
    return cudaErrorInvalidValue;
  }
  if (config.numAttrs != 0) return cudaErrorNotSupported;
  const KernelType& type = info->second.type;
  auto work = std::make_shared<Work>();
  work->name = FunctionName(kernel);
  work->kernel.emplace();
  work->kernel->kernel = kernel;
  work->kernel->type = &type;
  work->kernel->name = work->name;
  work->kernel->grid = grid;
  work->kernel->block = block;
  work->kernel->shared_bytes = config.dynamicSmemBytes;
  work->kernel->arguments.resize(type.argument_bytes);
  for (int i = 0; i < type.parameters; ++i) {
    memcpy(work->kernel->arguments.data() + type.offsets[i], arguments[i],
           type.sizes[i]);
  }
  return world.Enqueue(stream, work);
}

// An event that the host may look at; not one last recorded in a capture.
cudaError_t CheckEvent(cudaEvent_t event) {
  World& world = World::Get();
  if (!world.Exists(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) {
    world.Invalidate(*event->capture);
    return cudaErrorCapturedEvent;
  }
  return world.CheckUnsafe();
}

}  // namespace

void RegisterKernel(const void* kernel, const KernelType& type) {
  ScopedLock lock;
  Kernels()[kernel].type = type;  // cudaFuncSetAttribute may have come first.
}

}  // namespace shardgraph::fake_cuda

using namespace shardgraph::fake_cuda;  // NOLINT: the definitions below are the
                                        // global API.

extern "C" {

// Streams.

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int priority) {
  ScopedLock lock;
  *stream = World::Get().CreateStream(t_device, flags, priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr || stream->legacy) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  World::Get().DestroyStream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ScopedLock lock;
  World& world = World::Get();
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  FAKE_CUDA_RETURN_IF_ERROR(world.RefuseWhileCapturing(stream));
  FAKE_CUDA_RETURN_IF_ERROR(world.CheckLegacy(stream));
  FAKE_CUDA_RETURN_IF_ERROR(world.CheckUnsafe());
  ++world.counters.synchronizations;
  return Return(world.Synchronize(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ScopedLock lock;
  World& world = World::Get();
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  FAKE_CUDA_RETURN_IF_ERROR(world.RefuseWhileCapturing(stream));
  FAKE_CUDA_RETURN_IF_ERROR(world.CheckUnsafe());
  world.Step();  // A host that polls must see progress.
  if (!stream->queue.empty()) return cudaErrorNotReady;
  return Return(world.Synchronize(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event,
                                unsigned flags) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr || !World::Get().Exists(event)) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  if (flags != cudaEventWaitDefault) return Return(cudaErrorNotSupported);
  return Return(World::Get().WaitEvent(stream, event));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                               void* data) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  auto work = std::make_shared<Work>();
  work->name = "host function";
  work->body = [function, data] { function(data); };
  return Return(World::Get().Enqueue(stream, work));
}

// Events.

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ScopedLock lock;
  *event = World::Get().CreateEvent(t_device, flags);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ScopedLock lock;
  return Return(World::Get().DestroyEvent(event)
                    ? cudaSuccess
                    : cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr || !World::Get().Exists(event) ||
      event->device != stream->device) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  return Return(World::Get().RecordEvent(event, stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(CheckEvent(event));
  if (event->marker == nullptr) return cudaSuccess;
  World::Get().Step();
  if (!event->marker->done) return cudaErrorNotReady;
  return Return(World::Get().Synchronize(event->marker));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(CheckEvent(event));
  if (event->marker == nullptr) return cudaSuccess;
  ++World::Get().counters.synchronizations;
  return Return(World::Get().Synchronize(event->marker));
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin,
                                 cudaEvent_t end) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(CheckEvent(begin));
  FAKE_CUDA_RETURN_IF_ERROR(CheckEvent(end));
  if (begin->marker == nullptr || end->marker == nullptr ||
      (begin->flags | end->flags) & cudaEventDisableTiming) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  if (!begin->marker->done || !end->marker->done) {
    return Return(cudaErrorNotReady);
  }
  // One microsecond per operation: a clock that tests can rely on.
  *milliseconds = static_cast<float>(end->marker->milliseconds -
                                     begin->marker->milliseconds);
  return cudaSuccess;
}

// Kernels.

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* kernel, void** arguments) {
  ScopedLock lock;
  return Return(LaunchKernel(*config, kernel, arguments));
}
cudaError_t cudaFuncSetAttribute(const void* kernel,
                                 cudaFuncAttribute attribute, int value) {
  ScopedLock lock;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return Return(cudaErrorNotSupported);
  }
  if (value < 0 || value > kMaxSharedOptIn)
    return Return(cudaErrorInvalidValue);
  Kernels()[kernel].max_dynamic_shared = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int threads, size_t shared_bytes, unsigned) {
  if (threads <= 0 || threads > 1024) return Return(cudaErrorInvalidValue);
  const size_t by_shared =
      (size_t{228} << 10) /
      (shared_bytes + 1024);  // CUDA keeps 1 KiB per block.
  *blocks = static_cast<int>(
      std::min<size_t>({static_cast<size_t>(2048 / threads), by_shared, 32}));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          const void* kernel,
                                                          int threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, kernel, threads, shared_bytes, 0);
}

// Capture and graphs.

cudaError_t cudaStreamBeginCapture(cudaStream_t handle,
                                   cudaStreamCaptureMode mode) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  const auto& refuses = World::Get().options().refuses_capture;
  if (refuses != nullptr && refuses(stream->device))
    return Return(cudaErrorStreamCaptureUnsupported);
  return Return(World::Get().BeginCapture(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  return Return(World::Get().EndCapture(stream, graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle,
                                  cudaStreamCaptureStatus* status) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckLegacy(stream));
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, t_capture_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                              size_t* count) {
  ScopedLock lock;
  if (!World::Get().Exists(graph)) return Return(cudaErrorInvalidValue);
  if (nodes != nullptr) return Return(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path,
                                   unsigned) {
  ScopedLock lock;
  if (!World::Get().Exists(graph)) return Return(cudaErrorInvalidValue);
  std::ofstream file(path);
  file << "digraph dot {\n";
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    file << "  node_" << i << " [label=\"" << graph->nodes[i].work->name
         << "\"];\n";
    for (const int before : graph->nodes[i].after)
      file << "  node_" << before << " -> node_" << i << ";\n";
  }
  file << "}\n";
  return Return(file.flush() ? cudaSuccess : cudaErrorUnknown);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  ScopedLock lock;
  if (!World::Get().Exists(graph)) return Return(cudaErrorInvalidValue);
  if ((flags & cudaGraphInstantiateFlagUseNodePriority) == 0) {
    for (const Node& node : graph->nodes) {
      if (node.priority == graph->nodes[0].priority) continue;
      World::Get().Report(
          "cudaGraphInstantiate of nodes with different priorities without "
          "cudaGraphInstantiateFlagUseNodePriority: all would run at the "
          "launching stream's");
      break;
    }
  }
  *exec = World::Get().AddExec(graph->nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  ScopedLock lock;
  return Return(World::Get().Exists(exec) ? cudaSuccess
                                          : cudaErrorInvalidValue);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  ScopedLock lock;
  cudaStream_t stream = World::Get().Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (!World::Get().Exists(exec)) return Return(cudaErrorInvalidValue);
  return Return(World::Get().EnqueueGraph(stream, exec));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ScopedLock lock;
  return Return(World::Get().DestroyGraph(graph) ? cudaSuccess
                                                 : cudaErrorInvalidValue);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  ScopedLock lock;
  return Return(World::Get().DestroyExec(exec) ? cudaSuccess
                                               : cudaErrorInvalidValue);
}

}  // extern "C"
