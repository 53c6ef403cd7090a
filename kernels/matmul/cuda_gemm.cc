#include "kernels/matmul/cuda_gemm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/prepare.h"
#include "kernels/cuda/status.h"
#include "kernels/status_macros.h"

namespace shardgraph::cuda {
namespace {

using Function = CublasLtProduct::Function;
using Summed = CublasLtProduct::Summed;

// The function of a launch over its product, which is in c.
PointwiseLaunch FunctionOf(const GemmLaunch& launch) {
  PointwiseLaunch function;
  function.function = launch.function;
  function.type = function.to_type = launch.type;
  const bool pairs = launch.function == Pointwise::kSwiglu;
  const int64_t size = SizeOfElement(launch.type);
  ElementRows<kPointwiseTensors>& shape = function.shape;
  shape.columns = pairs ? launch.n / 2 : launch.n;
  shape.rows.rank = 1;
  shape.rows.count = shape.rows.sizes[0] = launch.m;
  function.in[0] = launch.c.data;
  shape.rows.strides[0][0] = launch.c.row_stride;
  if (pairs) {
    function.in[1] =
        static_cast<const char*>(launch.c.data) + shape.columns * size;
    shape.rows.strides[1][0] = launch.c.row_stride;
  } else if (launch.x.data != nullptr) {
    function.in[1] = launch.x.data;
    shape.rows.strides[1][0] = launch.x.row_stride;
  }
  constexpr int kResult = 3;
  function.out[0] = launch.z.data;
  shape.rows.strides[kResult][0] = launch.z.row_stride;
  function.vector = IsAligned(function.in[0]) && IsAligned(function.in[1]) &&
                    IsAligned(function.out[0]) &&
                    StepsBy(shape.rows, 16 / size);
  return function;
}

int64_t BytesOf(const Tensor& workspace) {
  return workspace.data == nullptr ? 0 : workspace.type.num_elements();
}

// The product itself, into c.
CublasLtProduct ProductOf(const GemmLaunch& launch, const Tensor& workspace) {
  CublasLtProduct product;
  product.type = launch.type;
  product.result_type = launch.c_type;
  product.m = launch.m;
  product.n = launch.n;
  product.k = launch.k;
  product.a = launch.a;
  product.b = launch.b;
  product.bias = launch.bias;
  product.accumulate = launch.accumulate;
  product.result = launch.c;
  product.workspace = workspace.data;
  product.workspace_bytes = BytesOf(workspace);
  return product;
}

// Makes the launch's function the product's epilogue, if it can be.
bool AddEpilogue(const GemmLaunch& launch, CublasLtProduct* product) {
  if (launch.function == Pointwise::kGeluTanh) {
    product->function = Function::kGelu;
    product->sums = launch.c;
  } else if (launch.function == Pointwise::kGeluTanhGradient &&
             launch.c.data == nullptr && launch.bias == nullptr) {
    product->function = Function::kGeluGradient;
    product->sums = {const_cast<void*>(launch.x.data), launch.x.row_stride};
  } else {
    return false;
  }
  product->result = launch.z;
  return true;
}

const void* Row(const GemmOperand& operand, ElementType type, int64_t row) {
  if (operand.data == nullptr) return nullptr;
  return static_cast<const char*>(operand.data) +
         row * operand.row_stride * SizeOfElement(type);
}

}  // namespace

absl::StatusOr<std::vector<CudaGemm::Part>> CudaGemm::ByLibrary(
    const GemmLaunch& launch, const Tensor& workspace) {
  if (launch.m == 0 || launch.n == 0 || launch.k == 0)
    return absl::UnimplementedError("a product of no elements");
  if (launch.bias != nullptr && launch.type != launch.c_type)
    return absl::UnimplementedError(
        "cuBLASLt takes a bias of the result's type only");
  CublasLtProduct product = ProductOf(launch, workspace);
  if (launch.has_function && AddEpilogue(launch, &product)) {
    absl::StatusOr<CublasLtMatmul> matmul = CublasLtMatmul::Prepare(product);
    if (matmul.ok()) return std::vector<Part>{{*std::move(matmul), {}}};
    if (!absl::IsUnimplemented(matmul.status())) return matmul.status();
  }
  if (launch.has_function && launch.c.data == nullptr)
    return ByRows(launch, workspace);
  SG_ASSIGN_OR_RETURN(CublasLtMatmul matmul,
                      CublasLtMatmul::Prepare(ProductOf(launch, workspace)));
  Part part = {std::move(matmul), {}};
  if (launch.has_function) part.function = FunctionOf(launch);
  return std::vector<Part>{std::move(part)};
}

absl::StatusOr<std::vector<CudaGemm::Part>> CudaGemm::ByRows(
    GemmLaunch launch, const Tensor& workspace) {
  const int64_t size = SizeOfElement(launch.type);
  const int64_t all_rows = launch.m;
  launch.c = {workspace.data, (launch.n + 7) / 8 * 8};
  // Fewer rows at a time would leave the device idle.
  constexpr int64_t kRows = 64;
  int64_t rows = BytesOf(workspace) / (launch.c.row_stride * size);
  if (rows < std::min(all_rows, kRows))
    return absl::UnimplementedError(
        "too little workspace for the product that the function is applied "
        "to");
  if (rows > kRows) rows -= rows % kRows;
  const GemmLaunch whole = launch;
  std::vector<Part> parts;
  for (int64_t first = 0; first < all_rows; first += rows) {
    launch.m = std::min(rows, all_rows - first);
    launch.a.data = Row(whole.a, launch.type, first);
    launch.x.data = Row(whole.x, launch.type, first);
    launch.z.data = const_cast<void*>(
        Row({whole.z.data, whole.z.row_stride, 1}, launch.type, first));
    SG_ASSIGN_OR_RETURN(CublasLtMatmul matmul,
                        CublasLtMatmul::Prepare(ProductOf(launch, Tensor())));
    parts.push_back({std::move(matmul), FunctionOf(launch)});
  }
  return parts;
}

absl::StatusOr<std::vector<CudaGemm::Part>> CudaGemm::WithSum(
    const GemmLaunch& launch, const Tensor& workspace,
    const GemmColumnSum& sum) {
  if (launch.m == 0 || launch.n == 0 || launch.k == 0)
    return absl::UnimplementedError("a product of no elements");
  if (sum.launch.accumulate || sum.launch.y_type != launch.c_type)
    return absl::UnimplementedError(
        "cuBLASLt writes sums of the result's type, and adds nothing to them");
  CublasLtProduct product = ProductOf(launch, workspace);
  product.summed = sum.of_b ? Summed::kB : Summed::kA;
  product.operand_sums = sum.launch.y;
  SG_ASSIGN_OR_RETURN(CublasLtMatmul matmul, CublasLtMatmul::Prepare(product));
  return std::vector<Part>{{std::move(matmul), {}}};
}

absl::StatusOr<CudaGemm> CudaGemm::Prepare(const GemmLaunch& launch,
                                           const Tensor& workspace,
                                           const GemmColumnSum* sum) {
  CudaGemm gemm;
  gemm.launch_ = launch;
  if (sum != nullptr) {
    absl::StatusOr<std::vector<Part>> with_sum =
        WithSum(launch, workspace, *sum);
    if (with_sum.ok()) {
      gemm.parts_ = *std::move(with_sum);
      return gemm;
    }
    if (!absl::IsUnimplemented(with_sum.status())) return with_sum.status();
    gemm.sum_ = sum->launch;
  }
  absl::StatusOr<std::vector<Part>> parts = ByLibrary(launch, workspace);
  if (absl::IsUnimplemented(parts.status())) {
    gemm.own_kernel_reason_ = std::string(parts.status().message());
    return gemm;
  }
  SG_ASSIGN_OR_RETURN(gemm.parts_, std::move(parts));
  return gemm;
}

absl::Status CudaGemm::Launch(cudaStream_t stream) const {
  if (parts_.empty())
    SG_RETURN_IF_ERROR(CudaStatus(LaunchGemm(launch_, stream), "matmul"));
  for (const Part& part : parts_) {
    SG_RETURN_IF_ERROR(part.product.Launch(stream));
    if (!part.function.has_value()) continue;
    SG_RETURN_IF_ERROR(CudaStatus(LaunchPointwise(*part.function, stream),
                                  "matmul_pointwise"));
  }
  if (!sum_.has_value()) return absl::OkStatus();
  return CudaStatus(LaunchColumnSum(*sum_, stream), "matmul_column_sum");
}

}  // namespace shardgraph::cuda
