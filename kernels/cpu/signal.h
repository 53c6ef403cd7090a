// Signal: a 32-bit number that one thread changes and others wait on; a short
// spin, then a futex.
//
// Changing it costs no system call while nobody sleeps on it. Any thread may
// call anything. No allocation.
#ifndef KERNELS_CPU_SIGNAL_H_
#define KERNELS_CPU_SIGNAL_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <thread>

namespace shardgraph {

// Tells the core that this thread spins.
inline void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Signal {
 public:
  static constexpr uint32_t kEverybody = ~0u;

  uint32_t Load() const { return value_.load(std::memory_order_acquire); }

  // Each change is sequentially consistent: a sleeper is either counted before
  // it or sees it. The new value is returned.
  uint32_t Add(uint32_t n) { return value_.fetch_add(n) + n; }
  uint32_t Subtract(uint32_t n) { return value_.fetch_sub(n) - n; }
  uint32_t Or(uint32_t bits) { return value_.fetch_or(bits) | bits; }
  uint32_t And(uint32_t bits) { return value_.fetch_and(bits) & bits; }

  // Wakes up to `count` sleepers whose mask has a bit of `mask`; call it after
  // a change.
  void Wake(int count = INT_MAX, uint32_t mask = kEverybody) {
    if (sleepers_.load() != 0) Futex(FUTEX_WAKE_BITSET, count, mask);
  }

  // Returns the first value seen for which `done(value)` holds. The mask keeps
  // away wake-ups that are meant for others.
  template <typename Done>
  uint32_t Await(Done done, uint32_t mask = kEverybody) {
    // About 10 microseconds on a free core; where threads outnumber cores the
    // yields hand the core to whom we wait for.
    for (int spin = 0; spin < kSpins; ++spin) {
      const uint32_t value = Load();
      if (done(value)) return value;
      if (spin % kSpinsPerYield == kSpinsPerYield - 1) {
        std::this_thread::yield();
      } else {
        RelaxCpu();
      }
    }
    for (;;) {
      sleepers_.fetch_add(1);
      const uint32_t value = value_.load();
      const bool finished = done(value);
      if (!finished) Futex(FUTEX_WAIT_BITSET, static_cast<int>(value), mask);
      sleepers_.fetch_sub(1);
      if (finished) return value;
    }
  }

 private:
  static constexpr int kSpins = 256;
  static constexpr int kSpinsPerYield = 64;

  void Futex(int operation, int argument, uint32_t mask) {
    static_assert(sizeof(value_) == sizeof(uint32_t));
    syscall(SYS_futex, &value_, operation | FUTEX_PRIVATE_FLAG, argument,
            nullptr, nullptr, mask);
  }

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace shardgraph

#endif  // KERNELS_CPU_SIGNAL_H_
