// cuBLASLt on the double: column-major products in FP32, over k in order. It
// refuses what the documents refuse, where the library would refuse, and
// reports calls after which the library's results are undefined: pointers less
// aligned than the heuristic was told, an algorithm of another product, a
// workspace that is too small or not aligned to 256 bytes. As in the library,
// setters of attributes look at sizes alone.

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/world.h"

struct cublasLtContext {
  int device;
};

namespace shardgraph::fake_cuda {
namespace {

// By the numbers of their attributes.
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* auxiliary = nullptr;
  int64_t auxiliary_ld = 0;
};
struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

// What cublasLtMatmulAlgo_t holds.
struct Algorithm {
  uint64_t product;  // hash of what it was chosen for
  uint16_t alignment[4];
  uint32_t parts;  // of k
  uint64_t workspace;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

Description& Of(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<Description*>(handle);
}
Layout& Of(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<Layout*>(handle);
}
Preference& Of(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

bool g_refuses = false;
std::vector<MatmulCall> g_matmuls;
int g_generation = -1;  // of the world that g_matmuls is of

template <typename T>
cublasStatus_t Set(T& field, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&field, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t SizeOf(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

struct Problem {
  const Description& op;
  const Layout &a, &b, &c, &d;

  bool Has(uint32_t epilogue_bits) const {
    return (op.epilogue & epilogue_bits) == epilogue_bits;
  }
  // Whether the sums of an operand over k go where else the bias is.
  bool SumsOperand() const {
    return op.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  }
  int64_t m() const { return d.rows; }
  int64_t n() const { return d.columns; }
  int64_t k() const {
    return op.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  }

  uint64_t Hash() const {
    uint64_t hash = 14695981039346656037u;
    const auto add = [&hash](uint64_t value) {
      hash = (hash ^ value) * 1099511628211u;
    };
    for (const Layout* layout : {&a, &b, &c, &d}) {
      add(layout->type);
      add(layout->rows);
      add(layout->columns);
      add(layout->ld);
    }
    for (const uint64_t value : {static_cast<uint64_t>(op.compute),
                                 static_cast<uint64_t>(op.transpose_a),
                                 static_cast<uint64_t>(op.transpose_b),
                                 static_cast<uint64_t>(op.epilogue)}) {
      add(value);
    }
    return hash;
  }

  // Empty if the documents allow it.
  std::string Refusal() const {
    if (op.compute != CUBLAS_COMPUTE_32F &&
        op.compute != CUBLAS_COMPUTE_32F_FAST_TF32) {
      return "compute type " + std::to_string(op.compute);
    }
    if (op.scale != CUDA_R_32F) return "scale type";
    for (const Layout* layout : {&a, &b, &c, &d}) {
      if (layout->rows < 1 || layout->columns < 1) return "an empty matrix";
      if (layout->ld < layout->rows) {
        return "leading dimension " + std::to_string(layout->ld) + " of " +
               std::to_string(layout->rows) + " rows";
      }
    }
    const bool types = a.type == b.type && c.type == d.type &&
                       (a.type == CUDA_R_32F || a.type == CUDA_R_16BF) &&
                       (d.type == a.type || d.type == CUDA_R_32F);
    if (!types) return "types of matrices";
    const int64_t rows = op.transpose_a == CUBLAS_OP_N ? a.rows : a.columns;
    const bool b_plain = op.transpose_b == CUBLAS_OP_N;
    if (rows != m() || (b_plain ? b.rows : b.columns) != k() ||
        (b_plain ? b.columns : b.rows) != n() || c.rows != m() ||
        c.columns != n()) {
      return "shapes of matrices";
    }
    switch (op.epilogue) {
      case CUBLASLT_EPILOGUE_DEFAULT:
      case CUBLASLT_EPILOGUE_BIAS:
      case CUBLASLT_EPILOGUE_GELU:
      case CUBLASLT_EPILOGUE_GELU_AUX:
      case CUBLASLT_EPILOGUE_GELU_BIAS:
      case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      case CUBLASLT_EPILOGUE_DGELU:
      case CUBLASLT_EPILOGUE_BGRADA:
      case CUBLASLT_EPILOGUE_BGRADB:
        break;
      default:
        return "epilogue " + std::to_string(op.epilogue);
    }
    if ((Has(CUBLASLT_EPILOGUE_BIAS) || SumsOperand()) && op.bias == nullptr)
      return "no bias";
    if (Has(kAuxiliary)) {
      if (op.auxiliary == nullptr) return "no auxiliary matrix";
      if (op.auxiliary_ld < m() || op.auxiliary_ld % 8 != 0) {
        return "leading dimension " + std::to_string(op.auxiliary_ld) +
               " of the auxiliary matrix: at least " + std::to_string(m()) +
               ", a multiple of 8";
      }
    }
    return "";
  }

  static constexpr uint32_t kAuxiliary = 128;
};

float Load(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}
void Store(void* data, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

constexpr float kGeluScale = 0.7978845608f;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;
float Gelu(float x) {
  const float t = std::tanh(kGeluScale * (x + kGeluCube * x * x * x));
  return 0.5f * x * (1.0f + t);
}
float GeluDerivative(float x) {
  const float t = std::tanh(kGeluScale * (x + kGeluCube * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kGeluScale *
                                 (1.0f + 3.0f * kGeluCube * x * x);
}

// op(matrix) [rows, columns], row by row or column by column.
std::vector<float> Unpack(const void* data, const Layout& layout,
                          bool by_rows) {
  std::vector<float> values;
  values.reserve(layout.rows * layout.columns);
  const int64_t outer = by_rows ? layout.rows : layout.columns;
  const int64_t inner = by_rows ? layout.columns : layout.rows;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      values.push_back(Load(data, layout.type,
                            by_rows ? i + j * layout.ld : j + i * layout.ld));
    }
  }
  return values;
}

struct Matmul {
  Description op;
  Layout a, b, c, d;
  const void *a_data, *b_data, *c_data;
  void* d_data;
  float alpha, beta;
  Algorithm algorithm;
  float* workspace;

  void Run() const {
    const int64_t m = d.rows, n = d.columns;
    const bool plain_a = op.transpose_a == CUBLAS_OP_N;
    const bool plain_b = op.transpose_b == CUBLAS_OP_N;
    const int64_t k = plain_a ? a.columns : a.rows;
    const std::vector<float> left = Unpack(a_data, a, plain_a);
    const std::vector<float> right = Unpack(b_data, b, !plain_b);
    const int64_t parts = algorithm.parts;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t part = 0; part < parts; ++part) {
          float partial = 0;
          for (int64_t p = part * k / parts; p < (part + 1) * k / parts; ++p)
            partial += left[i * k + p] * right[j * k + p];
          if (parts > 1) workspace[(part * n + j) * m + i] = partial;
          sum += partial;
        }
        float value = alpha * sum;
        if (op.epilogue & CUBLASLT_EPILOGUE_BIAS)
          value += Load(op.bias, d.type, i);
        if (beta != 0) value += beta * Load(c_data, c.type, i + j * c.ld);
        const int64_t at = i + j * op.auxiliary_ld;
        if (op.epilogue == CUBLASLT_EPILOGUE_DGELU) {
          value *= GeluDerivative(Load(op.auxiliary, d.type, at));
        } else if (op.epilogue & CUBLASLT_EPILOGUE_GELU) {
          if (op.epilogue & Problem::kAuxiliary)
            Store(op.auxiliary, d.type, at, value);
          value = Gelu(value);
        }
        Store(d_data, d.type, i + j * d.ld, value);
      }
    }
    if (op.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
      SumRows(left, m, k);
    } else if (op.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      SumRows(right, n, k);
    }
  }

  // Sums of `rows` runs of k values, in place of the bias.
  void SumRows(const std::vector<float>& values, int64_t rows,
               int64_t k) const {
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += values[i * k + p];
      Store(op.bias, d.type, i, sum);
    }
  }
};

void AddColumns(const void* data, const Layout& layout,
                std::vector<Work::Range>* ranges) {
  for (int64_t j = 0; j < layout.columns; ++j) {
    ranges->push_back(
        {static_cast<const char*>(data) + j * layout.ld * SizeOf(layout.type),
         static_cast<size_t>(layout.rows * SizeOf(layout.type))});
  }
}

bool Aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Empty, or what makes the library's results undefined.
std::string Misuse(const Problem& problem, const Algorithm& algorithm,
                   const std::vector<const void*>& matrices,
                   const void* workspace, size_t workspace_bytes) {
  if (algorithm.product != problem.Hash())
    return "the algorithm was chosen for another product";
  const char* const names = "ABCD";
  for (int i = 0; i < 4; ++i) {
    if (!Aligned(matrices[i], algorithm.alignment[i])) {
      return std::string("matrix ") + names[i] + " is not aligned to the " +
             std::to_string(algorithm.alignment[i]) +
             " bytes that the heuristic was told";
    }
  }
  if ((problem.Has(CUBLASLT_EPILOGUE_BIAS) || problem.SumsOperand()) &&
      !Aligned(problem.op.bias, SizeOf(problem.d.type))) {
    return "the bias is not aligned";
  }
  if (problem.Has(Problem::kAuxiliary) && !Aligned(problem.op.auxiliary, 16))
    return "the auxiliary matrix is not aligned to 16 bytes";
  if (workspace_bytes < algorithm.workspace) {
    return "the algorithm needs " + std::to_string(algorithm.workspace) +
           " bytes of workspace, it has " + std::to_string(workspace_bytes);
  }
  if (algorithm.workspace > 0 && !Aligned(workspace, 256))
    return "the workspace is not aligned to 256 bytes";
  return "";
}

}  // namespace

void RefuseMatmuls(bool refuses) {
  ScopedLock lock;
  g_refuses = refuses;
}

std::vector<MatmulCall> GetMatmuls() {
  ScopedLock lock;
  if (g_generation != World::Get().generation) return {};
  return g_matmuls;
}

}  // namespace shardgraph::fake_cuda

using namespace shardgraph::fake_cuda;  // NOLINT: the definitions below are the
                                        // global API.

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ScopedLock lock;
  if (World::Get().CheckUnsafe() != cudaSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{t_device};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  ScopedLock lock;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "an error of the cuBLASLt double";
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{
      type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &Of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(
      new Description{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete &Of(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
    const void* from, size_t bytes) {
  Description& op = Of(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(op.transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(op.transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(op.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(op.bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Set(op.auxiliary, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Set(op.auxiliary_ld, from, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  delete &Of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
    size_t bytes) {
  Preference& wanted = Of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(wanted.workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(wanted.reductions, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(wanted.alignment[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(wanted.alignment[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(wanted.alignment[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(wanted.alignment[3], from, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t* results, int* found) {
  ScopedLock lock;
  *found = 0;
  if (handle == nullptr || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem = {Of(description), Of(a), Of(b), Of(c), Of(d)};
  const Preference& wanted = Of(preference);
  if (g_refuses || !problem.Refusal().empty())
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto add = [&](uint32_t parts, uint64_t workspace) {
    if (*found == requested) return;
    Algorithm algorithm = {.product = problem.Hash(),
                           .alignment = {},
                           .parts = parts,
                           .workspace = workspace};
    for (int i = 0; i < 4; ++i)
      algorithm.alignment[i] = static_cast<uint16_t>(wanted.alignment[i]);
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {};
    memcpy(&result.algo, &algorithm, sizeof(algorithm));
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
  };
  // A long sum in two parts, where there is room for them.
  const uint64_t two = 2 * 4 * problem.m() * problem.n();
  if (problem.k() >= 64 && two <= wanted.workspace &&
      (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
    add(2, two);
  }
  add(1, 0);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
    const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
    const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
    const void* c, cublasLtMatrixLayout_t c_layout, void* d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
    void* workspace, size_t workspace_bytes, cudaStream_t stream_handle) {
  ScopedLock lock;
  World& world = World::Get();
  cudaStream_t stream = world.Find(stream_handle, t_device);
  if (handle == nullptr || algo == nullptr || stream == nullptr ||
      stream->device != handle->device) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Problem problem = {Of(description), Of(a_layout), Of(b_layout),
                           Of(c_layout), Of(d_layout)};
  if (!problem.Refusal().empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
  auto matmul = std::make_shared<Matmul>();
  memcpy(&matmul->algorithm, algo, sizeof(matmul->algorithm));
  const Algorithm& algorithm = matmul->algorithm;
  const std::string misuse =
      Misuse(problem, algorithm, {a, b, c, d}, workspace, workspace_bytes);
  if (!misuse.empty()) {
    world.Report("cublasLtMatmul: " + misuse);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  matmul->op = problem.op;
  matmul->a = problem.a;
  matmul->b = problem.b;
  matmul->c = problem.c;
  matmul->d = problem.d;
  matmul->a_data = a;
  matmul->b_data = b;
  matmul->c_data = c;
  matmul->d_data = d;
  memcpy(&matmul->alpha, alpha, sizeof(float));
  memcpy(&matmul->beta, beta, sizeof(float));
  matmul->workspace = static_cast<float*>(workspace);

  if (g_generation != world.generation) g_matmuls.clear();
  g_generation = world.generation;
  g_matmuls.push_back({.m = problem.m(),
                       .n = problem.n(),
                       .k = problem.k(),
                       .epilogue = static_cast<int>(problem.op.epilogue),
                       .workspace = static_cast<int64_t>(algorithm.workspace),
                       .accumulates = matmul->beta != 0,
                       .tf32 = problem.op.compute != CUBLAS_COMPUTE_32F});

  auto work = std::make_shared<Work>();
  work->name = "cublasLtMatmul [" + std::to_string(problem.m()) + ", " +
               std::to_string(problem.n()) + "]";
  work->computes = true;
  AddColumns(a, problem.a, &work->reads);
  AddColumns(b, problem.b, &work->reads);
  if (matmul->beta != 0) AddColumns(c, problem.c, &work->reads);
  AddColumns(d, problem.d, &work->writes);
  if (problem.Has(CUBLASLT_EPILOGUE_BIAS)) {
    work->reads.push_back(
        {problem.op.bias,
         static_cast<size_t>(problem.m() * SizeOf(problem.d.type))});
  }
  if (problem.SumsOperand()) {
    const int64_t sums = problem.op.epilogue == CUBLASLT_EPILOGUE_BGRADA
                             ? problem.m()
                             : problem.n();
    work->writes.push_back(
        {problem.op.bias, static_cast<size_t>(sums * SizeOf(problem.d.type))});
  }
  if (problem.Has(Problem::kAuxiliary)) {
    const Layout auxiliary = {problem.d.type, problem.m(), problem.n(),
                              problem.op.auxiliary_ld};
    AddColumns(problem.op.auxiliary, auxiliary,
               problem.op.epilogue == CUBLASLT_EPILOGUE_DGELU ? &work->reads
                                                              : &work->writes);
  }
  if (algorithm.workspace > 0)
    work->writes.push_back({workspace, algorithm.workspace});
  work->body = [matmul] { matmul->Run(); };
  return Return(world.Enqueue(stream, work)) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
