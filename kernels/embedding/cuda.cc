#include "kernels/embedding/cuda.h"

#include <memory>

#include "kernels/cuda/device_table.h"
#include "kernels/cuda/prepare.h"
#include "kernels/embedding/embedding.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

absl::StatusOr<Prepared> PrepareEmbedding(const KernelContext& context) {
  const Tensor &ids = context.operands[0], &weight = context.operands[1];
  cuda::EmbeddingLaunch launch;
  launch.ids = ids.as<int32_t>();
  launch.count = ids.type.dim(0);
  launch.weight = weight.data;
  launch.rows = weight.type.dim(0);
  launch.row_bytes = weight.type.dim(1) * SizeOf(weight.type.dtype);
  launch.y = context.results[0].data;
  return cuda::MakeCudaKernel("embedding", [launch](cudaStream_t stream) {
    return LaunchEmbedding(launch, stream);
  });
}

int64_t GradientWorkspace(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType>) {
  return cuda::EmbeddingGradientWorkspace(attributes.Int("rows"),
                                          operands[0].dim(0));
}

absl::StatusOr<Prepared> PrepareGradient(const KernelContext& context) {
  const Tensor &ids = context.operands[0], &dy = context.operands[1];
  const Tensor& dweight = context.results[0];
  cuda::EmbeddingGradientLaunch launch;
  launch.ids = ids.as<int32_t>();
  launch.count = ids.type.dim(0);
  launch.from = cuda::ElementOf(dy.type);
  launch.dy = dy.data;
  launch.columns = dy.type.dim(1);
  launch.rows = dweight.type.dim(0);
  launch.to = cuda::ElementOf(dweight.type);
  launch.dweight = dweight.data;
  launch.accumulate = context.attributes->Int("accumulate") != 0;
  launch.workspace = context.workspace.data;
  return cuda::MakeCudaKernel("embedding_gradient",
                              [launch](cudaStream_t stream) {
                                return LaunchEmbeddingGradient(launch, stream);
                              });
}

absl::StatusOr<Prepared> PreparePositions(const KernelContext& context) {
  return cuda::MakeCudaKernel(
      "positions",
      [position = context.operands[0].as<int64_t>(),
       y = context.results[0].as<int32_t>(),
       count = context.results[0].type.dim(0),
       length = context.attributes->Int("length")](cudaStream_t stream) {
        return cuda::LaunchPositions(position, count, length, y, stream);
      });
}

absl::StatusOr<Prepared> PrepareRotary(const KernelContext& context) {
  const Tensor &x = context.operands[0], &y = context.results[0];
  SG_ASSIGN_OR_RETURN(const auto frequencies,
                      cuda::DeviceTable<float>::Make(RotaryFrequencies(
                          *context.attributes, x.type.dim(3))));
  cuda::RotaryLaunch launch;
  launch.type = cuda::ElementOf(x.type);
  launch.batch = x.type.dim(0);
  launch.length = x.type.dim(1);
  launch.heads = x.type.dim(2);
  launch.half = x.type.dim(3) / 2;
  launch.x = x.data;
  launch.y = y.data;
  for (int i = 0; i < 3; ++i) {
    launch.x_strides[i] = x.type.strides[i];
    launch.y_strides[i] = y.type.strides[i];
  }
  launch.positions = context.operands[1].as<int32_t>();
  launch.frequencies = frequencies.data();
  launch.sign = context.attributes->Int("inverse") != 0 ? -1.0f : 1.0f;
  return cuda::MakeCudaKernel("rotary",
                              [launch, frequencies](cudaStream_t stream) {
                                return LaunchRotary(launch, stream);
                              });
}

}  // namespace

absl::Span<const KernelDef> EmbeddingCudaKernels() {
  using cuda::SupportsF32AndBf16;
  static constexpr KernelDef kernels[] = {
      {.op = "embedding", .prepare = PrepareEmbedding},
      {.op = "embedding_gradient",
       .supports = SupportsF32AndBf16,
       .workspace = GradientWorkspace,
       .prepare = PrepareGradient},
      {.op = "positions", .prepare = PreparePositions},
      {.op = "rotary",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareRotary},
  };
  return kernels;
}

}  // namespace shardgraph
