#include "kernels/benchmark/large_pages.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "kernels/check.h"

namespace shardgraph {

LargePages::LargePages(int64_t bytes) {
  constexpr int64_t kPage = 2 << 20;
  const int64_t size = (bytes + kPage) / kPage * kPage;
  data_ = std::aligned_alloc(kPage, size);
  SG_CHECK(data_ != nullptr) << size << " bytes";
  madvise(data_, size, MADV_HUGEPAGE);
  std::memset(data_, 0, size);
}

LargePages::~LargePages() { std::free(data_); }

}  // namespace shardgraph
