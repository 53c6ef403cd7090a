#include "kernels/matmul/gemm.h"

#include <algorithm>

#include "kernels/check.h"

namespace shardgraph {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool GemmTakes(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

GemmMatrix AsGemmMatrix(const Tensor& tensor) {
  SG_CHECK(tensor.type.rank() == 2 && GemmTakes(tensor.type.dtype))
      << tensor.type.ToString();
  GemmMatrix matrix;
  matrix.data = tensor.data;
  matrix.bf16 = tensor.type.dtype == DType::kBF16;
  matrix.row_stride = tensor.type.strides[0];
  return matrix;
}

GemmMatrix Transposed(const GemmMatrix& matrix) {
  GemmMatrix transposed = matrix;
  std::swap(transposed.row_stride, transposed.column_stride);
  return transposed;
}

void SetGemmResult(const Tensor& tensor, GemmProblem* problem) {
  SG_CHECK(tensor.type.rank() == 2 && GemmTakes(tensor.type.dtype))
      << tensor.type.ToString();
  problem->c = tensor.data;
  problem->c_bf16 = tensor.type.dtype == DType::kBF16;
  problem->c_row_stride = tensor.type.strides[0];
}

void RunGemm(const GemmProblem& problem, ThreadPool* pool, CpuTarget target) {
  if (problem.m == 0 || problem.n == 0) return;
  GemmTileFunction* const tile = ForTarget(target, &baseline::GemmTile,
                                           &avx2::GemmTile, &avx512::GemmTile);
  // Tiles small enough that threads end at about the same time.
  const int64_t threads = pool->num_threads();
  int64_t rows = kGemmTileRows;
  int64_t columns = kGemmTileColumns;
  const auto tiles = [&] {
    return DivideUp(problem.m, rows) * DivideUp(problem.n, columns);
  };
  if (threads > 1) {
    while (tiles() < 4 * threads && rows > 48) rows /= 2;
    while (tiles() < 4 * threads && columns > 64) columns /= 2;
  }
  const int64_t row_tiles = DivideUp(problem.m, rows);
  pool->ParallelFor(tiles(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m = i % row_tiles * rows;
      const int64_t n = i / row_tiles * columns;
      tile(problem, m, std::min(m + rows, problem.m), n,
           std::min(n + columns, problem.n));
    }
  });
}

void RunGemmHere(const GemmProblem& problem, CpuTarget target) {
  class Here final : public ThreadPool {
   public:
    int num_threads() const override { return 1; }
    void ParallelFor(int64_t n, int64_t,
                     absl::FunctionRef<void(int64_t, int64_t)> body) override {
      body(0, n);
    }
  } here;
  RunGemm(problem, &here, target);
}

}  // namespace shardgraph
