// cuBLASLt on the double: what it computes, what it refuses, and the mistakes
// that it must find.

#include <cublasLt.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/test_device.h"

namespace shardgraph::fake_cuda {
namespace {

using ::testing::HasSubstr;

#define EXPECT_CUBLAS(expression) EXPECT_EQ((expression), CUBLAS_STATUS_SUCCESS)

// D [m, n] = A [m, k] B [k, n], column-major floats, in a fresh world.
struct Product {
  static constexpr int m = 8, n = 3, k = 80;

  Product()
      : streams(1),
        a(Values(m * k), streams.a),
        b(Values(k * n), streams.a),
        d(m * n + 64, streams.a),
        workspace(4096, streams.a) {
    EXPECT_CUBLAS(cublasLtCreate(&handle));
    EXPECT_CUBLAS(
        cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    EXPECT_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    SetLayouts(m, m);
  }
  ~Product() {
    for (cublasLtMatrixLayout_t layout : {a_layout, b_layout, d_layout})
      cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }

  static std::vector<float> Values(int count) {
    std::vector<float> values(count);
    for (int i = 0; i < count; ++i)
      values[i] = static_cast<float>(i * 7 % 11 - 5);
    return values;
  }
  static float Expected(int i, int j) {
    const std::vector<float> left = Values(m * k), right = Values(k * n);
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += left[i + p * m] * right[p + j * k];
    return sum;
  }

  void SetLayouts(int64_t a_ld, int64_t d_ld) {
    for (cublasLtMatrixLayout_t* layout : {&a_layout, &b_layout, &d_layout}) {
      if (*layout != nullptr) cublasLtMatrixLayoutDestroy(*layout);
    }
    EXPECT_CUBLAS(
        cublasLtMatrixLayoutCreate(&a_layout, CUDA_R_32F, m, k, a_ld));
    EXPECT_CUBLAS(cublasLtMatrixLayoutCreate(&b_layout, CUDA_R_32F, k, n, k));
    EXPECT_CUBLAS(
        cublasLtMatrixLayoutCreate(&d_layout, CUDA_R_32F, m, n, d_ld));
  }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_CUBLAS(cublasLtMatmulDescSetAttribute(description, attribute, &value,
                                                 sizeof(value)));
  }
  template <typename T>
  void Prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute,
                                                       &value, sizeof(value)));
  }
  cublasStatus_t Choose() {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, description, a_layout,
                                          b_layout, d_layout, d_layout,
                                          preference, 1, &chosen, &found);
  }
  cublasStatus_t Multiply(float* to, void* scratch, size_t scratch_bytes) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle, description, &one, a.get(), a_layout, b.get(),
                          b_layout, &zero, to, d_layout, to, d_layout,
                          &chosen.algo, scratch, scratch_bytes, streams.a);
  }
  cublasStatus_t Multiply() {
    return Multiply(d.get(), workspace.get(), workspace.Bytes());
  }

  TwoStreams streams;
  DeviceArray<float> a, b, d;
  DeviceArray<char> workspace;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr,
                         d_layout = nullptr;
  cublasLtMatmulHeuristicResult_t chosen = {};
};

TEST(CublasLt, MultipliesWithAndWithoutWorkspace) {
  for (const uint64_t bytes : {0, 4096}) {
    Product product;
    product.Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
    ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(product.chosen.workspaceSize > 0, bytes > 0);
    EXPECT_CUBLAS(product.Multiply());
    const std::vector<float> d = product.d.Get();
    for (int j = 0; j < Product::n; ++j) {
      for (int i = 0; i < Product::m; ++i)
        EXPECT_EQ(d[i + j * Product::m], Product::Expected(i, j));
    }
    const std::vector<MatmulCall> calls = GetMatmuls();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].k, Product::k);
    EXPECT_FALSE(calls[0].tf32);
    EXPECT_EQ(TakeReport(), "");
  }
}

TEST(CublasLt, GeluKeepsItsOperand) {
  Product product;
  DeviceArray<float> sums(8 * Product::n, product.streams.a);
  DeviceArray<float> bias(Product::Values(Product::m), product.streams.a);
  product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE,
              static_cast<uint32_t>(CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
  product.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.get());
  product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sums.get());
  product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{8});
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_CUBLAS(product.Multiply());
  const std::vector<float> d = product.d.Get(), kept = sums.Get();
  for (int j = 0; j < Product::n; ++j) {
    for (int i = 0; i < Product::m; ++i) {
      const float x = Product::Expected(i, j) + Product::Values(Product::m)[i];
      EXPECT_EQ(kept[i + 8 * j], x);
      const double t =
          std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
      EXPECT_NEAR(d[i + j * Product::m], 0.5 * x * (1 + t), 1e-6 * std::abs(x));
    }
  }
  EXPECT_EQ(TakeReport(), "");
}

// BGRADA sums A's rows over k, BGRADB B's columns.
TEST(CublasLt, SumsAnOperand) {
  for (const bool of_a : {true, false}) {
    Product product;
    DeviceArray<float> sums(Product::m, product.streams.a);
    product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE,
                static_cast<uint32_t>(of_a ? CUBLASLT_EPILOGUE_BGRADA
                                           : CUBLASLT_EPILOGUE_BGRADB));
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "no vector";
    product.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums.get());
    ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
    EXPECT_CUBLAS(product.Multiply());
    EXPECT_EQ(product.d.Get()[0], Product::Expected(0, 0));
    const std::vector<float> of =
        Product::Values(Product::k * (of_a ? Product::m : Product::n));
    for (int i = 0; i < (of_a ? Product::m : Product::n); ++i) {
      float sum = 0;
      for (int p = 0; p < Product::k; ++p)
        sum += of_a ? of[i + p * Product::m] : of[p + i * Product::k];
      EXPECT_EQ(sums.Get()[i], sum) << i;
    }
    EXPECT_EQ(TakeReport(), "");
  }
}

// The sums are written: who reads them waits.
TEST(CublasLt, PlantedReaderOfSums) {
#if defined(SG_TSAN) || defined(SG_ASAN)
  GTEST_SKIP() << "under sanitizers the double does not see who reads";
#endif
  Product product;
  DeviceArray<float> sums(Product::m, product.streams.a);
  DeviceArray<float> copy(Product::m, product.streams.b);
  EXPECT_CUDA(cudaDeviceSynchronize());
  product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE,
              static_cast<uint32_t>(CUBLASLT_EPILOGUE_BGRADA));
  product.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums.get());
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_CUBLAS(product.Multiply());
  EXPECT_CUDA(cudaMemcpyAsync(copy.get(), sums.get(), sums.Bytes(),
                              cudaMemcpyDeviceToDevice, product.streams.b));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_THAT(TakeReport(), HasSubstr("missing order"));
}

// As the documents say; setters of attributes look at nothing.
TEST(CublasLt, Refuses) {
  {
    Product product;
    product.SetLayouts(Product::m - 1, Product::m);
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  }
  {
    Product product;
    product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{9999});
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  }
  for (const int64_t ld : {7, 12}) {
    Product product;
    DeviceArray<float> sums(12 * Product::n, product.streams.a);
    product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE,
                static_cast<uint32_t>(CUBLASLT_EPILOGUE_GELU_AUX));
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "no matrix";
    product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sums.get());
    product.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED) << ld;
  }
  {
    Product product;
    const int32_t transposed = CUBLAS_OP_T;
    product.Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "shapes";
    EXPECT_EQ(
        cublasLtMatmulDescSetAttribute(
            product.description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 1),
        CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(TakeReport(), "");
  }
}

// The heuristic takes matrices to be aligned to 256 bytes unless it is told
// otherwise.
TEST(CublasLt, PlantedAlignment) {
  Product product;
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  float* const shifted = product.d.get() + 4;
  EXPECT_EQ(product.Multiply(shifted, product.workspace.get(), 4096),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(TakeReport(), HasSubstr("is not aligned to the 256 bytes"));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    product.Prefer(attribute, uint32_t{16});
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_CUBLAS(product.Multiply(shifted, product.workspace.get(), 4096));
  EXPECT_CUDA(cudaStreamSynchronize(product.streams.a));
  EXPECT_EQ(TakeReport(), "");
}

TEST(CublasLt, PlantedWorkspace) {
  Product product;
  product.Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{4096});
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(product.Multiply(product.d.get(), product.workspace.get(), 64),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(TakeReport(), HasSubstr("bytes of workspace, it has 64"));
  EXPECT_NE(
      product.Multiply(product.d.get(), product.workspace.get() + 128, 2048),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(TakeReport(), HasSubstr("not aligned to 256 bytes"));
}

TEST(CublasLt, PlantedAlgorithmOfAnotherProduct) {
  Product product;
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  product.SetLayouts(Product::m, Product::m + 8);
  EXPECT_NE(product.Multiply(), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(TakeReport(), HasSubstr("chosen for another product"));
}

// Two products at once may not share their workspace.
TEST(CublasLt, PlantedSharedWorkspace) {
  Product product;
  product.Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{4096});
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  DeviceArray<float> other(product.m * product.n, product.streams.b);
  EXPECT_CUDA(cudaStreamSynchronize(product.streams.b));
  EXPECT_CUBLAS(product.Multiply());
  std::swap(product.streams.a, product.streams.b);
  EXPECT_CUBLAS(product.Multiply(other.get(), product.workspace.get(), 4096));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_THAT(TakeReport(), HasSubstr("missing order"));
  std::swap(product.streams.a, product.streams.b);
}

// An operand that nobody has written.
TEST(CublasLt, PlantedUnwrittenOperand) {
#if defined(SG_TSAN) || defined(SG_ASAN)
  GTEST_SKIP() << "under sanitizers the double does not see what is written";
#endif
  Product product;
  ASSERT_EQ(product.Choose(), CUBLAS_STATUS_SUCCESS);
  MarkUnwritten(product.b.get() + 5, sizeof(float));
  EXPECT_CUBLAS(product.Multiply());
  EXPECT_CUDA(cudaStreamSynchronize(product.streams.a));
  EXPECT_THAT(TakeReport(), HasSubstr("written"));
}

TEST(CublasLt, RefusesAllWhenTold) {
  RefuseMatmuls(true);
  {
    Product product;
    EXPECT_EQ(product.Choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  }
  RefuseMatmuls(false);
  Product product;
  EXPECT_CUBLAS(product.Choose());
}

}  // namespace
}  // namespace shardgraph::fake_cuda
