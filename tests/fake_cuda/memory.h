// Device and pinned memory of the double.
//
// All allocations lie in two reserved address ranges and no address is ever
// used twice, so an old pointer never means new memory. Around each allocation
// lie red zones up to the page boundaries and an inaccessible page on either
// side; freed memory becomes inaccessible. Fresh memory is filled with 0xff, a
// NaN in every floating-point type.
#ifndef TESTS_FAKE_CUDA_MEMORY_H_
#define TESTS_FAKE_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shardgraph::fake_cuda {

struct Allocation {
  char* begin;  // 256-byte aligned, as cudaMalloc promises.
  size_t bytes;
  char* pages;  // The accessible pages around it.
  size_t page_bytes;
  int serial;  // 1 for the first cudaMalloc of the world, and so on.
  int device;  // -1: pinned host memory.
  bool freed = false;
};

class Memory {
 public:
  static Memory& Get();

  // Frees everything.
  void Reset();
  // Null if `bytes` exceeds what the device has left.
  char* Allocate(size_t bytes, int device);
  // Whether `pointer` was the beginning of a live allocation of that kind.
  bool Free(void* pointer, bool pinned);

  bool InDevice(const void* p) const {
    return static_cast<size_t>(static_cast<const char*>(p) - base_) < kRange;
  }
  bool InPinned(const void* p) const {
    return static_cast<size_t>(static_cast<const char*>(p) - base_ - kRange) <
           kRange;
  }
  // The allocation that `p` lies in, live or freed, or null.
  const Allocation* Find(const void* p) const;
  // Whether [p, p + bytes) lies in one live allocation.
  bool Live(const void* p, size_t bytes) const;
  // Words about an address for a report: "4 bytes after allocation #3 (1 KiB)".
  std::string Describe(const void* p) const;

  // Where red zones were written to; heals them. Empty if nowhere.
  std::string CheckRedZones();
  // Makes all device memory (in)accessible. Nothing if already so.
  void Protect(bool inaccessible);

  size_t BytesLive(int device) const;
  int CountLive() const;

  // Per two bytes of device or pinned memory, a cell of the checker.
  struct Cell {
    uint64_t write = 0;     // The last write.
    uint64_t read[2] = {};  // Reads since then, of which none is after another.

    friend bool operator==(const Cell&, const Cell&) = default;
  };
  Cell* CellOf(const void* p) const {
    return cells_ + (static_cast<const char*>(p) - base_) / 2;
  }

 private:
  Memory();
  static constexpr size_t kRange = size_t{1} << 34;  // 16 GiB each.

  char* base_;
  Cell* cells_ = nullptr;
  size_t next_device_ = 0, next_pinned_ = 0;  // First unused offset.
  int serial_ = 0;
  bool protected_ = false;
  std::vector<Allocation> device_, pinned_;  // By address.
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_MEMORY_H_
