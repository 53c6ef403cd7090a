// Sums over the rows of a matrix on the CPU, for kernels to call.
//
// The bits of a sum depend on its column and on the instruction set alone.
#ifndef KERNELS_MATMUL_COLUMN_SUM_H_
#define KERNELS_MATMUL_COLUMN_SUM_H_

#include "kernels/lane.h"
#include "kernels/matmul/column_sum_tile.h"

namespace shardgraph {

// On all threads of `pool`.
void RunColumnSum(const ColumnSum& sum, ThreadPool& pool);

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_COLUMN_SUM_H_
