#include <memory>

#include "kernels/matmul/matmul.h"
#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmul(
    const KernelContext& context) {
  const bool transpose_a = context.attributes->Int("transpose_a") != 0;
  const bool transpose_b = context.attributes->Int("transpose_b") != 0;
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  const bool has_bias = context.attributes->Int("bias") != 0;
  const Elements a(context.operands[0]);
  const Elements b(context.operands[1]);
  const Elements bias(context.operands[has_bias ? 2 : 0]);
  const Elements y(context.results[0]);
  const int64_t depth = a.dim(transpose_a ? 0 : 1);
  return MakeKernel([=](Lane& lane) {
    lane.pool->ParallelFor(y.dim(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        for (int64_t n = 0; n < y.dim(1); ++n) {
          double sum = 0;
          for (int64_t k = 0; k < depth; ++k) {
            sum += (transpose_a ? a.Get(k, m) : a.Get(m, k)) *
                   (transpose_b ? b.Get(n, k) : b.Get(k, n));
          }
          if (has_bias) sum += bias.Get(n);
          if (accumulate) sum += y.Get(m, n);
          y.Set(sum, m, n);
        }
      }
    });
  });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareColumnSum(
    const KernelContext& context) {
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  const Elements x(context.operands[0]);
  const Elements y(context.results[0]);
  return MakeKernel([=](Lane&) {
    for (int64_t c = 0; c < x.dim(1); ++c) {
      double sum = 0;
      for (int64_t n = 0; n < x.dim(0); ++n) sum += x.Get(n, c);
      y.Set(sum + (accumulate ? y.Get(c) : 0), c);
    }
  });
}

constexpr KernelDef kKernels[] = {
    {.op = "matmul", .prepare = PrepareMatmul},
    {.op = "column_sum", .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulReferenceKernels() { return kKernels; }

}  // namespace shardgraph
