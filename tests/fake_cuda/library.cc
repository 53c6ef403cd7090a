#include "tests/fake_cuda/library.h"

#include <memory>
#include <utility>

#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {

cudaError_t EnqueueLibraryWork(LibraryWork work, cudaStream_t handle) {
  ScopedLock lock(work.name.c_str());
  World& world = World::Get();
  cudaStream_t stream = world.Find(handle, t_device);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  auto enqueued = std::make_shared<Work>();
  enqueued->name = std::move(work.name);
  enqueued->computes = true;
  for (const LibraryWork::Range& range : work.reads)
    enqueued->reads.push_back({range.begin, range.bytes});
  for (const LibraryWork::Range& range : work.writes)
    enqueued->writes.push_back({range.begin, range.bytes});
  enqueued->body = std::move(work.body);
  return Return(world.Enqueue(stream, std::move(enqueued)));
}

}  // namespace shardgraph::fake_cuda
