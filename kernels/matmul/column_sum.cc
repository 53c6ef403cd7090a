#include "kernels/matmul/column_sum.h"

#include <algorithm>

#include "kernels/cpu/target.h"

namespace shardgraph {

void RunColumnSum(const ColumnSum& sum, ThreadPool& pool) {
  const bool f16 =
      sum.x_type == ElementType::kF16 || sum.y_type == ElementType::kF16;
  ColumnSumFunction* const function =
      ForTarget(f16 ? CpuTarget::kBaseline : BestCpuTarget(),
                &baseline::SumColumns, &avx2::SumColumns, &avx512::SumColumns);
  pool.ParallelFor(
      sum.columns, kColumnSumWidth, [&](int64_t begin, int64_t end) {
        for (; begin < end; begin += kColumnSumWidth)
          function(sum, begin, std::min(begin + kColumnSumWidth, end));
      });
}

}  // namespace shardgraph
