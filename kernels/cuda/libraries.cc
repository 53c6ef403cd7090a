#include "kernels/cuda/libraries.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cuda/library_places.h"

#if !defined(__x86_64__)
#error "Functions of CUDA's libraries are reached through x86-64 jumps"
#endif

namespace {

[[noreturn]] void NotLoaded() {
  std::fputs(
      "a function of a CUDA library was called before the library was loaded "
      "(kernels/cuda/libraries.h)\n",
      stderr);
  std::abort();
}

}  // namespace

// Defines `name` as a jump to wherever the loaded library has it: arguments and
// result pass through untouched, whatever they are.
#define SG_LOADED_FUNCTION(name)                                        \
  extern "C" {                                                          \
  void* shardgraph_loaded_##name = reinterpret_cast<void*>(&NotLoaded); \
  }                                                                     \
  asm(".pushsection .text\n"                                            \
      ".globl " #name                                                   \
      "\n"                                                              \
      ".type " #name ", @function\n" #name                              \
      ":\n"                                                             \
      "  jmp *shardgraph_loaded_" #name                                 \
      "(%rip)\n"                                                        \
      ".size " #name ", .-" #name                                       \
      "\n"                                                              \
      ".popsection\n");
#define SG_FUNCTION_ENTRY(name) {#name, &shardgraph_loaded_##name},

#define SG_NCCL_FUNCTIONS(F)  \
  F(ncclAllGather)            \
  F(ncclAllReduce)            \
  F(ncclAlltoAll)             \
  F(ncclBroadcast)            \
  F(ncclCommAbort)            \
  F(ncclCommDestroy)          \
  F(ncclCommFinalize)         \
  F(ncclCommGetAsyncError)    \
  F(ncclCommInitRankConfig)   \
  F(ncclCommWindowDeregister) \
  F(ncclCommWindowRegister)   \
  F(ncclGetErrorString)       \
  F(ncclGetLastError)         \
  F(ncclGetUniqueId)          \
  F(ncclGroupEnd)             \
  F(ncclGroupStart)           \
  F(ncclMemAlloc)             \
  F(ncclMemFree)              \
  F(ncclReduceScatter)

#define SG_CUBLASLT_FUNCTIONS(F)          \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetStatusName)                \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)

#define SG_CUDNN_FUNCTIONS(F)      \
  F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) \
  F(cudnnBackendExecute)           \
  F(cudnnBackendFinalize)          \
  F(cudnnBackendGetAttribute)      \
  F(cudnnBackendSetAttribute)      \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnSetStream)

SG_NCCL_FUNCTIONS(SG_LOADED_FUNCTION)
SG_CUBLASLT_FUNCTIONS(SG_LOADED_FUNCTION)
SG_CUDNN_FUNCTIONS(SG_LOADED_FUNCTION)

namespace shardgraph::cuda {
namespace {

struct Function {
  const char* name;
  void** address;
};

absl::Status Load(absl::string_view title, const std::string& file,
                  absl::Span<const Function> functions,
                  absl::string_view remedy) {
  std::string why;
  void* library = nullptr;
  for (const std::string& place : LibraryPlaces(file)) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&why, why.empty() ? "" : "; ", dlerror());
  }
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(title, " is missing: ", file, " was looked for in ",
                     LibraryPlacesInWords(), " (", why, "); ", remedy));
  }
  for (const Function& function : functions) {
    void* const address = dlsym(library, function.name);
    if (address == nullptr) {
      return absl::UnavailableError(
          absl::StrCat(title, " is too old: ", dlerror(), "; ", remedy));
    }
    *function.address = address;
  }
  return absl::OkStatus();  // stays loaded
}

constexpr Function kNccl[] = {SG_NCCL_FUNCTIONS(SG_FUNCTION_ENTRY)};
constexpr Function kCublasLt[] = {SG_CUBLASLT_FUNCTIONS(SG_FUNCTION_ENTRY)};
constexpr Function kCudnn[] = {SG_CUDNN_FUNCTIONS(SG_FUNCTION_ENTRY)};

}  // namespace

// Static objects are made once, whichever thread comes first.
absl::Status LoadNccl() {
  static const auto& loaded = *new absl::Status(
      Load("NCCL", "libnccl.so.2", kNccl,
           "install NCCL 2.28 or newer, for example `pip install "
           "nvidia-nccl-cu13`, or add its folder to LD_LIBRARY_PATH"));
  return loaded;
}

absl::Status LoadCublasLt() {
  static const auto& loaded = *new absl::Status(
      Load("cuBLASLt", "libcublasLt.so.13", kCublasLt,
           "install CUDA 13's cuBLAS, for example `pip install "
           "nvidia-cublas`, or add its folder to LD_LIBRARY_PATH"));
  return loaded;
}

absl::Status LoadCudnn() {
  static const auto& loaded = *new absl::Status(
      Load("cuDNN", "libcudnn.so.9", kCudnn,
           "install cuDNN 9, for example `pip install nvidia-cudnn-cu13`, or "
           "add its folder to LD_LIBRARY_PATH"));
  return loaded;
}

}  // namespace shardgraph::cuda
