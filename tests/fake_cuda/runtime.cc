// The CUDA runtime's functions, as far as they are called: each checks its
// arguments and the rules of capture as CUDA does, then asks the World.
// Declared by the toolkit's cuda_runtime_api.h; a function that is missing here
// is an error of the linker, never a silent success. This file: errors,
// devices, memory; streams, kernels and graphs are in runtime_stream.cc.

#include "tests/fake_cuda/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {
namespace {

thread_local cudaError_t t_last_error = cudaSuccess;

constexpr int kMultiprocessors = 4;

enum class Place { kDevice, kPinned, kPageable };
Place PlaceOf(const void* p) {
  const Memory& memory = Memory::Get();
  return memory.InDevice(p)   ? Place::kDevice
         : memory.InPinned(p) ? Place::kPinned
                              : Place::kPageable;
}

// Whether the pointers are what `kind` says.
bool Matches(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice;
  const bool from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t handle, bool wait) {
  World& world = World::Get();
  const Place to_place = PlaceOf(to), from_place = PlaceOf(from);
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (!Matches(kind, to_place, from_place)) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  auto work = std::make_shared<Work>();
  work->name = "memcpy of " + std::to_string(bytes) + " bytes";
  work->reads = {{from, bytes}};
  work->writes = {{to, bytes}};
  const bool capturing = stream->capture != nullptr;
  if (!wait && !capturing &&
      (to_place == Place::kPageable || from_place == Place::kPageable)) {
    ++world.counters.pageable_copies;
  }
  if (from_place == Place::kPageable && !capturing) {
    // CUDA returns once the source has been copied to its own buffer.
    const auto* bytes_begin = static_cast<const unsigned char*>(from);
    work->body = [to, staged = std::vector<unsigned char>(
                          bytes_begin, bytes_begin + bytes)] {
      memcpy(to, staged.data(), staged.size());
    };
  } else {
    work->body = [to, from, bytes] { memmove(to, from, bytes); };
  }
  if (cudaError_t error = world.Enqueue(stream, work); error != cudaSuccess) {
    return error;
  }
  if (capturing) return cudaSuccess;
  if (wait || to_place == Place::kPageable) {
    ++world.counters.synchronizations;
    return world.Synchronize(stream);
  }
  return cudaSuccess;
}

cudaError_t Fill(void* to, int value, size_t bytes, cudaStream_t handle) {
  World& world = World::Get();
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (PlaceOf(to) == Place::kPageable) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  auto work = std::make_shared<Work>();
  work->name = "memset of " + std::to_string(bytes) + " bytes";
  work->writes = {{to, bytes}};
  work->body = [to, value, bytes] { memset(to, value, bytes); };
  return world.Enqueue(stream, work);
}

}  // namespace

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

void Reset(const Options& options) {
  ScopedLock lock;
  World::Get().Reset(options);
  t_last_error = cudaSuccess;
}

Counters GetCounters() {
  ScopedLock lock;
  Counters counters = World::Get().counters;
  counters.switches = SwitchCount();
  return counters;
}

std::map<std::string, int64_t> GetCalls() {
  ScopedLock lock;
  std::map<std::string, int64_t> calls = World::Get().calls;
  std::erase_if(calls, [](const auto& call) {
    return call.first.rfind("cu", 0) != 0 && call.first.rfind("nccl", 0) != 0;
  });
  return calls;
}

void MarkUnwritten(const void* p, size_t bytes) {
  ScopedLock lock;
  checker::MarkUnwritten(p, bytes);
}

void MarkWritten(const void* p, size_t bytes) {
  ScopedLock lock;
  checker::MarkWritten(p, bytes);
}

std::string TakeReport() {
  ScopedLock lock;
  return World::Get().TakeReport();
}

}  // namespace shardgraph::fake_cuda

using namespace shardgraph::fake_cuda;  // NOLINT: the definitions below are the
                                        // global API.

extern "C" {

// Errors.

cudaError_t cudaGetLastError() {
  const cudaError_t error = t_last_error;
  ScopedLock lock;
  t_last_error = World::Get().sticky();
  return error;
}
cudaError_t cudaPeekAtLastError() { return t_last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define FAKE_CUDA_NAME(name) \
  case name:                 \
    return #name
    FAKE_CUDA_NAME(cudaSuccess);
    FAKE_CUDA_NAME(cudaErrorInvalidValue);
    FAKE_CUDA_NAME(cudaErrorMemoryAllocation);
    FAKE_CUDA_NAME(cudaErrorInvalidConfiguration);
    FAKE_CUDA_NAME(cudaErrorInvalidDeviceFunction);
    FAKE_CUDA_NAME(cudaErrorInvalidDevice);
    FAKE_CUDA_NAME(cudaErrorInvalidResourceHandle);
    FAKE_CUDA_NAME(cudaErrorIllegalState);
    FAKE_CUDA_NAME(cudaErrorNotReady);
    FAKE_CUDA_NAME(cudaErrorIllegalAddress);
    FAKE_CUDA_NAME(cudaErrorMisalignedAddress);
    FAKE_CUDA_NAME(cudaErrorLaunchFailure);
    FAKE_CUDA_NAME(cudaErrorNotSupported);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnsupported);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureInvalidated);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureMerge);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnmatched);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnjoined);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureIsolation);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureImplicit);
    FAKE_CUDA_NAME(cudaErrorCapturedEvent);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureWrongThread);
    FAKE_CUDA_NAME(cudaErrorUnknown);
#undef FAKE_CUDA_NAME
    default:
      return "unrecognized error code";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

// Devices.

cudaError_t cudaGetDeviceCount(int* count) {
  ScopedLock lock;
  *count = World::Get().options().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  ScopedLock lock;
  if (device < 0 || device >= World::Get().options().devices) {
    return Return(cudaErrorInvalidDevice);
  }
  t_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  memset(properties, 0, sizeof(*properties));
  snprintf(properties->name, sizeof(properties->name), "CUDA double");
  properties->totalGlobalMem = size_t{8} << 30;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = kMaxSharedOptIn;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->multiProcessorCount = kMultiprocessors;
  properties->major = 9;
  properties->minor = 0;
  properties->pciBusID = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMaxSharedOptIn;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    default:
      return Return(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().RefuseWhileCapturing(nullptr));
  ++World::Get().counters.synchronizations;
  return Return(World::Get().SynchronizeDevice(t_device));
}

// Memory.

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().sticky());
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = Memory::Get().Allocate(bytes, t_device);
  if (*pointer == nullptr) return Return(cudaErrorMemoryAllocation);
  ++World::Get().counters.allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  ScopedLock lock;
  if (pointer == nullptr) return cudaSuccess;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  // CUDA waits for the device here; freeing memory that enqueued work still
  // uses is nevertheless a mistake, and so the double does not.
  const std::string damage = Memory::Get().CheckRedZones();
  if (!damage.empty()) World::Get().Report(damage);
  if (!Memory::Get().Free(pointer, false)) return Return(cudaErrorInvalidValue);
  return Return(World::Get().sticky());
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  *pointer = Memory::Get().Allocate(bytes, -1);
  if (*pointer == nullptr) return Return(cudaErrorMemoryAllocation);
  ++World::Get().counters.allocations;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* pointer) {
  ScopedLock lock;
  if (pointer == nullptr) return cudaSuccess;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  if (!Memory::Get().Free(pointer, true)) return Return(cudaErrorInvalidValue);
  return Return(World::Get().sticky());
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ScopedLock lock;
  *total = size_t{8} << 30;
  *free = *total - Memory::Get().BytesLive(t_device);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  ScopedLock lock;
  *attributes = {};
  const Allocation* a = Memory::Get().Find(pointer);
  attributes->type = a == nullptr || a->freed ? cudaMemoryTypeUnregistered
                     : a->device < 0          ? cudaMemoryTypeHost
                                              : cudaMemoryTypeDevice;
  attributes->device = a == nullptr ? -1 : std::max(a->device, 0);
  attributes->devicePointer = attributes->hostPointer =
      const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(
      World::Get().CheckLegacy(World::Get().Find(nullptr, t_device)));
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  return Return(Copy(to, from, bytes, kind, nullptr, /*wait=*/true));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  ScopedLock lock;
  return Return(Copy(to, from, bytes, kind, stream, /*wait=*/false));
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  ScopedLock lock;
  FAKE_CUDA_RETURN_IF_ERROR(World::Get().CheckUnsafe());
  return Return(Fill(to, value, bytes, nullptr));
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  ScopedLock lock;
  return Return(Fill(to, value, bytes, stream));
}

}  // extern "C"
