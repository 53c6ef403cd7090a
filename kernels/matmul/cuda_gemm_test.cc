// How products are divided among cuBLASLt, its epilogues and the own kernels;
// what they compute is in matmul_test.

#include "kernels/matmul/cuda_gemm.h"

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"

namespace shardgraph::cuda {
namespace {

using ::testing::HasSubstr;

class CudaGemmTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 1 << 20;

  CudaGemmTest() {
    fake_cuda::Reset({});
    fake_cuda::TakeReport();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    memory_ = static_cast<char*>(memory);
    EXPECT_EQ(cudaMemsetAsync(memory_, 0, kBytes, stream_), cudaSuccess);
  }
  ~CudaGemmTest() override {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaFree(memory_);
    cudaStreamDestroy(stream_);
    EXPECT_EQ(fake_cuda::TakeReport(), "");
  }

  // c [40, 64] = a [40, 96] b^T, in memory of its own.
  GemmLaunch Launch(ElementType type) {
    GemmLaunch launch;
    launch.type = launch.c_type = type;
    launch.m = 40;
    launch.n = 64;
    launch.k = 96;
    launch.a = {Take(), launch.k, 1};
    launch.b = {Take(), 1, launch.k};
    launch.c = {Take(), launch.n};
    return launch;
  }
  void AddFunction(Pointwise function, GemmLaunch* launch) {
    launch->has_function = true;
    launch->function = function;
    launch->x = {Take(), launch->n, 1};
    launch->z = {Take(), launch->n};
  }
  char* Take() {
    taken_ += 40960;
    return memory_ + taken_;
  }
  Tensor Workspace(int64_t bytes) {
    return {Take(), TensorType(DType::kU8, {bytes})};
  }

  // The epilogues of the products that it takes.
  std::vector<int> Run(const GemmLaunch& launch, const Tensor& workspace,
                       std::string* reason = nullptr,
                       const GemmColumnSum* sum = nullptr) {
    const size_t before = fake_cuda::GetMatmuls().size();
    const auto gemm = CudaGemm::Prepare(launch, workspace, sum);
    EXPECT_TRUE(gemm.ok()) << gemm.status();
    if (!gemm.ok()) return {};
    if (reason != nullptr) *reason = gemm->own_kernel_reason();
    EXPECT_TRUE(gemm->Launch(stream_).ok());
    std::vector<int> epilogues;
    for (const fake_cuda::MatmulCall& call : fake_cuda::GetMatmuls())
      epilogues.push_back(call.epilogue);
    epilogues.erase(epilogues.begin(), epilogues.begin() + before);
    return epilogues;
  }
  int64_t Kernels() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return fake_cuda::GetCounters().kernels;
  }

  cudaStream_t stream_ = nullptr;
  char* memory_ = nullptr;
  int64_t taken_ = 0;
};

using Epilogues = std::vector<int>;

TEST_F(CudaGemmTest, LibraryMultipliesWithBiasAndAccumulation) {
  GemmLaunch launch = Launch(ElementType::kBF16);
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_DEFAULT});
  launch.bias = Take();
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_BIAS});
  launch.bias = nullptr;
  launch.c_type = ElementType::kF32;
  launch.accumulate = true;
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_DEFAULT});
  const fake_cuda::MatmulCall call = fake_cuda::GetMatmuls().back();
  EXPECT_TRUE(call.accumulates);
  EXPECT_FALSE(call.tf32);
  // Row-major: the library sees the transposed product.
  EXPECT_EQ(call.m, launch.n);
  EXPECT_EQ(call.n, launch.m);
  EXPECT_EQ(Kernels(), 0);
}

TEST_F(CudaGemmTest, HeuristicRunsOncePerShape) {
  const auto heuristics = [] {
    return fake_cuda::GetCalls()["cublasLtMatmulAlgoGetHeuristic"];
  };
  const auto first = CudaGemm::Prepare(Launch(ElementType::kF32), Tensor());
  const auto second = CudaGemm::Prepare(Launch(ElementType::kF32), Tensor());
  EXPECT_EQ(heuristics(), 1);
  GemmLaunch launch = Launch(ElementType::kF32);
  launch.a.data = static_cast<const char*>(launch.a.data) + 4;
  const auto misaligned = CudaGemm::Prepare(launch, Tensor());
  EXPECT_EQ(heuristics(), 2);
  EXPECT_EQ(fake_cuda::GetCalls()["cublasLtCreate"], 1);
  EXPECT_TRUE(misaligned->Launch(stream_).ok());
}

TEST_F(CudaGemmTest, TakesNoMoreThanItsWorkspace) {
  const GemmLaunch launch = Launch(ElementType::kF32);
  for (const int64_t bytes : {0, 1024, 40 * 64 * 8}) {
    Run(launch, Workspace(bytes));
    EXPECT_LE(fake_cuda::GetMatmuls().back().workspace, bytes);
  }
  EXPECT_GT(fake_cuda::GetMatmuls().back().workspace, 0);
}

TEST_F(CudaGemmTest, GeluIsAnEpilogue) {
  GemmLaunch launch = Launch(ElementType::kBF16);
  AddFunction(Pointwise::kGeluTanh, &launch);
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_GELU_AUX});
  launch.bias = Take();
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
  launch.c.data = nullptr;
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_GELU_BIAS});
  launch.bias = nullptr;
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_GELU});
  launch.function = Pointwise::kGeluTanhGradient;
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_DGELU});
  EXPECT_EQ(Kernels(), 0);
  // Rows that the library does not take: two kernels.
  launch = Launch(ElementType::kBF16);
  AddFunction(Pointwise::kGeluTanh, &launch);
  launch.c.row_stride = 66;
  EXPECT_EQ(Run(launch, Tensor()), Epilogues{CUBLASLT_EPILOGUE_DEFAULT});
  EXPECT_EQ(Kernels(), 1);
}

// Sums of an operand are an epilogue where nothing is added to them.
TEST_F(CudaGemmTest, ColumnSumsAreAnEpilogue) {
  GemmLaunch launch = Launch(ElementType::kBF16);
  launch.c_type = ElementType::kF32;
  GemmColumnSum sum;
  sum.launch.x = launch.a.data;
  sum.launch.x_type = ElementType::kBF16;
  sum.launch.y = Take();
  launch.a = {launch.a.data, 1, launch.m};
  sum.launch.row_stride = sum.launch.columns = launch.m;
  sum.launch.rows = launch.k;
  EXPECT_EQ(Run(launch, Tensor(), nullptr, &sum),
            Epilogues{CUBLASLT_EPILOGUE_BGRADB});
  sum.of_b = true;
  sum.launch.x = launch.b.data;
  launch.b = {launch.b.data, launch.n, 1};
  sum.launch.row_stride = sum.launch.columns = launch.n;
  EXPECT_EQ(Run(launch, Tensor(), nullptr, &sum),
            Epilogues{CUBLASLT_EPILOGUE_BGRADA});
  EXPECT_EQ(Kernels(), 0);
  // Two kernels.
  sum.launch.accumulate = true;
  EXPECT_EQ(Run(launch, Tensor(), nullptr, &sum),
            Epilogues{CUBLASLT_EPILOGUE_DEFAULT});
  EXPECT_EQ(Kernels(), 1);
  sum.launch.accumulate = false;
  sum.launch.y_type = ElementType::kBF16;
  EXPECT_EQ(Run(launch, Tensor(), nullptr, &sum),
            Epilogues{CUBLASLT_EPILOGUE_DEFAULT});
  EXPECT_EQ(Kernels(), 2);
}

// A function without an epilogue: over the kept product, or some rows of it at
// a time in the workspace, or an own kernel.
TEST_F(CudaGemmTest, OtherFunctionsFollow) {
  GemmLaunch launch = Launch(ElementType::kF32);
  launch.m = 150;
  AddFunction(Pointwise::kSilu, &launch);
  EXPECT_EQ(Run(launch, Tensor()).size(), 1u);
  launch.c.data = nullptr;
  std::string reason;
  EXPECT_EQ(Run(launch, Workspace(70 * 64 * 4), &reason).size(), 3u);
  EXPECT_EQ(reason, "");
  EXPECT_EQ(Run(launch, Workspace(63 * 64 * 4), &reason).size(), 0u);
  EXPECT_THAT(reason, HasSubstr("too little workspace"));
}

TEST_F(CudaGemmTest, OwnKernelSaysWhy) {
  std::string reason;
  GemmLaunch launch = Launch(ElementType::kBF16);
  launch.bias = Take();
  launch.c_type = ElementType::kF32;
  EXPECT_TRUE(Run(launch, Tensor(), &reason).empty());
  EXPECT_THAT(reason, HasSubstr("bias of the result's type"));
  launch = Launch(ElementType::kF32);
  launch.b.column_stride = launch.k - 1;  // rows overlap
  EXPECT_TRUE(Run(launch, Tensor(), &reason).empty());
  EXPECT_THAT(reason, HasSubstr("64 rows of 96 elements 95 apart"));
  launch = Launch(ElementType::kF32);
  launch.k = 0;
  EXPECT_TRUE(Run(launch, Tensor(), &reason).empty());
  EXPECT_THAT(reason, HasSubstr("no elements"));
  fake_cuda::RefuseMatmuls(true);
  EXPECT_TRUE(Run(Launch(ElementType::kF32), Tensor(), &reason).empty());
  EXPECT_THAT(reason, HasSubstr("CUBLAS_STATUS_NOT_SUPPORTED"));
  fake_cuda::RefuseMatmuls(false);
}

}  // namespace
}  // namespace shardgraph::cuda
