// OnednnMatmul: the yardstick of matrix products: what oneDNN takes for them
// on the calling thread (OMP_NUM_THREADS says how many it uses).
#ifndef TOOLS_BENCH_ONEDNN_MATMUL_H_
#define TOOLS_BENCH_ONEDNN_MATMUL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace shardgraph {

// a [M, K], b [K, N], y [M, N]; transposed operands are stored the other way
// round.
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::kBF16, out = DType::kBF16;  // BF16 or F32

  double flops() const { return 2.0 * m * n * k; }
  friend auto operator<=>(const MatmulShape&, const MatmulShape&) = default;
};

class OnednnMatmul {
 public:
  // `packed`: b in the layout that oneDNN likes best, packed beforehand.
  // Operands are arbitrary numbers: processors compute faster on equal ones.
  // Unimplemented where oneDNN has no such product on this processor (BF16
  // needs AVX-512).
  static absl::StatusOr<std::unique_ptr<OnednnMatmul>> Create(
      const MatmulShape& shape, bool packed);
  virtual ~OnednnMatmul() = default;

  // Seconds of one product.
  virtual double Run() = 0;
};

// A large product, the measure of a processor: BF16, 4096^3; where oneDNN has
// no BF16, F32, 2048^3.
MatmulShape LargeMatmulShape();

}  // namespace shardgraph

#endif  // TOOLS_BENCH_ONEDNN_MATMUL_H_
