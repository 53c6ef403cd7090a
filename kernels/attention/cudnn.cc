// PrepareCudnnAttention on cuDNN itself.
#include "kernels/attention/cudnn.h"

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention/cudnn_graph.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using cudnn::CudnnStatus;
using SharedPlan = std::shared_ptr<const cudnn::Plan>;

// The library on one device, and the plans made there. Lives as long as a
// kernel that uses it; one host thread drives a device.
class Library {
 public:
  // Of the current device.
  static absl::StatusOr<std::shared_ptr<Library>> Get() {
    return cuda::SharedByDevice<Library>([](Library& library) -> absl::Status {
      const absl::Status loaded = cuda::LoadCudnn();
      if (!loaded.ok()) return absl::UnimplementedError(loaded.message());
      return CudnnStatus(cudnnCreate(&library.handle_), "cudnnCreate");
    });
  }

  ~Library() {
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  cudnnHandle_t handle() const { return handle_; }

  absl::StatusOr<SharedPlan> PlanFor(const cudnn::Shape& shape,
                                     int64_t max_workspace) {
    std::string key = absl::StrCat(
        shape.batch, " ", shape.heads, " ", shape.kv_heads, " ", shape.length,
        " ", shape.width, " ", shape.causal, " ", shape.gradient, " ",
        shape.fast, " ", shape.lse_batch_stride, " ", max_workspace);
    for (const auto& strides : shape.strides) {
      for (const int64_t stride : strides) absl::StrAppend(&key, " ", stride);
    }
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    absl::StatusOr<cudnn::Plan> made =
        cudnn::MakePlan(shape, handle_, "", max_workspace);
    absl::StatusOr<SharedPlan> plan =
        made.ok() ? absl::StatusOr<SharedPlan>(
                        std::make_shared<const cudnn::Plan>(*std::move(made)))
                  : made.status();
    plans_.emplace(std::move(key), plan);
    return plan;
  }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::map<std::string, absl::StatusOr<SharedPlan>> plans_;  // or refusals
};

class CudnnAttention final : public PreparedKernel {
 public:
  static absl::StatusOr<std::unique_ptr<PreparedKernel>> Make(
      const KernelContext& context) {
    auto kernel = std::make_unique<CudnnAttention>();
    SG_RETURN_IF_ERROR(kernel->Prepare(context));
    return kernel;
  }

  absl::Status Launch(Lane& lane) override {
    const cudaStream_t stream = cuda::StreamOf(lane);
    SG_RETURN_IF_ERROR(CudnnStatus(cudnnSetStream(library_->handle(), stream),
                                   "cudnnSetStream"));
    for (const cudnn::Descriptor& call : calls_) {
      if (zeros_bytes_ > 0) {
        SG_RETURN_IF_CUDA_ERROR(
            cudaMemsetAsync(zeros_, 0, zeros_bytes_, stream));
      }
      SG_RETURN_IF_ERROR(CudnnStatus(
          cudnnBackendExecute(
              library_->handle(),
              static_cast<cudnnBackendDescriptor_t>(plan_->descriptor.get()),
              static_cast<cudnnBackendDescriptor_t>(call.get())),
          "cudnnBackendExecute"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Prepare(const KernelContext& context) {
    const bool gradient = context.results.size() == 3;
    const int first = gradient ? 1 : 0;
    const AttentionConfig config(*context.attributes,
                                 context.operands[first].type,
                                 context.operands[first + 1].type);
    std::vector<TensorType> operands, results;
    for (const Tensor& tensor : context.operands)
      operands.push_back(tensor.type);
    for (const Tensor& tensor : context.results) results.push_back(tensor.type);
    const CudnnCalls calls = CudnnCallsOf(config, gradient);
    SG_ASSIGN_OR_RETURN(library_, Library::Get());
    SG_ASSIGN_OR_RETURN(
        plan_,
        library_->PlanFor(cudnn::ShapeOf(config, calls, operands, results),
                          calls.library_bytes));

    scale_ = static_cast<float>(config.scale);
    char* const workspace = context.workspace.as<char>();
    const Tensor& lse = gradient ? context.operands[5] : context.results[1];
    if (gradient && config.fast) {
      zeros_ = workspace + calls.dq_sums;
      zeros_bytes_ = calls.library - calls.dq_sums;
    }
    for (int64_t b = 0; b < config.batch; b += calls.sequences) {
      for (int64_t g = 0; g < config.kv_heads; g += calls.kv_heads) {
        const int64_t h = g * config.heads_per_group();
        std::vector<int64_t> names;
        std::vector<void*> data;
        const auto add = [&](cudnn::Tensor name, void* where) {
          names.push_back(name);
          data.push_back(where);
        };
        for (const cudnn::Place& place : cudnn::Places(gradient)) {
          const Tensor& tensor = place.result ? context.results[place.index]
                                              : context.operands[place.index];
          const int64_t head = cudnn::OfKeys(place.name) ? g : h;
          add(place.name, tensor.as<char>() + (b * tensor.type.strides[0] +
                                               head * tensor.type.strides[2]) *
                                                  SizeOf(DType::kBF16));
        }
        add(cudnn::kLse,
            lse.as<float>() + (b * config.heads + h) * config.queries);
        add(cudnn::kScale, &scale_);
        if (config.causal) add(cudnn::kMinusInfinity, &minus_infinity_);
        if (gradient) {
          add(cudnn::kOne, &one_);
          add(cudnn::kRowSums, workspace + calls.sums);
        }
        if (zeros_ != nullptr) add(cudnn::kQuerySums, zeros_);
        SG_RETURN_IF_ERROR(AddCall(names, data, workspace + calls.library));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddCall(const std::vector<int64_t>& names,
                       const std::vector<void*>& data, void* scratch) {
    SG_ASSIGN_OR_RETURN(
        cudnn::Descriptor call,
        cudnn::MakeDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    SG_RETURN_IF_ERROR(cudnn::SetAttribute(
        call, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
        static_cast<int64_t>(names.size()), names.data()));
    SG_RETURN_IF_ERROR(cudnn::SetAttribute(
        call, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
        static_cast<int64_t>(data.size()), data.data()));
    SG_RETURN_IF_ERROR(cudnn::SetAttribute(call,
                                           CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                           CUDNN_TYPE_VOID_PTR, 1, &scratch));
    SG_RETURN_IF_ERROR(cudnn::Finalize(call, "a call"));
    calls_.push_back(std::move(call));
    return absl::OkStatus();
  }

  std::shared_ptr<Library> library_;
  SharedPlan plan_;
  std::vector<cudnn::Descriptor> calls_;
  // The library reads these when it is called.
  float scale_ = 1;
  float minus_infinity_ = -std::numeric_limits<float>::infinity();
  float one_ = 1;
  // What a fast gradient adds to.
  void* zeros_ = nullptr;
  int64_t zeros_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareCudnnAttention(
    const KernelContext& context) {
  return CudnnAttention::Make(context);
}

}  // namespace shardgraph
