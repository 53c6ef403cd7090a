#include "tests/fake_cuda/nccl_windows.h"

#include <algorithm>
#include <memory>

#include "tests/fake_cuda/world.h"

struct ncclWindow_vidmem {
  const ::shardgraph::fake_cuda::WindowCounts* counts;
  ncclComm_t comm;
  int rank;
  size_t number;  // of the rank's windows
  const char* begin;
  size_t bytes;
};

namespace shardgraph::fake_cuda {
namespace {

std::vector<std::unique_ptr<ncclWindow_vidmem>>& All() {
  static auto& windows = *new std::vector<std::unique_ptr<ncclWindow_vidmem>>;
  return windows;
}

}  // namespace

bool WindowCounts::AllHaveAsManyAs(int rank) const {
  const size_t mine = registered[static_cast<size_t>(rank)];
  return std::all_of(registered.begin(), registered.end(),
                     [mine](size_t n) { return n >= mine; });
}

ncclWindow_t AddWindow(WindowCounts* counts, ncclComm_t comm, int rank,
                       const void* data, size_t bytes, int flags) {
  const size_t number = counts->registered[static_cast<size_t>(rank)]++;
  if (number == counts->windows.size())
    counts->windows.push_back({bytes, flags});
  if (counts->windows[number] != std::pair(bytes, flags)) {
    World::Get().Report(
        "ranks disagree: window " + std::to_string(number) + " has " +
        std::to_string(counts->windows[number].first) +
        " bytes on the first rank, " + std::to_string(bytes) + " on rank " +
        std::to_string(rank) + ", or other flags");
  }
  All().push_back(std::make_unique<ncclWindow_vidmem>(ncclWindow_vidmem{
      counts, comm, rank, number, static_cast<const char*>(data), bytes}));
  return All().back().get();
}

bool RemoveWindow(ncclComm_t comm, ncclWindow_t window) {
  return std::erase_if(All(), [&](const auto& w) {
           return w.get() == window && w->comm == comm;
         }) > 0;
}

void ForgetWindows(ncclComm_t comm) {
  std::erase_if(All(), [comm](const auto& w) { return w->comm == comm; });
}

void CheckNoWindow(const char* function, ncclComm_t comm, const void* memory) {
  for (const auto& window : All()) {
    if ((comm == nullptr || window->comm != comm) &&
        (memory == nullptr || window->begin != memory)) {
      continue;
    }
    World::Get().Report(std::string(function) +
                        " while a window is registered: "
                        "ncclCommWindowDeregister comes first");
  }
}

std::string PlaceInWindow(const WindowCounts& counts, int rank,
                          const void* data) {
  const char* const at = static_cast<const char*>(data);
  for (const auto& window : All()) {
    if (window->counts == &counts && window->rank == rank &&
        at >= window->begin && at < window->begin + window->bytes) {
      return "byte " + std::to_string(at - window->begin) + " of window " +
             std::to_string(window->number);
    }
  }
  return "no window";
}

}  // namespace shardgraph::fake_cuda
