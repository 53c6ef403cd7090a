#include "kernels/loss/cuda.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/prepare.h"
#include "kernels/loss/loss.h"
#include "kernels/matmul/cuda_gemm.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// How the workspace is divided: losses of all rows, then logits of a chunk,
// whose rows begin at multiples of 16 bytes. What there is behind it is scratch
// of the products.
struct Layout {
  int64_t logits = 0;  // where they begin
  int64_t row_stride = 0;
  int64_t bytes = 0;

  Layout(const Attributes& attributes, const TensorType& x,
         const TensorType& weight) {
    logits = (x.dim(0) * 4 + 255) / 256 * 256;
    row_stride = (weight.dim(0) + 7) / 8 * 8;
    bytes = logits + ChunkRows(attributes, x) * row_stride * SizeOf(x.dtype);
    bytes = (bytes + 255) / 256 * 256;
  }
};

int64_t Workspace(const Attributes& attributes,
                  absl::Span<const TensorType> operands,
                  absl::Span<const TensorType>) {
  return Layout(attributes, operands[0], operands[1]).bytes;
}

class CrossEntropyHead {
 public:
  explicit CrossEntropyHead(const KernelContext& context)
      : type_(cuda::ElementOf(context.operands[0].type)),
        rows_(context.operands[0].type.dim(0)),
        width_(context.operands[0].type.dim(1)),
        vocabulary_(context.operands[1].type.dim(0)),
        chunk_rows_(ChunkRows(*context.attributes, context.operands[0].type)),
        x_(context.operands[0].as<char>()),
        weight_(context.operands[1].data),
        targets_(context.operands[2].as<int32_t>()),
        stats_(context.results[0].as<double>()),
        losses_(context.workspace.as<float>()),
        label_smoothing_(
            static_cast<float>(context.attributes->Double("label_smoothing"))),
        z_loss_(static_cast<float>(context.attributes->Double("z_loss"))) {
    const Layout layout(*context.attributes, context.operands[0].type,
                        context.operands[1].type);
    logits_ = context.workspace.as<char>() + layout.logits;
    row_stride_ = layout.row_stride;
    if (context.results.size() < 3) return;
    loss_scale_ = context.operands[3].as<float>();
    nominal_tokens_ = context.operands[4].as<double>();
    const Attributes& attributes = *context.attributes;
    accumulate_ = attributes.Int("accumulate") != 0;
    if (!Omits(attributes, 1)) dx_ = context.results[1].as<char>();
    if (!Omits(attributes, 2)) dweight_ = context.results[2].data;
    dweight_type_ = cuda::ElementOf(context.results[2].type);
  }

  // Makes the products ready; before the first launch.
  absl::Status Prepare(const KernelContext& context) {
    const Layout layout(*context.attributes, context.operands[0].type,
                        context.operands[1].type);
    const Tensor& whole = context.workspace;
    const Tensor scratch = {
        whole.as<char>() + layout.bytes,
        TensorType(DType::kU8, {whole.type.num_elements() - layout.bytes})};
    int64_t first = 0;
    do {  // once for no rows at all: dweight may have to become zero
      const int64_t rows = std::min(chunk_rows_, rows_ - first);
      SG_RETURN_IF_ERROR(PrepareChunk(first, rows, scratch));
      first += rows;
    } while (first < rows_);
    return absl::OkStatus();
  }

  absl::Status Launch(cudaStream_t stream) const {
    for (const Chunk& chunk : chunks_) {
      SG_RETURN_IF_ERROR(chunk.forward.Launch(stream));
      SG_RETURN_IF_CUDA_ERROR(LaunchCrossEntropy(chunk.softmax, stream));
      if (chunk.to_x.has_value())
        SG_RETURN_IF_ERROR(chunk.to_x->Launch(stream));
      if (chunk.to_weight.has_value())
        SG_RETURN_IF_ERROR(chunk.to_weight->Launch(stream));
    }
    return cuda::CudaStatus(cuda::LaunchLossStats(losses_, targets_, rows_,
                                                  vocabulary_, stats_, stream),
                            "cross_entropy_head");
  }

 private:
  struct Chunk {
    cuda::CudaGemm forward;
    cuda::CrossEntropyLaunch softmax;
    std::optional<cuda::CudaGemm> to_x, to_weight;
  };

  int64_t Offset(int64_t row) const {  // of x and dx, in bytes
    return row * width_ * SizeOfElement(type_);
  }

  absl::Status PrepareChunk(int64_t first, int64_t rows,
                            const Tensor& scratch) {
    const cuda::GemmOperand x = {x_ + Offset(first), width_, 1};
    const cuda::GemmOperand logits = {logits_, row_stride_, 1};
    cuda::GemmLaunch forward;
    forward.type = forward.c_type = type_;
    forward.m = rows;
    forward.n = vocabulary_;
    forward.k = width_;
    forward.a = x;
    forward.b = {weight_, 1, width_};
    forward.c = {logits_, row_stride_};
    SG_ASSIGN_OR_RETURN(cuda::CudaGemm gemm,
                        cuda::CudaGemm::Prepare(forward, scratch));
    Chunk chunk = {.forward = std::move(gemm)};

    cuda::CrossEntropyLaunch& softmax = chunk.softmax;
    softmax.type = type_;
    softmax.logits = logits_;
    softmax.row_stride = row_stride_;
    softmax.rows = rows;
    softmax.vocabulary = vocabulary_;
    softmax.targets = targets_ + first;
    softmax.losses = losses_ + first;
    softmax.label_smoothing = label_smoothing_;
    softmax.z_loss = z_loss_;
    softmax.loss_scale = loss_scale_;
    softmax.nominal_tokens = nominal_tokens_;

    if (dx_ != nullptr) {
      cuda::GemmLaunch to_x;
      to_x.type = to_x.c_type = type_;
      to_x.m = rows;
      to_x.n = width_;
      to_x.k = vocabulary_;
      to_x.a = logits;
      to_x.b = {weight_, width_, 1};
      to_x.c = {dx_ + Offset(first), width_};
      SG_ASSIGN_OR_RETURN(chunk.to_x, cuda::CudaGemm::Prepare(to_x, scratch));
    }
    if (dweight_ != nullptr) {
      cuda::GemmLaunch to_weight;
      to_weight.type = type_;
      to_weight.m = vocabulary_;
      to_weight.n = width_;
      to_weight.k = rows;
      to_weight.a = {logits_, 1, row_stride_};
      to_weight.b = x;
      to_weight.c = {dweight_, width_};
      to_weight.c_type = dweight_type_;
      to_weight.accumulate = accumulate_ || first > 0;
      SG_ASSIGN_OR_RETURN(chunk.to_weight,
                          cuda::CudaGemm::Prepare(to_weight, scratch));
    }
    chunks_.push_back(std::move(chunk));
    return absl::OkStatus();
  }

  const ElementType type_;
  const int64_t rows_;
  const int64_t width_;
  const int64_t vocabulary_;
  const int64_t chunk_rows_;
  const char* x_;
  const void* weight_;
  const int32_t* targets_;
  double* stats_;
  float* losses_;
  const float label_smoothing_;
  const float z_loss_;
  char* logits_ = nullptr;
  int64_t row_stride_ = 0;
  const float* loss_scale_ = nullptr;  // null: no gradient
  const double* nominal_tokens_ = nullptr;
  bool accumulate_ = false;
  char* dx_ = nullptr;
  void* dweight_ = nullptr;
  ElementType dweight_type_ = ElementType::kF32;
  std::vector<Chunk> chunks_;
};

absl::StatusOr<std::unique_ptr<PreparedKernel>> Prepare(
    const KernelContext& context) {
  CrossEntropyHead head(context);
  SG_RETURN_IF_ERROR(head.Prepare(context));
  return MakeKernel([head = std::move(head)](Lane& lane) {
    return head.Launch(cuda::StreamOf(lane));
  });
}

constexpr KernelDef kKernels[] = {
    {.op = "cross_entropy_head",
     .supports = cuda::SupportsF32AndBf16,
     .workspace = Workspace,
     .prepare = Prepare},
    {.op = "cross_entropy_head_gradient",
     .supports = cuda::SupportsF32AndBf16,
     .workspace = Workspace,
     .prepare = Prepare},
};

}  // namespace

absl::Span<const KernelDef> LossCudaKernels() { return kKernels; }

}  // namespace shardgraph
