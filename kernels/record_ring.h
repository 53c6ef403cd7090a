// RecordRing: records that lanes append and the host reads, in memory that both
// reach (Backend::AllocateShared). Plain, for .cu files.
//
// Nobody waits for anybody: a lane overwrites the oldest record, and a reader
// that comes too late is told so. One appender at a time, one reader.
#ifndef KERNELS_RECORD_RING_H_
#define KERNELS_RECORD_RING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace shardgraph {

// At the start of the memory; the slots follow.
struct RecordRing {
  uint64_t appended = 0;  // records so far
  uint64_t slots = 0;
  uint64_t words = 0;  // of 8 bytes, of a record
  uint64_t unused = 0;
  // Each slot: 1 + the number of the record in it, 0 while it is written; then
  // its words.

  static constexpr int64_t Bytes(int64_t slots, int64_t record_bytes) {
    return static_cast<int64_t>(sizeof(RecordRing)) +
           slots * (8 + (record_bytes + 7) / 8 * 8);
  }

  enum class Found { kNotYet, kFound, kOverwritten };

  // The host's: copies record `number` (from 0), `bytes` of it.
  Found Read(uint64_t number, void* to, int64_t bytes) {
    uint64_t* const slot =
        reinterpret_cast<uint64_t*>(this + 1) + number % slots * (words + 1);
    const std::atomic_ref<uint64_t> state(*slot);
    const uint64_t before = state.load(std::memory_order_acquire);
    if (before > number + 1) return Found::kOverwritten;
    if (before != number + 1) {
      const std::atomic_ref<uint64_t> all(appended);
      return all.load(std::memory_order_acquire) > number ? Found::kOverwritten
                                                          : Found::kNotYet;
    }
    // Each word acquired: none is read after `state` is looked at again.
    for (int64_t at = 0; at < bytes; at += 8) {
      const std::atomic_ref<uint64_t> next(slot[1 + at / 8]);
      const uint64_t word = next.load(std::memory_order_acquire);
      std::memcpy(static_cast<char*>(to) + at, &word,
                  std::min<int64_t>(8, bytes - at));
    }
    return state.load(std::memory_order_relaxed) == before
               ? Found::kFound
               : Found::kOverwritten;
  }
};

}  // namespace shardgraph

#endif  // KERNELS_RECORD_RING_H_
