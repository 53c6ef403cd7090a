#include "tests/fake_cuda/checker.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <tuple>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/symbols.h"

#define FAKE_CUDA_LIKELY(x) __builtin_expect(!!(x), 1)
#define FAKE_CUDA_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace shardgraph::fake_cuda::checker {
namespace {

using Cell = Memory::Cell;

// An access packed into 64 bits. Epochs number the stretches between barriers,
// over all blocks and operations, in the order in which they run; a block's
// epochs are consecutive, because one block runs at a time.
struct Access {
  static constexpr uint64_t kAtomic = 1, kMany = 2, kByHost = 4;
  static constexpr uint64_t Make(uint32_t epoch, unsigned thread, unsigned sync,
                                 uint64_t flags) {
    return static_cast<uint64_t>(epoch) << 32 | (thread & 0x3ff) << 22 |
           (sync & 0x3ffff) << 4 | flags;
  }
  static uint32_t Epoch(uint64_t a) { return static_cast<uint32_t>(a >> 32); }
  static int Thread(uint64_t a) { return a >> 22 & 0x3ff; }
  static unsigned Sync(uint64_t a) { return a >> 4 & 0x3ffff; }
};

struct Shared {
  const char* begin = nullptr;
  size_t bytes = 0;
  std::vector<Cell> cells;
};

struct EpochOwner {
  Serial serial;
  uint32_t block;
};

// One operation runs at a time, under the world's lock.
struct State {
  bool enabled = true;
  void (*report)(const std::string&) = nullptr;
  Memory* memory = nullptr;

  Serial serial = 0;
  const Past* past = nullptr;
  std::vector<std::string> names;  // By serial modulo Past::kWindow.
  std::vector<EpochOwner> owners;  // By epoch.
  uint32_t epoch = 0;
  uint32_t block_epoch = 0;  // The current block's first.
  KernelState* kernel = nullptr;
  uint32_t block = 0, blocks = 1;
  KernelState::Blocks acquired;  // Blocks ordered before the current one.
  bool fenced = false;
  int thread = 0;
  unsigned syncs[1024] = {};  // __syncwarp calls passed by each thread.

  std::vector<Shared> shared;          // Variables; the last is dynamic memory.
  const char* shared_begin = nullptr;  // Of all variables; there are hundreds,
  const char* shared_end = nullptr;    // and most addresses are none of theirs.
  Shared* last_shared = nullptr;       // The one last accessed.
  const char* live_begin = nullptr;    // The allocation last accessed.
  const char* live_end = nullptr;
  const void* pc = nullptr;
  std::set<std::tuple<const void*, int, Serial>> seen;
};

State g;
// Whether this OS thread executes device work.
thread_local bool t_active = false;

enum Kind { kRead, kWrite, kAtomic };
const char* const kKindName[] = {"read", "write", "atomic"};
enum Finding {
  kOutside,
  kHostMemory,
  kMisaligned,
  kUninitialized,
  kBlockRace,
  kGridRace,
  kOperationRace,
};

uint32_t NewEpoch() {
  g.owners.push_back({g.serial, g.block});
  return g.epoch = static_cast<uint32_t>(g.owners.size() - 1);
}

std::string Who() {
  std::string who = g.names[g.serial % Past::kWindow];
  if (g.kernel != nullptr) {
    who += " block " + std::to_string(g.block) + " thread " +
           std::to_string(g.thread);
    if (g.pc != nullptr) who += " (" + CodeLocation(g.pc) + ")";
  }
  return who;
}

std::string Where(const char* p) {
  for (const Shared& s : g.shared) {
    if (p >= s.begin && p < s.begin + s.bytes) {
      const bool dynamic = &s == &g.shared.back();
      return "byte " + std::to_string(p - s.begin) + " of " +
             (dynamic ? "dynamic shared memory" : "the __shared__ variables");
    }
  }
  const Shared& dynamic = g.shared.back();
  const ptrdiff_t past = p - (dynamic.begin + dynamic.bytes);
  if (dynamic.begin != nullptr && past >= 0 && past < 256) {
    return std::to_string(past) +
           " bytes past the end of dynamic shared memory of " +
           std::to_string(dynamic.bytes) + " bytes";
  }
  return g.memory->Describe(p);
}

[[gnu::cold, gnu::noinline]] void Report(Finding finding, Kind kind,
                                         const char* p, uint64_t previous) {
  const EpochOwner owner = g.owners[Access::Epoch(previous)];
  if (g.seen.size() > 50) return;
  if (!g.seen
           .insert(
               {g.pc, finding, finding == kOperationRace ? owner.serial : 0})
           .second) {
    return;
  }
  t_active = false;  // Building the text is not device work.
  std::string text;
  const std::string access = std::string(kKindName[kind]) + " by " + Who();
  switch (finding) {
    case kOutside:
      text = "outside memory: " + access;
      break;
    case kHostMemory:
      text = "host memory: " + access;
      break;
    case kMisaligned:
      text = "misaligned: " + access;
      break;
    case kUninitialized:
      text = "never written: " + access;
      break;
    case kBlockRace:
      text = "race in a block: " + access + " and thread " +
             std::to_string(Access::Thread(previous)) +
             " without a barrier between";
      break;
    case kGridRace:
      text = "race between blocks: " + access + " and block " +
             std::to_string(owner.block);
      break;
    case kOperationRace:
      text = "missing order: " + access + " and " +
             g.names[owner.serial % Past::kWindow];
      break;
  }
  text += ", " + Where(p);
  g.report(text);
  t_active = true;
}

// Whether `previous` is not ordered before the current access; which race.
[[gnu::always_inline]] inline bool Conflicts(uint64_t previous,
                                             Finding* finding) {
  const uint32_t epoch = Access::Epoch(previous);
  if (epoch == 0) return false;  // No access yet, or the host's.
  if (FAKE_CUDA_LIKELY(epoch >= g.block_epoch)) {
    if (epoch < g.epoch) return false;
    *finding = kBlockRace;
    if (previous & Access::kMany) return true;
    const int thread = Access::Thread(previous);
    if (thread == g.thread) return false;
    return !(thread / 32 == g.thread / 32 &&
             Access::Sync(previous) < (g.syncs[g.thread] & 0x3ffff));
  }
  const EpochOwner owner = g.owners[epoch];
  if (owner.serial == g.serial) {
    *finding = kGridRace;
    return g.kernel != nullptr &&
           !(owner.block < g.acquired.size() && g.acquired[owner.block]);
  }
  *finding = kOperationRace;
  return !g.past->Contains(owner.serial);
}

[[gnu::always_inline]] inline void CheckCell(Cell& cell, Kind kind,
                                             const char* p, bool shared) {
  Finding finding;
  const bool atomic = kind == kAtomic;
  if (kind != kWrite) {
    if (FAKE_CUDA_UNLIKELY(
            cell.write == 0 ||
            (shared && Access::Epoch(cell.write) < g.block_epoch))) {
      Report(kUninitialized, kind, p, 0);
      cell.write = Access::Make(g.epoch, g.thread, 0, 0);
    }
  }
  if (!(atomic && cell.write & Access::kAtomic) &&
      FAKE_CUDA_UNLIKELY(Conflicts(cell.write, &finding))) {
    if (!shared || Access::Epoch(cell.write) >= g.block_epoch) {
      Report(finding, kind, p, cell.write);
    }
  }
  const uint64_t now = Access::Make(g.epoch, g.thread, g.syncs[g.thread],
                                    atomic ? Access::kAtomic : 0);
  if (kind == kRead) {
    uint64_t& last = cell.read[0];
    if (Access::Epoch(last) == g.epoch) {
      if (Access::Thread(last) != g.thread) last |= Access::kMany;
    } else {
      if (Conflicts(last, &finding) && finding == kOperationRace) {
        cell.read[1] = last;
      }
      last = now;
    }
    return;
  }
  for (uint64_t& read : cell.read) {
    if (FAKE_CUDA_UNLIKELY(Conflicts(read, &finding)) &&
        (!shared || Access::Epoch(read) >= g.block_epoch)) {
      Report(finding, kind, p, read);
    }
    read = 0;
  }
  cell.write = now;
}

// Finds the cells of [p, p + bytes); null if there is nothing to check.
[[gnu::noinline]] Cell* FindSlowly(const char* p, size_t bytes, Kind kind,
                                   bool* shared) {
  if (g.memory->InDevice(p) || g.memory->InPinned(p)) {
    const Allocation* a = g.memory->Find(p);
    if (a == nullptr || a->freed || p + bytes > a->begin + a->bytes) {
      Report(kOutside, kind,
             a == nullptr ? p
             : a->freed   ? p
                          : a->begin + a->bytes,
             0);
      return nullptr;
    }
    Cell* cells = g.memory->CellOf(p);
    if (a->device < 0) {  // Pinned: the host may have written anything.
      for (size_t i = 0; i < (bytes + 1) / 2; ++i) {
        if (cells[i].write == 0) cells[i].write = Access::kByHost;
      }
    } else {
      g.live_begin = a->begin;
      g.live_end = a->begin + a->bytes;
    }
    return cells;
  }
  Shared& dynamic = g.shared.back();
  const auto within = [p](const Shared& s) {
    return p >= s.begin && p < s.begin + s.bytes;
  };
  Shared* found = within(dynamic) ? &dynamic : nullptr;
  if (found == nullptr && p >= g.shared_begin && p < g.shared_end) {
    const auto at = std::find_if(g.shared.begin(), g.shared.end(), within);
    if (at != g.shared.end()) found = &*at;
  }
  if (found != nullptr) {
    *shared = true;
    g.last_shared = found;
    return &found->cells[static_cast<size_t>(p - found->begin) / 2];
  }
  // Just past the dynamic shared memory: the red zone behind it.
  if (p >= dynamic.begin + dynamic.bytes &&
      p < dynamic.begin + dynamic.bytes + 256) {
    Report(kOutside, kind, p, 0);
    return nullptr;
  }
  // The fiber's stack: local variables. Threads run on fibers, so any address
  // near the current frame is one.
  const char* frame = static_cast<const char*>(__builtin_frame_address(0));
  if (p > frame - (1 << 20) && p < frame + (1 << 20)) return nullptr;
  if (InImage(p)) return nullptr;  // Constants, __device__ variables.
  Report(kHostMemory, kind, p, 0);
  return nullptr;
}

[[gnu::always_inline]] inline void Check(const void* address, size_t bytes,
                                         Kind kind, bool aligned,
                                         const void* pc) {
  if (!t_active) return;
  const char* p = static_cast<const char*>(address);
  g.pc = pc;
  Cell* cells;
  bool shared = false;
  if (FAKE_CUDA_LIKELY(p >= g.live_begin && p + bytes <= g.live_end)) {
    cells = g.memory->CellOf(p);
  } else if (Shared* s = g.last_shared; s != nullptr && p >= s->begin &&
                                        p + bytes <= s->begin + s->bytes) {
    shared = true;
    cells = &s->cells[static_cast<size_t>(p - s->begin) / 2];
  } else {
    cells = FindSlowly(p, bytes, kind, &shared);
    if (cells == nullptr) return;
  }
  if (aligned &&
      FAKE_CUDA_UNLIKELY(reinterpret_cast<uintptr_t>(p) % bytes != 0)) {
    Report(kMisaligned, kind, p, 0);
  }
  if (FAKE_CUDA_UNLIKELY(bytes == 1)) {
    // Two bytes share a cell: neighbours would look like races. Only remember
    // that it was written.
    if (kind != kRead && cells->write == 0) {
      cells->write = Access::Make(g.epoch, g.thread, g.syncs[g.thread], 0);
    }
    return;
  }
  for (size_t i = 0; i < bytes / 2; ++i) {
    CheckCell(cells[i], kind, p + 2 * i, shared);
  }
}

[[maybe_unused]] void CheckAtomic(const volatile void* address, size_t bytes,
                                  const void* pc) {
  if (!t_active) return;
  const void* p = const_cast<const void*>(address);
  Check(p, bytes, kAtomic, true, pc);
  if (g.kernel == nullptr) return;
  auto& released = g.kernel->released[p];
  released.resize(g.blocks);
  g.acquired.resize(g.blocks);
  for (uint32_t b = 0; b < g.blocks; ++b) {
    if (released[b]) g.acquired[b] = true;
  }
  if (g.fenced) {
    for (uint32_t b = 0; b < g.blocks; ++b) {
      if (g.acquired[b]) released[b] = true;
    }
    released[g.block] = true;
  }
}

bool CheckRange(const void* address, size_t bytes, Kind kind,
                bool used = false) {
  auto* p = static_cast<const char*>(address);
  if (bytes == 0) return true;
  if (!g.memory->InDevice(p) && !g.memory->InPinned(p)) return true;
  g.pc = nullptr;
  if (!g.memory->Live(p, bytes)) {
    const Allocation* a = g.memory->Find(p);
    Report(kOutside, kind, a == nullptr || a->freed ? p : a->begin + a->bytes,
           0);
    return false;
  }
  if (!g.enabled) return true;
  Cell* cells = g.memory->CellOf(p);
  const size_t count = (bytes + reinterpret_cast<uintptr_t>(p) % 2 + 1) / 2;
  // Long stretches have one history: what becomes of it is found once.
  Cell before = {}, after = {};
  for (size_t i = 0; i < count; ++i) {
    Cell& cell = cells[i];
    if (kind == kRead && !used && cell.write == 0) continue;
    if (i > 0 && cell == before) {
      cell = after;
      continue;
    }
    before = cell;
    CheckCell(cell, kind, p + 2 * i, false);
    after = cell;
  }
  return true;
}

// The cells from that of `begin` up to, not including, that of `end`.
void SetCells(const void* begin, const void* end, const Cell& cell) {
  if (!g.enabled || begin >= end) return;
  std::fill(g.memory->CellOf(begin), g.memory->CellOf(end), cell);
}

}  // namespace

void Reset(bool enabled, void (*report)(const std::string&)) {
  g = State();
  g.enabled = enabled;
  g.report = report;
  g.memory = &Memory::Get();
  g.names.resize(Past::kWindow);
  g.owners.push_back({0, 0});
  for (std::span<char> s : SharedVariables()) {
    g.shared.push_back(
        {s.data(), s.size(), std::vector<Cell>(s.size() / 2 + 1)});
    const char* const end = s.data() + s.size();
    if (g.shared_begin == nullptr || s.data() < g.shared_begin)
      g.shared_begin = s.data();
    if (end > g.shared_end) g.shared_end = end;
  }
  g.shared.push_back({});
  g.shared.back().cells.resize((256 << 10) / 2);
}

bool Enabled() { return g.enabled; }

void BeginOperation(Serial serial, const std::string& name, const Past* past) {
  g.serial = serial;
  g.past = past;
  g.names[serial % Past::kWindow] = name;
  g.kernel = nullptr;
  g.thread = 0;
  g.live_begin = g.live_end = nullptr;
  g.block_epoch = NewEpoch();
  t_active = g.enabled;
}

void EndOperation() {
  t_active = false;
  g.live_begin = g.live_end = nullptr;
}

bool Read(const void* p, size_t bytes, bool used) {
#if defined(SG_TSAN) || defined(SG_ASAN)  // What kernels write is not seen.
  used = false;
#endif
  return CheckRange(p, bytes, kRead, used);
}
bool Write(const void* p, size_t bytes) { return CheckRange(p, bytes, kWrite); }

void MarkUnwritten(const void* p, size_t bytes) {
  // A cell is two bytes: of those that are half inside, nothing is forgotten.
  const auto* begin = static_cast<const char*>(p);
  const char* end = begin + bytes;
  begin += reinterpret_cast<uintptr_t>(begin) % 2;
  SetCells(begin, end, Cell{});
}

void MarkWritten(const void* p, size_t bytes) {
  const auto* begin = static_cast<const char*>(p);
  const char* end = begin + bytes;
  end += reinterpret_cast<uintptr_t>(end) % 2;
  SetCells(begin, end, Cell{.write = Access::kByHost});
}

void BeginBlock(KernelState* kernel, uint32_t block, uint32_t blocks,
                char* dynamic_shared, size_t dynamic_shared_bytes) {
  g.kernel = kernel;
  g.block = block;
  g.blocks = blocks;
  g.acquired.clear();
  g.fenced = false;
  g.shared.back().begin = dynamic_shared;
  g.shared.back().bytes = dynamic_shared_bytes;
  g.block_epoch = NewEpoch();
}

void EndBlock() {
  g.kernel = nullptr;
  g.shared.back().bytes = 0;
}

void Barrier() { NewEpoch(); }

void WarpBarrier(int first_thread, unsigned lanes) {
  unsigned most = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) most = std::max(most, g.syncs[first_thread + lane]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) g.syncs[first_thread + lane] = most + 1;
  }
}

void Fence() { g.fenced = true; }

void SetThread(int thread) { g.thread = thread; }

}  // namespace shardgraph::fake_cuda::checker

// What the compiler calls under -fsanitize=thread.
//
// Not in a build with the real ThreadSanitizer, which brings its own: there,
// kernels and the double are compiled without the flag.
#ifndef SG_TSAN

#define FAKE_CUDA_PC __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define FAKE_CUDA_ACCESS(size)                                                 \
  void __tsan_read##size(void* p) {                                            \
    ::shardgraph::fake_cuda::checker::Check(                                   \
        p, size, ::shardgraph::fake_cuda::checker::kRead, true, FAKE_CUDA_PC); \
  }                                                                            \
  void __tsan_write##size(void* p) {                                           \
    ::shardgraph::fake_cuda::checker::Check(                                   \
        p, size, ::shardgraph::fake_cuda::checker::kWrite, true,               \
        FAKE_CUDA_PC);                                                         \
  }                                                                            \
  void __tsan_unaligned_read##size(void* p) {                                  \
    ::shardgraph::fake_cuda::checker::Check(                                   \
        p, size, ::shardgraph::fake_cuda::checker::kRead, false,               \
        FAKE_CUDA_PC);                                                         \
  }                                                                            \
  void __tsan_unaligned_write##size(void* p) {                                 \
    ::shardgraph::fake_cuda::checker::Check(                                   \
        p, size, ::shardgraph::fake_cuda::checker::kWrite, false,              \
        FAKE_CUDA_PC);                                                         \
  }                                                                            \
  void __tsan_volatile_read##size(void* p) { __tsan_read##size(p); }           \
  void __tsan_volatile_write##size(void* p) { __tsan_write##size(p); }
FAKE_CUDA_ACCESS(1)
FAKE_CUDA_ACCESS(2)
FAKE_CUDA_ACCESS(4)
FAKE_CUDA_ACCESS(8)
FAKE_CUDA_ACCESS(16)

void __tsan_read_range(void* p, unsigned long bytes) {
  ::shardgraph::fake_cuda::checker::Check(
      p, bytes, ::shardgraph::fake_cuda::checker::kRead, false, FAKE_CUDA_PC);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  ::shardgraph::fake_cuda::checker::Check(
      p, bytes, ::shardgraph::fake_cuda::checker::kWrite, false, FAKE_CUDA_PC);
}

#define FAKE_CUDA_CHECK_ATOMIC(p) \
  ::shardgraph::fake_cuda::checker::CheckAtomic(p, sizeof(*(p)), FAKE_CUDA_PC)
#define FAKE_CUDA_ATOMIC(bits, type)                                        \
  type __tsan_atomic##bits##_load(const volatile type* p, int) {            \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                            \
  }                                                                         \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) {         \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                               \
  }                                                                         \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {      \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                     \
  }                                                                         \
  type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {     \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                      \
  }                                                                         \
  type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {     \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                      \
  }                                                                         \
  type __tsan_atomic##bits##_fetch_and(volatile type* p, type v, int) {     \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                      \
  }                                                                         \
  type __tsan_atomic##bits##_fetch_or(volatile type* p, type v, int) {      \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                       \
  }                                                                         \
  type __tsan_atomic##bits##_fetch_xor(volatile type* p, type v, int) {     \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);                      \
  }                                                                         \
  int __tsan_atomic##bits##_compare_exchange_strong(                        \
      volatile type* p, type* expected, type v, int, int) {                 \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_compare_exchange_n(p, expected, v, false,               \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(                          \
      volatile type* p, type* expected, type v, int, int) {                 \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    return __atomic_compare_exchange_n(p, expected, v, false,               \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                         \
  type __tsan_atomic##bits##_compare_exchange_val(                          \
      volatile type* p, type expected, type v, int, int) {                  \
    FAKE_CUDA_CHECK_ATOMIC(p);                                              \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST,   \
                                __ATOMIC_SEQ_CST);                          \
    return expected;                                                        \
  }
FAKE_CUDA_ATOMIC(8, uint8_t)
FAKE_CUDA_ATOMIC(16, uint16_t)
FAKE_CUDA_ATOMIC(32, uint32_t)
FAKE_CUDA_ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int) {
  ::shardgraph::fake_cuda::checker::Fence();
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

#endif  // SG_TSAN
