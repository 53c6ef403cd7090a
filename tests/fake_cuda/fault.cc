// Faults of device work: caught, explained, and turned into CUDA's errors.

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <string>

#include "tests/fake_cuda/block_state.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/symbols.h"

namespace shardgraph::fake_cuda {
namespace {

// Whether this OS thread executes device work: other faults are not ours.
thread_local bool t_guarded = false;

// What the signal handler leaves for AfterFault.
struct Fault {
  int signal, code;
  const void* address;
  const void* pc;
} fault;

void Explain() {
  if (fault.signal == SIGFPE) {
    Blame(cudaErrorLaunchFailure,
          "integer division by zero at " + CodeLocation(fault.pc));
  } else if (fault.signal == SIGILL) {
    // Kernels are compiled with traps for undefined behaviour: see double.bzl.
    Blame(cudaErrorLaunchFailure,
          "undefined behaviour (misaligned access, index out of bounds, "
          "overflow or shift) at " +
              CodeLocation(fault.pc));
  } else {
    // x86 gives no address for a misaligned 16-byte access.
    const std::string what =
        IsStackOverflow(fault.address) ? "stack overflow"
        : fault.code == SI_KERNEL
            ? "misaligned 16-byte access"
            : "illegal address: " + Memory::Get().Describe(fault.address);
    Blame(cudaErrorIllegalAddress, what + " at " + CodeLocation(fault.pc));
  }
}

// Runs on a stack of its own, as if the faulting instruction had called it: an
// ordinary context, in which everything is allowed, unlike in the handler.
void AfterFault() {
  Explain();
  Abandon();
}

[[maybe_unused]] void OnFault(int signal, siginfo_t* info, void* context) {
  if (!t_guarded) {
    // The host's own fault; if on device memory, say so before dying.
    if (Memory::Get().InDevice(info->si_addr)) {
      constexpr char kText[] = "fake_cuda: host code accesses device memory\n";
      [[maybe_unused]] const auto n = write(2, kText, sizeof(kText) - 1);
    }
    struct sigaction original = {};
    original.sa_handler = SIG_DFL;
    sigaction(signal, &original, nullptr);
    return;  // And fault again.
  }
  static constexpr size_t kBytes = 256 << 10;
  alignas(16) static char stack[kBytes];
  fault.signal = signal;
  fault.code = info->si_code;
  fault.address = info->si_addr;
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  // One further, as a return address would be.
  fault.pc = reinterpret_cast<const void*>(machine.gregs[REG_RIP] + 1);
  machine.gregs[REG_RIP] = reinterpret_cast<greg_t>(&AfterFault);
  machine.gregs[REG_RSP] = reinterpret_cast<greg_t>(stack + kBytes - 8);
#else
  fault.pc = reinterpret_cast<const void*>(machine.pc + 1);
  machine.pc = reinterpret_cast<uintptr_t>(&AfterFault);
  machine.sp = reinterpret_cast<uintptr_t>(stack + kBytes);
#endif
}

void InstallHandlers() {
#if !defined(SG_ASAN)
  // A thread's own stack for the handler: the fiber's may be what overflowed.
  static thread_local char alternate[64 << 10];
  static thread_local bool installed = false;
  if (!installed) {
    installed = true;
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof(alternate);
    sigaltstack(&stack, nullptr);
  }
  static const bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = &OnFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
      sigaction(s, &action, nullptr);
    }
    return true;
  }();
  (void)once;
#endif
}

struct Guarded {
  void (*body)(void*);
  void* argument;
};

void GuardedMain(void* argument) {
  auto* guarded = static_cast<Guarded*>(argument);
  guarded->body(guarded->argument);
  Abandon();
}

}  // namespace

void BeginGuard() {
  InstallHandlers();
  t_guarded = true;
}

void EndGuard() { t_guarded = false; }

BlockResult RunGuarded(const std::string& name, void (*body)(void*),
                       void* argument) {
  static Fiber* const fiber = new Fiber(256 << 10, 0);
  b.launch = nullptr;
  b.outcome = {};
  Guarded guarded = {body, argument};
  fiber->Start(&GuardedMain, &guarded);
  BeginGuard();
  fiber->SwitchFrom(main_fiber);
  EndGuard();
  if (!b.outcome.report.empty()) b.outcome.report += " in " + name;
  return b.outcome;
}

}  // namespace shardgraph::fake_cuda
