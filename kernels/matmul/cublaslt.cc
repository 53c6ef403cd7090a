#include "kernels/matmul/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/status.h"
#include "kernels/status_macros.h"

namespace shardgraph::cuda {
namespace {

using Function = CublasLtProduct::Function;
using Summed = CublasLtProduct::Summed;

thread_local int t_refusals = 0;

absl::Status CublasStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const absl::StatusCode code = status == CUBLAS_STATUS_NOT_INITIALIZED
                                    ? absl::StatusCode::kUnavailable
                                : status == CUBLAS_STATUS_ALLOC_FAILED
                                    ? absl::StatusCode::kResourceExhausted
                                    : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat(what, ": cuBLASLt error ", static_cast<int>(status),
                         " (", cublasLtGetStatusName(status), ")"));
}

#define RETURN_IF_CUBLAS_ERROR(expression) \
  SG_RETURN_IF_ERROR(CublasStatus((expression), #expression))

struct Deleter {
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const {
    cublasLtMatrixLayoutDestroy(p);
  }
  void operator()(cublasLtMatmulDescOpaque_t* p) const {
    cublasLtMatmulDescDestroy(p);
  }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const {
    cublasLtMatmulPreferenceDestroy(p);
  }
};
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Deleter>;
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Deleter>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Deleter>;

cudaDataType_t TypeOf(ElementType type) {
  return type == ElementType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// A column-major matrix.
struct Matrix {
  ElementType type;
  int64_t rows, columns, stride;
};

// `outer` x `inner` elements, of which those along `inner` are neighbours, are
// a column-major matrix of `inner` rows.
Matrix MatrixOf(ElementType type, int64_t outer, int64_t inner,
                int64_t stride) {
  // The stride of a single column means nothing to us.
  return {type, inner, outer, outer == 1 ? std::max(stride, inner) : stride};
}

absl::StatusOr<Layout> MakeLayout(const Matrix& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  RETURN_IF_CUBLAS_ERROR(
      cublasLtMatrixLayoutCreate(&layout, TypeOf(matrix.type), matrix.rows,
                                 matrix.columns, matrix.stride));
  return Layout(layout);
}

uint32_t EpilogueOf(const CublasLtProduct& product) {
  const bool bias = product.bias != nullptr;
  // The library's A is b.
  if (product.summed != Summed::kNone) {
    return product.summed == Summed::kB ? CUBLASLT_EPILOGUE_BGRADA
                                        : CUBLASLT_EPILOGUE_BGRADB;
  }
  switch (product.function) {
    case Function::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Function::kGelu:
      if (product.sums.data == nullptr)
        return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                  : CUBLASLT_EPILOGUE_GELU_AUX;
    case Function::kNone:
      break;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// What the library reads or writes as the bias.
const void* BiasOf(const CublasLtProduct& product) {
  return product.summed == Summed::kNone ? product.bias : product.operand_sums;
}

// What a pointer is a multiple of; the heuristic tells no more than 256 apart.
uint32_t AlignmentOf(const void* data) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(data) % alignment != 0) alignment /= 2;
  return alignment;
}

template <typename T>
absl::Status Set(const Description& description,
                 cublasLtMatmulDescAttributes_t attribute, T value) {
  return CublasStatus(cublasLtMatmulDescSetAttribute(
                          description.get(), attribute, &value, sizeof(value)),
                      "cublasLtMatmulDescSetAttribute");
}

template <typename T>
absl::Status Set(const Preference& preference,
                 cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return CublasStatus(cublasLtMatmulPreferenceSetAttribute(
                          preference.get(), attribute, &value, sizeof(value)),
                      "cublasLtMatmulPreferenceSetAttribute");
}

// Everything that the choice of an algorithm depends on.
using Key = std::array<int64_t, 19>;

// The library on one device, and what its heuristic has chosen there. Lives as
// long as a product that uses it.
class Library {
 public:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm = {};
    cublasStatus_t refused = CUBLAS_STATUS_SUCCESS;
  };

  // Of the current device.
  static absl::StatusOr<std::shared_ptr<Library>> Get() {
    return SharedByDevice<Library>([](Library& library) -> absl::Status {
      SG_RETURN_IF_ERROR(LoadCublasLt());
      RETURN_IF_CUBLAS_ERROR(cublasLtCreate(&library.handle_));
      return absl::OkStatus();
    });
  }

  ~Library() {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  cublasLtHandle_t handle() const { return handle_; }

  // choose() is called for the first product of a key.
  template <typename F>
  absl::StatusOr<Choice> Find(const Key& key, F choose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = choices_.find(key);
    if (known != choices_.end()) return known->second;
    SG_ASSIGN_OR_RETURN(const Choice choice, choose());
    choices_.emplace(key, choice);
    return choice;
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Choice> choices_;
};

}  // namespace

// Row-major c = a b is column-major c^T = b^T a^T: the library's A is b.
struct CublasLtMatmul::Prepared {
  CublasLtProduct product;
  std::shared_ptr<Library> library;
  Description description;
  Layout a, b, result;
  cublasLtMatmulAlgo_t algorithm = {};

  absl::Status Describe(bool transpose_a, bool transpose_b) {
    cublasLtMatmulDesc_t handle = nullptr;
    RETURN_IF_CUBLAS_ERROR(
        cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    description.reset(handle);
    const auto operation = [](bool transpose) -> int32_t {
      return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    SG_RETURN_IF_ERROR(
        Set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(transpose_a)));
    SG_RETURN_IF_ERROR(
        Set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(transpose_b)));
    SG_RETURN_IF_ERROR(
        Set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(product)));
    // The heuristic reads the alignment of these.
    if (BiasOf(product) != nullptr) {
      SG_RETURN_IF_ERROR(
          Set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, BiasOf(product)));
    }
    if (product.sums.data == nullptr) return absl::OkStatus();
    SG_RETURN_IF_ERROR(Set(description,
                           CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                           product.sums.data));
    return Set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
               product.sums.row_stride);
  }

  // The heuristic's first algorithm.
  absl::StatusOr<Library::Choice> Choose() const {
    cublasLtMatmulPreference_t handle = nullptr;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceCreate(&handle));
    const Preference preference(handle);
    SG_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                           static_cast<uint64_t>(product.workspace_bytes)));
    SG_RETURN_IF_ERROR(
        Set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
    SG_RETURN_IF_ERROR(Set(preference,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                           AlignmentOf(product.b.data)));
    SG_RETURN_IF_ERROR(Set(preference,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           AlignmentOf(product.a.data)));
    for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      SG_RETURN_IF_ERROR(
          Set(preference, attribute, AlignmentOf(product.result.data)));
    }
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library->handle(), description.get(), b.get(), a.get(), result.get(),
        result.get(), preference.get(), 1, &found, &count);
    Library::Choice choice;
    choice.algorithm = found.algo;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        status == CUBLAS_STATUS_INVALID_VALUE) {
      choice.refused = status;
    } else if (status != CUBLAS_STATUS_SUCCESS) {
      return CublasStatus(status, "cublasLtMatmulAlgoGetHeuristic");
    } else if (count == 0) {
      choice.refused = CUBLAS_STATUS_NOT_SUPPORTED;
    } else {
      choice.refused = found.state;
    }
    return choice;
  }
};

absl::StatusOr<CublasLtMatmul> CublasLtMatmul::Prepare(
    const CublasLtProduct& product) {
  if (t_refusals > 0)
    return absl::UnimplementedError("a test keeps cuBLASLt out");
  const bool a_rows = product.a.column_stride == 1;
  const bool b_rows = product.b.column_stride == 1;
  const Matrix a = a_rows ? MatrixOf(product.type, product.m, product.k,
                                     product.a.row_stride)
                          : MatrixOf(product.type, product.k, product.m,
                                     product.a.column_stride);
  const Matrix b = b_rows ? MatrixOf(product.type, product.k, product.n,
                                     product.b.row_stride)
                          : MatrixOf(product.type, product.n, product.k,
                                     product.b.column_stride);
  const Matrix result = MatrixOf(product.result_type, product.m, product.n,
                                 product.result.row_stride);
  for (const Matrix& matrix : {a, b, result}) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (matrix.stride < matrix.rows || matrix.rows > kMost ||
        matrix.columns > kMost) {
      return absl::UnimplementedError(absl::StrCat(
          "cuBLASLt takes no matrix of ", matrix.columns, " rows of ",
          matrix.rows, " elements ", matrix.stride, " apart"));
    }
  }
  if (product.sums.data != nullptr &&
      (product.sums.row_stride % 8 != 0 || AlignmentOf(product.sums.data) < 16))
    return absl::UnimplementedError(
        "cuBLASLt takes GELU's operand in rows a multiple of 8 elements apart, "
        "aligned to 16 bytes");

  auto prepared = std::make_shared<Prepared>();
  prepared->product = product;
  SG_ASSIGN_OR_RETURN(prepared->library, Library::Get());
  SG_RETURN_IF_ERROR(prepared->Describe(!b_rows, !a_rows));
  SG_ASSIGN_OR_RETURN(prepared->a, MakeLayout(a));
  SG_ASSIGN_OR_RETURN(prepared->b, MakeLayout(b));
  SG_ASSIGN_OR_RETURN(prepared->result, MakeLayout(result));
  const Key key = {
      product.m,
      product.n,
      product.k,
      static_cast<int64_t>(product.type),
      static_cast<int64_t>(product.result_type),
      a_rows,
      b_rows,
      a.stride,
      b.stride,
      result.stride,
      AlignmentOf(product.a.data),
      AlignmentOf(product.b.data),
      AlignmentOf(product.result.data),
      product.accumulate,
      EpilogueOf(product),
      BiasOf(product) == nullptr ? 0 : AlignmentOf(BiasOf(product)),
      product.sums.data == nullptr ? 0 : AlignmentOf(product.sums.data),
      product.sums.row_stride,
      product.workspace_bytes};
  SG_ASSIGN_OR_RETURN(
      const Library::Choice choice,
      prepared->library->Find(key, [&] { return prepared->Choose(); }));
  if (choice.refused != CUBLAS_STATUS_SUCCESS) {
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt has no algorithm for it (",
                     cublasLtGetStatusName(choice.refused), ")"));
  }
  prepared->algorithm = choice.algorithm;
  return CublasLtMatmul(std::move(prepared));
}

CublasLtRefusal::CublasLtRefusal() { ++t_refusals; }
CublasLtRefusal::~CublasLtRefusal() { --t_refusals; }

absl::Status CublasLtMatmul::Launch(cudaStream_t stream) const {
  const Prepared& p = *prepared_;
  const CublasLtProduct& product = p.product;
  const float one = 1, beta = product.accumulate ? 1 : 0;
  return CublasStatus(
      cublasLtMatmul(p.library->handle(), p.description.get(), &one,
                     product.b.data, p.b.get(), product.a.data, p.a.get(),
                     &beta, product.result.data, p.result.get(),
                     product.result.data, p.result.get(), &p.algorithm,
                     product.workspace, product.workspace_bytes, stream),
      "cublasLtMatmul");
}

}  // namespace shardgraph::cuda
