#include "kernels/cuda/status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace shardgraph::cuda {
namespace {

constexpr int kInsufficientDriver = 35;
constexpr int kStubLibrary = 34;
constexpr int kNoDevice = 100;

// What the runtime's own text does not say.
std::string Remedy(int error) {
  int driver = 0;
  switch (error) {
    case kInsufficientDriver:
      // The same number for a driver that is too old and for none at all.
      if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return ": no NVIDIA driver is loaded";
      return absl::StrCat(": the driver supports CUDA ", driver / 1000, ".",
                          driver % 1000 / 10,
                          ", this program needs a newer driver");
    case kStubLibrary:
      return ": the toolkit's stubs folder is in the library path; take it out";
    case kNoDevice:
      return ": no GPU is visible; check CUDA_VISIBLE_DEVICES";
    default:
      return "";
  }
}

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case kInsufficientDriver:
    case kStubLibrary:
    case kNoDevice:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const int number = static_cast<int>(error);
  return absl::Status(
      CodeOf(number),
      absl::StrCat(what, ": CUDA error ", number, " (", cudaGetErrorName(error),
                   ")", Remedy(number)));
}

}  // namespace shardgraph::cuda
