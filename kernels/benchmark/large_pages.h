// LargePages: memory for benchmarks, in large pages where the system has them,
// as the CPU backend's arena is. Small pages cost kernels that read rows far
// apart up to a tenth of their time.
#ifndef KERNELS_BENCHMARK_LARGE_PAGES_H_
#define KERNELS_BENCHMARK_LARGE_PAGES_H_

#include <cstdint>

namespace shardgraph {

class LargePages {
 public:
  explicit LargePages(int64_t bytes);  // zeros
  ~LargePages();
  LargePages(LargePages&& other) noexcept : data_(other.data_) {
    other.data_ = nullptr;
  }
  LargePages& operator=(LargePages&&) = delete;

  void* data() const { return data_; }

 private:
  void* data_;
};

}  // namespace shardgraph

#endif  // KERNELS_BENCHMARK_LARGE_PAGES_H_
