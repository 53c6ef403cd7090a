// For a library's stand-in on the CUDA double: work of its own on a stream.
#ifndef TESTS_FAKE_CUDA_LIBRARY_H_
#define TESTS_FAKE_CUDA_LIBRARY_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace shardgraph::fake_cuda {

struct LibraryWork {
  std::string name;  // begins with "cu"; GetCalls counts it
  struct Range {
    const void* begin;
    size_t bytes;
  };
  // What `body` reads, which must have been written before, and writes.
  std::vector<Range> reads, writes;
  std::function<void()> body;  // runs on the host, over device memory
};

// Enqueues it; captured and replayed as a kernel is.
cudaError_t EnqueueLibraryWork(LibraryWork work, cudaStream_t stream);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_LIBRARY_H_
