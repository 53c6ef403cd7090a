#include "tests/fake_cuda/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(SG_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "fake_cuda_switch is written for x86-64 and AArch64"
#endif

// void fake_cuda_switch(void** save, void* next): pushes the callee-saved
// registers, stores the stack pointer in *save, takes `next` for the stack
// pointer, pops and returns there. The floating-point control words are not
// saved: nothing here changes them.
extern "C" void fake_cuda_switch(void** save, void* next);
// Where a new fiber begins: calls the function and argument that Start() left
// in two callee-saved registers.
extern "C" void fake_cuda_begin();

#if defined(__x86_64__)
asm(R"(
.text
.globl fake_cuda_switch
.type fake_cuda_switch, @function
.p2align 4
fake_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret    # Predicted right: all fibers were left by the same call.
.size fake_cuda_switch, .-fake_cuda_switch

.globl fake_cuda_begin
.type fake_cuda_begin, @function
.p2align 4
fake_cuda_begin:
.cfi_startproc
.cfi_undefined rip    # Unwinders stop here.
  movq %r12, %rdi
  callq *%rbx
  ud2
.cfi_endproc
.size fake_cuda_begin, .-fake_cuda_begin
)");
constexpr int kSavedWords = 7;  // r15 r14 r13 r12 rbx rbp, return address
constexpr int kArgumentWord = 3, kFunctionWord = 4, kReturnWord = 6;
#else
asm(R"(
.text
.globl fake_cuda_switch
.type fake_cuda_switch, %function
.p2align 4
fake_cuda_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size fake_cuda_switch, .-fake_cuda_switch

.globl fake_cuda_begin
.type fake_cuda_begin, %function
.p2align 4
fake_cuda_begin:
.cfi_startproc
.cfi_undefined x30
  mov x0, x20
  blr x19
  brk #1
.cfi_endproc
.size fake_cuda_begin, .-fake_cuda_begin
)");
constexpr int kSavedWords = 20;
constexpr int kFunctionWord = 0, kArgumentWord = 1, kReturnWord = 11;
#endif

namespace shardgraph::fake_cuda {
namespace {

[[noreturn]] void Die(const char* what) {
  perror(what);
  abort();
}

}  // namespace

thread_local Fiber* Fiber::previous_ = nullptr;

Fiber::Fiber(size_t stack_bytes, int color) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapping_bytes_ = (stack_bytes + page - 1) / page * page + page;
  void* mapping = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) Die("fake_cuda: mmap of a fiber's stack");
  mapping_ = static_cast<char*>(mapping);
  if (mprotect(mapping_, page, PROT_NONE) != 0) Die("fake_cuda: mprotect");
  // Stacks of equal size put their hot tops into the same cache sets; a
  // different offset for each halves the cost of a switch among 1024 fibers.
  color_bytes_ = static_cast<size_t>(color % 61) * 64;
  stack_bottom_ = mapping_ + page;
  stack_bytes_ = mapping_bytes_ - page;
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(SG_ASAN)
  __asan_unpoison_memory_region(stack_bottom_, stack_bytes_);
#endif
  munmap(mapping_, mapping_bytes_);
}

void Fiber::Start(void (*entry)(void*), void* argument) {
#if defined(SG_ASAN)
  // Frames of a kernel that was abandoned may have left poison behind.
  __asan_unpoison_memory_region(stack_bottom_, stack_bytes_);
  fake_stack_ = nullptr;
#endif
  entry_ = entry;
  argument_ = argument;
  auto top =
      reinterpret_cast<uintptr_t>(mapping_ + mapping_bytes_) - color_bytes_;
  top &= ~uintptr_t{15};
  auto** words = reinterpret_cast<void**>(top) - kSavedWords;
#if defined(__x86_64__)
  // fake_cuda_begin is jumped to with the stack pointer at `top`, so that its
  // call pushes the return address at top - 8, as the ABI wants.
#endif
  for (int i = 0; i < kSavedWords; ++i) words[i] = nullptr;
  words[kFunctionWord] = reinterpret_cast<void*>(&Fiber::Enter);
  words[kArgumentWord] = this;
  words[kReturnWord] = reinterpret_cast<void*>(&fake_cuda_begin);
  stack_pointer_ = words;
}

void Fiber::Enter(void* fiber) {
  auto* self = static_cast<Fiber*>(fiber);
#if defined(SG_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &previous_->stack_bottom_,
                                  &previous_->stack_bytes_);
#endif
  self->entry_(self->argument_);
  abort();
}

void Fiber::SwitchFrom(Fiber& from) {
#if defined(SG_ASAN)
  previous_ = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack_, stack_bottom_,
                                 stack_bytes_);
  fake_cuda_switch(&from.stack_pointer_, stack_pointer_);
  // Back on `from`. Where we came from is only news if it is the OS thread's
  // own stack, whose bounds are learnt this way.
  __sanitizer_finish_switch_fiber(from.fake_stack_, &previous_->stack_bottom_,
                                  &previous_->stack_bytes_);
#else
  fake_cuda_switch(&from.stack_pointer_, stack_pointer_);
#endif
}

bool Fiber::InGuard(const void* address) const {
  const auto* a = static_cast<const char*>(address);
  return mapping_ != nullptr && a >= mapping_ && a < stack_bottom_;
}

}  // namespace shardgraph::fake_cuda
