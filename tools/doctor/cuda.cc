// CUDA's driver and libraries, loaded at run time: the doctor starts on every
// machine, whatever it was built with.

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/library_places.h"
#include "tools/doctor/facts.h"
#ifdef SG_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace shardgraph::doctor {
namespace {

// A shared library; stays loaded, as CUDA's do not take unloading well.
class Module {
 public:
  // The first that loads of names[0], names[1], ..., where programs look.
  explicit Module(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      for (const std::string& path : cuda::LibraryPlaces(name)) {
        handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) return;
      }
    }
  }

  // The function `name`, or null.
  template <typename Function>
  Function* Find(const char* name) const {
    if (handle_ == nullptr) return nullptr;
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_ = nullptr;
};

std::string FileOf(void* function) {
  Dl_info info;
  if (function == nullptr || dladdr(function, &info) == 0) return "";
  return info.dli_fname;
}

// NCCL, cuDNN: 22809 -> "2.28.9" (scale 100), 91002 -> "9.10.2".
std::string TripleVersion(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".",
                      version % 100);
}

void ReadDriver(CudaFacts& cuda) {
  const Module driver({"libcuda.so.1"});
  auto* init = driver.Find<int(unsigned)>("cuInit");
  auto* version = driver.Find<int(int*)>("cuDriverGetVersion");
  auto* count = driver.Find<int(int*)>("cuDeviceGetCount");
  auto* get = driver.Find<int(int*, int)>("cuDeviceGet");
  auto* name = driver.Find<int(char*, int, int)>("cuDeviceGetName");
  auto* memory = driver.Find<int(size_t*, int)>("cuDeviceTotalMem_v2");
  auto* attribute = driver.Find<int(int*, int, int)>("cuDeviceGetAttribute");
  if (version != nullptr && version(&cuda.driver_version) != 0) {
    cuda.driver_version = 0;
  }
  int devices = 0;
  if (init == nullptr || count == nullptr || get == nullptr ||
      name == nullptr || memory == nullptr || attribute == nullptr ||
      init(0) != 0 || count(&devices) != 0) {
    return;
  }
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kMinor = 76;
  for (int i = 0; i < devices; ++i) {
    int device = 0;
    char text[256] = "";
    size_t bytes = 0;
    int major = 0;
    int minor = 0;
    if (get(&device, i) != 0 || name(text, sizeof(text), device) != 0 ||
        memory(&bytes, device) != 0 || attribute(&major, kMajor, device) != 0 ||
        attribute(&minor, kMinor, device) != 0) {
      continue;
    }
    cuda.gpus.push_back({.name = text,
                         .compute_capability = absl::StrCat(major, ".", minor),
                         .memory_bytes = static_cast<int64_t>(bytes)});
  }
  auto* reach = driver.Find<int(int*, int, int, int)>("cuDeviceGetP2PAttribute");
  constexpr int kAccess = 2;   // CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
  constexpr int kAtomics = 3;  // ..._NATIVE_ATOMIC_SUPPORTED: over NVLink
  for (int a = 0; reach != nullptr && a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      int from = 0, to = 0, yes = 0;
      if (a == b || get(&from, a) != 0 || get(&to, b) != 0) continue;
      if (reach(&yes, kAccess, from, to) == 0 && yes != 0) ++cuda.peer_pairs;
      if (reach(&yes, kAtomics, from, to) == 0 && yes != 0)
        ++cuda.linked_pairs;
    }
  }
}

#ifdef SG_WITH_CUDA
// The runtime that programs are linked with.
void ReadRuntime(CudaFacts& cuda) {
  Library library = {.name = "cudart", .version = "", .place = "linked"};
  if (cudaRuntimeGetVersion(&cuda.runtime_version) == cudaSuccess)
    library.version = CudaVersion(cuda.runtime_version);
  cuda.libraries.push_back(library);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  cuda.device_count_error = error;
  cuda.device_count_text = cudaGetErrorString(error);
}
#else
// One that is there, though programs do not use it.
void ReadRuntime(CudaFacts& cuda) {
  const Module runtime({"libcudart.so", "libcudart.so.13", "libcudart.so.12"});
  auto* version = runtime.Find<int(int*)>("cudaRuntimeGetVersion");
  auto* count = runtime.Find<int(int*)>("cudaGetDeviceCount");
  auto* text = runtime.Find<const char*(int)>("cudaGetErrorString");
  Library library = {.name = "cudart", .version = "", .place = ""};
  if (version != nullptr && version(&cuda.runtime_version) == 0) {
    library.version = CudaVersion(cuda.runtime_version);
    library.place = FileOf(reinterpret_cast<void*>(version));
  }
  cuda.libraries.push_back(library);
  if (count != nullptr && text != nullptr) {
    int devices = 0;
    cuda.device_count_error = count(&devices);
    cuda.device_count_text = text(cuda.device_count_error);
  }
}
#endif

// A library whose version comes from a function without arguments.
Library ReadVersion(const std::string& name,
                    const std::vector<std::string>& files,
                    const char* function) {
  Library library = {.name = name, .version = "", .place = ""};
  const Module module(files);
  if (auto* version = module.Find<size_t()>(function)) {
    library.version = TripleVersion(version());
    library.place = FileOf(reinterpret_cast<void*>(version));
  }
  return library;
}

Library ReadNccl(int* number) {
  Library library = {.name = "NCCL", .version = "", .place = ""};
  const Module module({"libnccl.so.2"});
  int version = 0;
  auto* get = module.Find<int(int*)>("ncclGetVersion");
  if (get != nullptr && get(&version) == 0) {
    *number = version;
    library.version = TripleVersion(version);
    library.place = FileOf(reinterpret_cast<void*>(get));
  }
  return library;
}

}  // namespace

std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

CudaFacts GatherCuda() {
  CudaFacts cuda;
#ifdef SG_WITH_CUDA
  cuda.built_version = CUDART_VERSION;
#endif
  cuda.device_files = std::filesystem::exists("/dev/nvidiactl");
  ReadDriver(cuda);
  ReadRuntime(cuda);
  cuda.libraries.push_back(ReadVersion(
      "cuBLASLt", {"libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"},
      "cublasLtGetVersion"));
  cuda.libraries.push_back(
      ReadVersion("cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion"));
  cuda.libraries.push_back(ReadNccl(&cuda.nccl_version));
  return cuda;
}

}  // namespace shardgraph::doctor
