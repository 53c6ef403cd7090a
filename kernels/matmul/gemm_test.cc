#include "kernels/matmul/gemm.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matmul/gemm_doubles.h"
#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// Integers in all forms of a product: exact, whatever the order of sums.
class GemmTest : public ::testing::Test {
 protected:
  // [rows, columns] of small integers, F32 or BF16, transposed or not.
  struct Matrix {
    std::vector<float> values;  // row-major, as the product sees them
    std::vector<char> memory;
    GemmMatrix matrix;
  };
  static Matrix MakeMatrix(int64_t rows, int64_t columns, bool bf16,
                           bool transposed, int seed) {
    Matrix result;
    const DType dtype = bf16 ? DType::kBF16 : DType::kF32;
    result.values.resize(rows * columns);
    result.memory.resize(rows * columns * SizeOf(dtype));
    const Tensor tensor{result.memory.data(),
                        TensorType(dtype, transposed ? Dims{columns, rows}
                                                     : Dims{rows, columns})};
    const Elements elements(tensor);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const float value = (i * 7 + j * 5 + i * j % 17 + seed) % 11 - 5;
        result.values[i * columns + j] = value;
        if (transposed) {
          elements.Set(value, j, i);
        } else {
          elements.Set(value, i, j);
        }
      }
    }
    result.matrix = AsGemmMatrix(tensor);
    if (transposed) result.matrix = Transposed(result.matrix);
    return result;
  }

  // Runs `run` on all four orientations of a product.
  static void CheckExact(Sizes sizes, bool bf16,
                         absl::FunctionRef<void(const GemmProblem&)> run) {
    const auto [m, n, k] = sizes;
    // The same values in every orientation.
    const Matrix rows = MakeMatrix(m, k, bf16, false, 1);
    const Matrix columns = MakeMatrix(k, n, bf16, false, 2);
    std::vector<float> expected(m * n);
    for (int64_t i = 0; i < m; ++i) {
      float* const out = expected.data() + i * n;
      for (int64_t p = 0; p < k; ++p) {
        const float x = rows.values[i * k + p];
        const float* const y = columns.values.data() + p * n;
        for (int64_t j = 0; j < n; ++j) out[j] += x * y[j];
      }
    }
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Matrix a = MakeMatrix(m, k, bf16, transpose_a, 1);
        const Matrix b = MakeMatrix(k, n, bf16, transpose_b, 2);
        std::vector<float> c(m * n, 0.5f);
        GemmProblem problem;
        problem.m = m;
        problem.n = n;
        problem.k = k;
        problem.a = a.matrix;
        problem.b = b.matrix;
        SetGemmResult({c.data(), TensorType(DType::kF32, {m, n})}, &problem);
        run(problem);
        for (int64_t i = 0; i < m * n; ++i) {
          ASSERT_EQ(c[i], expected[i])
              << "at " << i / n << "," << i % n << " transpose_a "
              << transpose_a << " transpose_b " << transpose_b;
        }
      }
    }
  }
};

TEST_F(GemmTest, EveryTargetIsExact) {
  for (const CpuTarget target : SupportedCpuTargets()) {
    SCOPED_TRACE(static_cast<int>(target));
    for (const bool bf16 : {false, true}) {
      CheckExact({14, 258, 258}, bf16, [&](const GemmProblem& problem) {
        RunGemmHere(problem, target);
      });
    }
  }
}

// Large enough to share packed panels, in chunks of columns and tiles of
// several shapes.
TEST_F(GemmTest, SharedPanelsAreExact) {
  const Sizes sizes = {203, 530, 130};
  const int64_t bytes = GemmScratchBytes(sizes.m, sizes.n, sizes.k);
  ASSERT_GT(bytes, 0);
  void* const scratch = std::aligned_alloc(64, bytes);
  const std::unique_ptr<ThreadPool> threads = MakeThreadPool(3);
  for (const CpuTarget target : SupportedCpuTargets()) {
    for (const int64_t part : {1, 5}) {
      CheckExact(sizes, part == 1, [&](const GemmProblem& problem) {
        GemmOptions options;
        options.target = target;
        options.scratch = scratch;
        options.scratch_bytes = bytes / part;
        RunGemm(problem, threads.get(), options);
      });
    }
  }
  std::free(scratch);
}

// Blocks of k, of rows and of columns, whole and in part, with and without
// shared panels.
TEST_F(GemmTest, DoublesAreExact) {
  const std::unique_ptr<ThreadPool> threads = MakeThreadPool(2);
  alignas(64) static char scratch[1 << 18];
  for (const GemmKernels* kernels :
       {&amx_double::kGemmKernels, &avx512_bf16_double::kGemmKernels,
        &avx512_double::kGemmKernels}) {
    const GemmKernelsOverride only(*kernels);
    for (const Sizes sizes :
         {Sizes{64, 96, 800}, Sizes{33, 70, 769}, Sizes{40, 50, 1057},
          Sizes{1, 1, 1}, Sizes{250, 40, 31}}) {
      for (const int64_t bytes : {0, 1 << 18}) {
        CheckExact(sizes, true, [&](const GemmProblem& problem) {
          GemmOptions options;
          options.scratch = scratch;
          options.scratch_bytes = bytes;
          RunGemm(problem, threads.get(), options);
        });
      }
    }
  }
}

TEST_F(GemmTest, ScratchIsForLargeProducts) {
  EXPECT_EQ(GemmScratchBytes(10, 1000, 1000), 0);
  EXPECT_EQ(GemmScratchBytes(1000, 10, 10), 0);
  EXPECT_EQ(GemmScratchBytes(1000, 10, 0), 0);
  EXPECT_EQ(GemmScratchBytes(1000, 1000, 1000), 1024 * 1024 * 4);
  EXPECT_LE(GemmScratchBytes(1000, 100000, 1000), int64_t{8} << 20);
  // Long panels: more memory, for 256 columns.
  EXPECT_EQ(GemmScratchBytes(1000, 1000, 14336), 256 * 14336 * 4);
  // Longer ones: too few fit to be worth it.
  EXPECT_EQ(GemmScratchBytes(1000, 1000, 100000), 0);
}

}  // namespace
}  // namespace shardgraph
