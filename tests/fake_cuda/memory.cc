#include "tests/fake_cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace shardgraph::fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlign = 256;
constexpr size_t kDeviceBytes = size_t{8} << 30;  // What a device "has".
constexpr unsigned char kFresh = 0xff;
constexpr unsigned char kRedZone = 0xfb;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

char* Reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    perror("fake_cuda: reserving address space");
    abort();
  }
  return static_cast<char*>(p);
}

}  // namespace

Memory& Memory::Get() {
  static Memory* const memory = new Memory;
  return *memory;
}

Memory::Memory()
    : base_(Reserve(2 * kRange)),
      cells_(reinterpret_cast<Cell*>(Reserve(2 * kRange / 2 * sizeof(Cell)))) {}

void Memory::Reset() {
  for (auto* list : {&device_, &pinned_}) {
    for (const Allocation& a : *list) {
      if (!a.freed) Free(a.begin, a.device < 0);
    }
    list->clear();
  }
  serial_ = 0;
  protected_ = false;
  // Addresses are not used again, except when the range is half used up.
  for (size_t* next : {&next_device_, &next_pinned_}) {
    if (*next < kRange / 2) continue;
    *next = 0;
    madvise(cells_, 2 * kRange / 2 * sizeof(Cell), MADV_DONTNEED);
  }
}

char* Memory::Allocate(size_t bytes, int device) {
  const bool pinned = device < 0;
  if (!pinned && BytesLive(device) + bytes > kDeviceBytes) return nullptr;
  size_t& next = pinned ? next_pinned_ : next_device_;
  Allocation a = {};
  a.bytes = bytes;
  // [page, inaccessible][red zone][memory][red zone][page, inaccessible]; the
  // end is as close to the inaccessible page as the alignment allows.
  a.page_bytes = RoundUp(bytes + kAlign, kPage);
  const size_t offset = next + kPage;
  if (offset + a.page_bytes + kPage > kRange) return nullptr;
  next = offset + a.page_bytes;
  a.pages = base_ + (pinned ? kRange : 0) + offset;
  a.begin =
      a.pages + (a.page_bytes - std::max<size_t>(bytes, 1)) / kAlign * kAlign;
  a.serial = ++serial_;
  a.device = device;
  if (mprotect(a.pages, a.page_bytes, PROT_READ | PROT_WRITE) != 0) {
    return nullptr;
  }
  memset(a.pages, kRedZone, a.page_bytes);
  memset(a.begin, kFresh, bytes);
  Cell* cells = CellOf(a.pages);
  const auto cells_begin = reinterpret_cast<uintptr_t>(cells) / kPage * kPage;
  const auto cells_end = RoundUp(
      reinterpret_cast<uintptr_t>(cells) + a.page_bytes / 2 * sizeof(Cell),
      kPage);
  mprotect(reinterpret_cast<void*>(cells_begin), cells_end - cells_begin,
           PROT_READ | PROT_WRITE);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(a.pages, a.page_bytes);
  __asan_unpoison_memory_region(a.begin, bytes);
#endif
  (pinned ? pinned_ : device_).push_back(a);
  if (protected_ && !pinned) mprotect(a.pages, a.page_bytes, PROT_NONE);
  return a.begin;
}

bool Memory::Free(void* pointer, bool pinned) {
  auto& list = pinned ? pinned_ : device_;
  auto a = std::lower_bound(
      list.begin(), list.end(), pointer,
      [](const Allocation& x, const void* p) { return x.begin < p; });
  if (a == list.end() || a->begin != pointer || a->freed) return false;
  a->freed = true;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(a->pages, a->page_bytes);
#endif
  madvise(a->pages, a->page_bytes, MADV_DONTNEED);
  mprotect(a->pages, a->page_bytes, PROT_NONE);
  Cell* cells = CellOf(a->pages);
  const auto begin = RoundUp(reinterpret_cast<uintptr_t>(cells), kPage);
  const auto end =
      (reinterpret_cast<uintptr_t>(cells) + a->page_bytes / 2 * sizeof(Cell)) /
      kPage * kPage;
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return true;
}

const Allocation* Memory::Find(const void* p) const {
  const auto& list = InPinned(p) ? pinned_ : device_;
  auto next = std::upper_bound(
      list.begin(), list.end(), p,
      [](const void* q, const Allocation& a) { return q < a.pages; });
  if (next == list.begin()) return nullptr;
  const Allocation& a = *std::prev(next);
  const char* at = static_cast<const char*>(p);
  return at >= a.begin && at < a.begin + a.bytes ? &a : nullptr;
}

bool Memory::Live(const void* p, size_t bytes) const {
  const Allocation* a = Find(p);
  return a != nullptr && !a->freed &&
         static_cast<const char*>(p) + bytes <= a->begin + a->bytes;
}

std::string Memory::Describe(const void* p) const {
  char text[256];
  if (!InDevice(p) && !InPinned(p)) {
    snprintf(text, sizeof(text), "%p, not memory of the device", p);
    return text;
  }
  const auto& list = InPinned(p) ? pinned_ : device_;
  const char* at = static_cast<const char*>(p);
  const Allocation* best = nullptr;
  for (const Allocation& a : list) {
    // The nearest by its pages, one page further out on either side.
    if (at >= a.pages - kPage && at < a.pages + a.page_bytes + kPage) {
      if (best == nullptr || at >= a.pages) best = &a;
    }
  }
  if (best == nullptr) {
    snprintf(text, sizeof(text), "%p, never allocated", p);
    return text;
  }
  const char* kind = best->device < 0 ? "pinned" : "device";
  if (at < best->begin) {
    snprintf(text, sizeof(text),
             "%td bytes before %s allocation #%d of %zu bytes",
             best->begin - at, kind, best->serial, best->bytes);
  } else if (at >= best->begin + best->bytes) {
    snprintf(text, sizeof(text),
             "%td bytes past the end of %s allocation #%d of %zu bytes",
             at - (best->begin + best->bytes), kind, best->serial, best->bytes);
  } else {
    snprintf(text, sizeof(text), "byte %td of %s%s allocation #%d of %zu bytes",
             at - best->begin, best->freed ? "freed " : "", kind, best->serial,
             best->bytes);
  }
  return text;
}

std::string Memory::CheckRedZones() {
#if defined(__SANITIZE_ADDRESS__)
  return "";  // AddressSanitizer reports the access itself.
#endif
  static const std::string& red = *new std::string(512, kRedZone);
  std::string report;
  const bool was_protected = protected_;
  Protect(false);
  for (auto* list : {&device_, &pinned_}) {
    for (const Allocation& a : *list) {
      if (a.freed) continue;
      // At most the 512 bytes nearest to the memory: runs past them hit the
      // inaccessible page or other red bytes checked when memory is freed.
      char* ranges[2][2] = {
          {std::max(a.pages, a.begin - red.size()), a.begin},
          {a.begin + a.bytes,
           std::min(a.pages + a.page_bytes, a.begin + a.bytes + red.size())}};
      for (auto& range : ranges) {
        if (memcmp(range[0], red.data(), range[1] - range[0]) == 0) continue;
        for (char* p = range[0]; p < range[1]; ++p) {
          if (static_cast<unsigned char>(*p) == kRedZone) continue;
          report += "write outside memory: " + Describe(p) + "\n";
          memset(range[0], kRedZone, static_cast<size_t>(range[1] - range[0]));
          break;
        }
      }
    }
  }
  Protect(was_protected);
  return report;
}

void Memory::Protect(bool inaccessible) {
  if (protected_ == inaccessible) return;
  protected_ = inaccessible;
  for (const Allocation& a : device_) {
    if (a.freed) continue;
    mprotect(a.pages, a.page_bytes,
             inaccessible ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
}

size_t Memory::BytesLive(int device) const {
  size_t bytes = 0;
  for (const Allocation& a : device_) {
    if (!a.freed && a.device == device) bytes += a.bytes;
  }
  return bytes;
}

int Memory::CountLive() const {
  int count = 0;
  for (const auto* list : {&device_, &pinned_}) {
    for (const Allocation& a : *list) count += !a.freed;
  }
  return count;
}

}  // namespace shardgraph::fake_cuda
