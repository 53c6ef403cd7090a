// A fiber: a stack of its own, and the point at which it was last left.
//
// All fibers of a thread block run on one OS thread and hand over explicitly,
// so a switch is an ordinary function call that returns on another stack:
// 2 to 8 ns, against 170 ns for swapcontext, which makes two system calls.
// Note: Sanitizers. AddressSanitizer is told of every switch, because it keeps
// the bounds of the current stack. ThreadSanitizer need not be: in its builds
// the double and the kernels are compiled without it, and what runs on fibers
// runs under one lock. (Its own fibers cost 2 ms and 0.8 MiB each in GCC 12.)
#ifndef TESTS_FAKE_CUDA_FIBER_H_
#define TESTS_FAKE_CUDA_FIBER_H_

#include <cstddef>

namespace shardgraph::fake_cuda {

class Fiber {
 public:
  // The OS thread's own stack: a fiber that is running already.
  Fiber() = default;
  // A fresh stack of `stack_bytes`, with an inaccessible page below it.
  explicit Fiber(size_t stack_bytes, int color);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next SwitchTo() this fiber calls entry(argument) from the top of the
  // stack; whatever was on it is forgotten. `entry` must not return.
  void Start(void (*entry)(void*), void* argument);

  // Leaves `from`, the fiber that is running, and continues this one. Returns
  // when something switches back to `from`.
  void SwitchFrom(Fiber& from);

  // Whether `address` lies in the inaccessible page: a stack overflow.
  bool InGuard(const void* address) const;

 private:
  static void Enter(void* fiber);

  void* stack_pointer_ = nullptr;
  char* mapping_ = nullptr;  // Null for the OS thread's own stack.
  size_t mapping_bytes_ = 0;
  size_t color_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What AddressSanitizer wants to know; unused otherwise.
  [[maybe_unused]] const void* stack_bottom_ = nullptr;
  [[maybe_unused]] size_t stack_bytes_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  static thread_local Fiber* previous_;
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_FIBER_H_
