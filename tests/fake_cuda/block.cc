#include "tests/fake_cuda/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/fake_cuda/block_state.h"
#include "tests/fake_cuda/device.h"
#include "tests/fake_cuda/fiber.h"
#include "tests/fake_cuda/symbols.h"

#if defined(SG_ASAN)
#include <sanitizer/asan_interface.h>
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace shardgraph::fake_cuda {

Block b;
Fiber main_fiber;

namespace {

#if defined(SG_ASAN)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kSharedBuffer = 256 << 10;  // 227 KiB and a red zone.
constexpr size_t kSharedRedZone = 256;
constexpr unsigned char kFresh = 0xff, kRedZone = 0xfb;

std::vector<std::unique_ptr<Fiber>> all_fibers;
std::vector<Fiber*> free_fibers;
char* dynamic_shared = nullptr;
int64_t switches = 0;

int Choose(unsigned candidates) {
  const unsigned turned = std::rotr(candidates, b.rotate);
  const int bit =
      b.descending ? 31 - std::countl_zero(turned) : std::countr_zero(turned);
  return (bit + b.rotate) % 32;
}

// The thread to go on with, or -1: all have ended or wait.
int Next(int warp) {
  if (!(b.ready_warps >> warp & 1)) {
    if (b.ready_warps == 0) return -1;
    warp = Choose(b.ready_warps);
  }
  return warp * 32 + Choose(b.warp[warp].fresh | b.warp[warp].runnable);
}

// Makes `thread` the current one, which starts or goes on.
void Bind(int thread) {
  b.current = thread;
  threadIdx = b.thread[thread].index;
  Warp& w = b.warp[thread / 32];
  w.fresh &= ~LaneBit(thread);
  w.runnable &= ~LaneBit(thread);
  if ((w.fresh | w.runnable) == 0) b.ready_warps &= ~(1u << (thread / 32));
  checker::SetThread(thread);
}

void FiberMain(void* fiber);

Fiber* TakeFiber() {
  if (free_fibers.empty()) {
    all_fibers.push_back(std::make_unique<Fiber>(
        kStackBytes, static_cast<int>(all_fibers.size())));
    free_fibers.push_back(all_fibers.back().get());
  }
  Fiber* fiber = free_fibers.back();
  free_fibers.pop_back();
  fiber->Start(&FiberMain, fiber);
  return fiber;
}

// Leaves the running fiber for the next thread's, or for RunBlock.
void Leave(Fiber* from, int next) {
  ++switches;
  if (next < 0) {
    main_fiber.SwitchFrom(*from);
    return;
  }
  const bool starts = b.thread[next].fiber == nullptr;
  if (starts) b.thread[next].fiber = TakeFiber();
  Bind(next);
  b.thread[next].fiber->SwitchFrom(*from);
}

void FiberMain(void* fiber) {
  auto* self = static_cast<Fiber*>(fiber);
  while (true) {
    b.launch->type->invoke(b.launch->kernel, b.launch->arguments.data());
    const int ended = b.current;
    const int warp = ended / 32;
    b.warp[warp].done |= LaneBit(ended);
    ++b.done;
    if (b.warp[warp].in_warp_op != 0) CompleteWithoutEnded(warp);
    b.thread[ended].fiber = nullptr;
    const int next = Next(warp);
    if (next >= 0 && b.thread[next].fiber == nullptr) {
      // A fresh thread goes on on this fiber, without a switch.
      b.thread[next].fiber = self;
      Bind(next);
      continue;
    }
    free_fibers.push_back(self);
    Leave(self, next);
    abort();
  }
}

// Words about why nobody can run.
std::string WhyStuck() {
  std::string text;
  if (b.at_barrier > 0) {
    text += std::to_string(b.at_barrier) + " threads at __syncthreads, " +
            std::to_string(b.done) + " ended";
  }
  for (int w = 0; w < b.warps; ++w) {
    if (b.warp[w].in_warp_op == 0) continue;
    const Thread& t = b.thread[w * 32 + std::countr_zero(b.warp[w].in_warp_op)];
    char part[160];
    snprintf(part, sizeof(part),
             "%swarp %d: lanes %08x in a warp operation that names %08x",
             text.empty() ? "" : "; ", w, b.warp[w].in_warp_op, t.mask);
    text += part;
    break;
  }
  return text;
}

#if defined(SG_ASAN)
// Not memset: the gaps between variables are poison to AddressSanitizer.
__attribute__((no_sanitize("address"))) void Poison(char* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    const_cast<volatile char*>(p)[i] = static_cast<char>(kFresh);
  }
}
#else
void Poison(char* p, size_t bytes) { memset(p, kFresh, bytes); }
#endif

void PrepareShared(size_t dynamic_bytes, bool poison) {
  if (dynamic_shared == nullptr) {
    dynamic_shared = static_cast<char*>(aligned_alloc(4096, kSharedBuffer));
  }
#if defined(SG_ASAN)
  __asan_unpoison_memory_region(dynamic_shared, kSharedBuffer);
  __asan_poison_memory_region(dynamic_shared + dynamic_bytes,
                              kSharedBuffer - dynamic_bytes);
#else
  memset(dynamic_shared + dynamic_bytes, kRedZone, kSharedRedZone);
#endif
  if (!poison) return;
  memset(dynamic_shared, kFresh, dynamic_bytes);
  for (const auto& section : SharedVariables()) {
    Poison(section.data(), section.size());
  }
}

bool SharedRedZoneIntact([[maybe_unused]] size_t dynamic_bytes) {
#if !defined(SG_ASAN)
  for (size_t i = 0; i < kSharedRedZone; ++i) {
    if (static_cast<unsigned char>(dynamic_shared[dynamic_bytes + i]) !=
        kRedZone) {
      return false;
    }
  }
#endif
  return true;
}

}  // namespace

void Wake(int warp, unsigned lanes) {
  if (lanes == 0) return;
  b.warp[warp].runnable |= lanes;
  b.ready_warps |= 1u << warp;
}

void Wait() {
  const int self = b.current;
  const int next = Next(self / 32);
  Leave(b.thread[self].fiber, next);
}

void Blame(cudaError_t error, const std::string& what) {
  b.outcome.error = error;
  b.outcome.report = what;
  if (b.launch == nullptr) return;  // Not a kernel.
  char where[160];
  snprintf(where, sizeof(where), ", block (%u, %u, %u) thread (%u, %u, %u)",
           blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
           threadIdx.z);
  b.outcome.report += " in " + b.launch->name + where;
}

void Abandon() {
  static Fiber nowhere;  // Where the switch saves what nobody will restore.
  main_fiber.SwitchFrom(nowhere);
  abort();
}

bool IsStackOverflow(const void* address) {
  return std::any_of(
      all_fibers.begin(), all_fibers.end(),
      [&](const auto& fiber) { return fiber->InGuard(address); });
}

BlockResult RunBlock(const KernelLaunch& launch, uint32_t index,
                     checker::KernelState* state, bool poison_shared,
                     Random* random) {
  b.launch = &launch;
  b.outcome = {};
  b.threads =
      static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  b.warps = (b.threads + 31) / 32;
  b.done = b.at_barrier = b.any = b.count = 0;
  b.all = 1;
  const uint64_t choice = random == nullptr ? 0 : random->Next();
  b.rotate = static_cast<int>(choice % 32);
  b.descending = choice >> 32 & 1;
  gridDim = launch.grid;
  blockDim = launch.block;
  blockIdx = {index % launch.grid.x, index / launch.grid.x % launch.grid.y,
              index / launch.grid.x / launch.grid.y};
  b.ready_warps = b.warps == 32 ? ~0u : (1u << b.warps) - 1;
  uint3 at = {0, 0, 0};
  for (int t = 0; t < b.threads; ++t) {
    b.thread[t].index = at;
    b.thread[t].fiber = nullptr;
    if (++at.x == launch.block.x) {
      at.x = 0;
      if (++at.y == launch.block.y) {
        at.y = 0;
        ++at.z;
      }
    }
  }
  for (int w = 0; w < b.warps; ++w) {
    const int lanes = std::min(32, b.threads - w * 32);
    const unsigned exist = lanes == 32 ? ~0u : (1u << lanes) - 1;
    // Lanes past the block's end count as ended.
    b.warp[w] = {exist, 0, 0, 0, ~exist};
  }
  PrepareShared(launch.shared_bytes, poison_shared);
  checker::BeginBlock(state, index,
                      launch.grid.x * launch.grid.y * launch.grid.z,
                      dynamic_shared, launch.shared_bytes);
  BeginGuard();
  const int first = Next(0);
  b.thread[first].fiber = TakeFiber();
  Bind(first);
  ++switches;
  b.thread[first].fiber->SwitchFrom(main_fiber);
  // Back here: every thread has ended, or nobody can run, or one has failed.
  EndGuard();
  if (b.outcome.error == cudaSuccess && b.done < b.threads) {
    b.outcome.error = cudaErrorLaunchFailure;
    char where[64];
    snprintf(where, sizeof(where), ", block (%u, %u, %u)", blockIdx.x,
             blockIdx.y, blockIdx.z);
    b.outcome.report =
        "barrier never completed in " + launch.name + where + ": " + WhyStuck();
  }
  if (b.outcome.error == cudaSuccess &&
      !SharedRedZoneIntact(launch.shared_bytes)) {
    b.outcome.report = "write past the end of dynamic shared memory (" +
                       std::to_string(launch.shared_bytes) + " bytes) in " +
                       launch.name;
  }
  if (b.outcome.error != cudaSuccess) {
    // Fibers of threads that did not end are simply taken back.
    free_fibers.clear();
    for (const auto& fiber : all_fibers) free_fibers.push_back(fiber.get());
  }
  checker::EndBlock();
  b.launch = nullptr;
  return b.outcome;
}

int64_t SwitchCount() { return switches; }

// What kernels call.

int BlockExchange(BlockOp op, int predicate) {
  const int self = b.current;
  b.any |= predicate != 0;
  b.all &= predicate != 0;
  b.count += predicate != 0;
  Warp& w = b.warp[self / 32];
  w.at_barrier |= LaneBit(self);
  if (++b.at_barrier == b.threads) {
    b.at_barrier = 0;
    b.result = op == BlockOp::kOr    ? b.any
               : op == BlockOp::kAnd ? b.all
                                     : b.count;
    b.any = b.count = 0;
    b.all = 1;
    for (int v = 0; v < b.warps; ++v) {
      const unsigned lanes = b.warp[v].at_barrier;
      b.warp[v].at_barrier = 0;
      Wake(v, v == self / 32 ? lanes & ~LaneBit(self) : lanes);
    }
    checker::Barrier();
    return b.result;
  }
  Wait();
  return b.result;
}

void* DynamicShared() { return dynamic_shared; }

void Fence() { checker::Fence(); }
void SystemFence() {
  b.outcome.tells_host = true;
  checker::Fence();
}

void Trap(const char* what) {
  Blame(cudaErrorLaunchFailure, what);
  Abandon();
}

}  // namespace shardgraph::fake_cuda
