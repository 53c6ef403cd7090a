// Fetching memory ahead of its use, for sources compiled with SG_CPU_TARGET
// defined (kernels/cpu/target.h).
#ifndef KERNELS_MATMUL_GEMM_AHEAD_H_
#define KERNELS_MATMUL_GEMM_AHEAD_H_

#include <cstdint>

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Memory that is fetched into the first-level cache, to be written, or into the
// second-level one, in portions while something is computed: all at once it
// would keep the processor waiting.
enum class Fetched { kToWrite, kToRead };

template <Fetched kFetched>
class Ahead {
 public:
  Ahead() = default;  // nothing
  // Rows of `bytes`, `stride` bytes apart, in `times` portions, if any.
  Ahead(const void* data, int64_t stride, int64_t rows, int64_t bytes,
        int64_t times)
      : data_(static_cast<const char*>(data)),
        stride_(stride),
        rows_(rows),
        bytes_(bytes),
        portion_(
            times == 0 ? 0 : (rows * ((bytes + 63) / 64) + times - 1) / times) {
  }

  // The next portion.
  void Fetch() {
    for (int64_t i = 0; i < portion_ && rows_ > 0; ++i) {
      if (kFetched == Fetched::kToWrite) {
        __builtin_prefetch(data_ + at_, 1, 3);
      } else {
        __builtin_prefetch(data_ + at_, 0, 2);
      }
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      data_ += stride_;
      --rows_;
    }
  }

 private:
  const char* data_ = nullptr;
  int64_t stride_ = 0;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;
  int64_t portion_ = 0;  // lines
  int64_t at_ = 0;       // within the first row
};

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_MATMUL_GEMM_AHEAD_H_
