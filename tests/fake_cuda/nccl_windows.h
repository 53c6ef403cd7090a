// Windows that ranks have registered with communicators of the NCCL double:
// all ranks register them in the same order and size, what collectives reach
// into on other devices lies at the same place of all, and they go before their
// communicator and their memory. Under the world's lock.
#ifndef TESTS_FAKE_CUDA_NCCL_WINDOWS_H_
#define TESTS_FAKE_CUDA_NCCL_WINDOWS_H_

#include <nccl.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace shardgraph::fake_cuda {

// Of a communicator, as all of its ranks share it.
struct WindowCounts {
  std::vector<size_t> registered;               // so far, by rank
  std::vector<std::pair<size_t, int>> windows;  // bytes and flags of the n-th

  // Whether all ranks have registered as many as `rank`.
  bool AllHaveAsManyAs(int rank) const;
};

// Reports it if another rank's window of the same number is another one.
ncclWindow_t AddWindow(WindowCounts* counts, ncclComm_t comm, int rank,
                       const void* data, size_t bytes, int flags);
// False: it is no window of the communicator.
bool RemoveWindow(ncclComm_t comm, ncclWindow_t window);
// Of a communicator that is no more.
void ForgetWindows(ncclComm_t comm);

// Reports a window of the communicator, or of that memory, which `function`
// ends; null: of none.
void CheckNoWindow(const char* function, ncclComm_t comm, const void* memory);

// "byte 256 of window 0", or "no window".
std::string PlaceInWindow(const WindowCounts& counts, int rank,
                          const void* data);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_NCCL_WINDOWS_H_
