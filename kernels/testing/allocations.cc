#include "kernels/testing/allocations.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0}, live{0}, most{0};
thread_local int64_t thread_allocations = 0;

void* Count(void* data) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  ++thread_allocations;
  const int64_t bytes = static_cast<int64_t>(malloc_usable_size(data));
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t before = most.load(std::memory_order_relaxed);
  while (now > before &&
         !most.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
  return data;
}

void Free(void* data) {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(data)),
                 std::memory_order_relaxed);
  std::free(data);
}

void* OrThrow(void* data) {
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// The other forms of new and delete call these; the library's form that does
// not throw does so too, but not AddressSanitizer's.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Count(std::malloc(std::max<size_t>(size, 1)));
}
void* operator new(size_t size) {
  return OrThrow(operator new(size, std::nothrow));
}
void* operator new(size_t size, std::align_val_t alignment) {
  const size_t a = static_cast<size_t>(alignment);
  return OrThrow(Count(
      std::aligned_alloc(a, (std::max<size_t>(size, 1) + a - 1) / a * a)));
}
void operator delete(void* data) noexcept { Free(data); }
void operator delete(void* data, size_t) noexcept { Free(data); }
void operator delete(void* data, std::align_val_t) noexcept { Free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept {
  Free(data);
}

namespace shardgraph {

int64_t NumAllocations() { return allocations.load(); }
int64_t NumThreadAllocations() { return thread_allocations; }
int64_t LiveBytes() { return live.load(); }
int64_t MostLiveBytes() { return most.load(); }
void ForgetMostLiveBytes() { most.store(live.load()); }

}  // namespace shardgraph
