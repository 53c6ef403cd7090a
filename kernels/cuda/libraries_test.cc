#include "kernels/cuda/libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/library_places.h"

extern "C" const char* ncclGetErrorString(int);

namespace shardgraph::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

// A folder that Python imports from, the only one beside the system's.
class Libraries : public ::testing::Test {
 protected:
  Libraries() : folder_(testing::TempDir() + "/packages") {
    for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX", "HOME"})
      unsetenv(name);
    setenv("PYTHONPATH", folder_.c_str(), 1);
    setenv("CUDA_HOME", (folder_ + "/cuda").c_str(), 1);
  }

  std::string PathOf(const std::string& package, const std::string& file) {
    const std::string folder = folder_ + "/nvidia/" + package + "/lib";
    fs::create_directories(folder);
    return folder + "/" + file;
  }
  // The loader's own path comes first; it may have one.
  static bool IsInstalled(const char* file) {
    return dlopen(file, RTLD_NOW | RTLD_LOCAL) != nullptr;
  }

  const std::string folder_;
};

TEST_F(Libraries, PlacesAreCudasFolderAndPythonsWheels) {
  const std::string wheel = PathOf("nccl", "libnccl.so.2");
  std::ofstream(wheel) << "";
  const std::string of_cuda = folder_ + "/cuda/lib64/libnccl.so.2";
  fs::create_directories(folder_ + "/cuda/lib64");
  std::ofstream(of_cuda) << "";
  const std::vector<std::string> places = LibraryPlaces("libnccl.so.2");
  ASSERT_GE(places.size(), 3u);
  EXPECT_EQ(places[0], "libnccl.so.2");
  EXPECT_EQ(places[1], of_cuda);
  EXPECT_THAT(places, Contains(wheel));
  EXPECT_THAT(LibraryPlacesInWords(), HasSubstr(folder_ + "/cuda/lib64"));
}

// A library without NCCL's functions stands in for an old one.
TEST_F(Libraries, OneWithoutAFunctionIsTooOld) {
  if (IsInstalled("libcudnn.so.9")) GTEST_SKIP() << "cuDNN is installed";
  link_map* libm = nullptr;
  void* const handle = dlopen("libm.so.6", RTLD_NOW);
  ASSERT_NE(handle, nullptr);
  ASSERT_EQ(dlinfo(handle, RTLD_DI_LINKMAP, &libm), 0);
  fs::create_symlink(libm->l_name, PathOf("cudnn", "libcudnn.so.9"));
  const absl::Status status = LoadCudnn();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuDNN is too old: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudnnBackend"));
  EXPECT_EQ(LoadCudnn(), status);
}

TEST_F(Libraries, AMissingOneIsNamedWithItsPlaces) {
  const std::string damaged = PathOf("cublas", "libcublasLt.so.13");
  std::ofstream(damaged) << "not a library";
  const absl::Status status = LoadCublasLt();
  if (status.ok()) GTEST_SKIP() << "cuBLASLt is installed";
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (const std::string& text :
       {std::string("cuBLASLt is missing: libcublasLt.so.13"), damaged,
        LibraryPlacesInWords(), std::string("pip install nvidia-cublas")})
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST_F(Libraries, ACallBeforeLoadingEndsTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ncclGetErrorString(0), "before the library was loaded");
}

}  // namespace
}  // namespace shardgraph::cuda
