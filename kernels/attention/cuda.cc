#include "kernels/attention/cuda.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cudnn.h"
#include "kernels/cuda/prepare.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

absl::Status SupportsWidth(const TensorType& q) {
  if (q.dim(3) <= cuda::kMaxAttentionWidth) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "heads of width ", q.dim(3), "; at most ", cuda::kMaxAttentionWidth));
}

absl::Status Supports(const Attributes& attributes,
                      absl::Span<const TensorType> operands,
                      absl::Span<const TensorType> results) {
  SG_RETURN_IF_ERROR(cuda::SupportsF32AndBf16(attributes, operands, results));
  SG_RETURN_IF_ERROR(SupportsWidth(operands[0]));
  if (attributes.Int("has_rotary") != 0)
    return absl::UnimplementedError("rotary positions");
  return absl::OkStatus();
}

cuda::AttentionTensor TensorOf(const Tensor& tensor) {
  const Dims& strides = tensor.type.strides;
  return {tensor.data, {strides[0], strides[1], strides[2]}};
}

// q is operand `first`; the optional operands start at `next`. Without out and
// lse.
cuda::AttentionLaunch LaunchOf(const KernelContext& context, int first,
                               int next) {
  const absl::Span<const Tensor> operands = context.operands;
  const AttentionConfig config(*context.attributes, operands[first].type,
                               operands[first + 1].type);
  cuda::AttentionLaunch launch;
  launch.type = cuda::ElementOf(operands[first].type);
  launch.batch = config.batch;
  launch.queries = config.queries;
  launch.keys = config.keys;
  launch.heads = config.heads;
  launch.kv_heads = config.kv_heads;
  launch.width = config.width;
  launch.scale = static_cast<float>(config.scale);
  launch.causal = config.causal;
  launch.q = TensorOf(operands[first]);
  launch.k = TensorOf(operands[first + 1]);
  launch.v = TensorOf(operands[first + 2]);
  if (config.has_offset) launch.offset = operands[next++].as<int64_t>();
  if (config.has_documents) launch.documents = operands[next++].as<int32_t>();
  if (config.dropout > 0) {
    launch.sequence_ids = operands[next].as<int64_t>();
    launch.run_step = operands[next + 1].as<int64_t>();
    launch.seed = config.seed;
    launch.name = config.key;
    launch.threshold = DropoutThreshold(config.dropout);
    launch.kept_scale = static_cast<float>(1 / (1 - config.dropout));
  }
  return launch;
}

// By cuDNN; Unimplemented where an own kernel must.
absl::StatusOr<Prepared> ByLibrary(const KernelContext& context) {
  std::vector<TensorType> operands, results;
  for (const Tensor& tensor : context.operands) {
    if (!cuda::IsAligned(tensor.data))
      return absl::UnimplementedError("an operand is not aligned to 16 bytes");
    operands.push_back(tensor.type);
  }
  for (const Tensor& tensor : context.results) {
    if (!cuda::IsAligned(tensor.data))
      return absl::UnimplementedError("a result is not aligned to 16 bytes");
    results.push_back(tensor.type);
  }
  SG_RETURN_IF_ERROR(CudnnSupports(*context.attributes, operands, results));
  return PrepareCudnnAttention(context);
}

absl::StatusOr<Prepared> Prepare(const KernelContext& context) {
  absl::StatusOr<Prepared> by_library = ByLibrary(context);
  if (!absl::IsUnimplemented(by_library.status())) return by_library;
  cuda::AttentionLaunch launch = LaunchOf(context, 0, 3);
  launch.out = TensorOf(context.results[0]);
  launch.lse = context.results[1].as<float>();
  return cuda::MakeCudaKernel("attention", [launch](cudaStream_t stream) {
    return LaunchAttention(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareGradient(const KernelContext& context) {
  absl::StatusOr<Prepared> by_library = ByLibrary(context);
  if (!absl::IsUnimplemented(by_library.status())) return by_library;
  cuda::AttentionGradientLaunch launch;
  launch.forward = LaunchOf(context, 1, 6);
  launch.forward.out = TensorOf(context.operands[4]);
  launch.forward.lse = context.operands[5].as<float>();
  launch.dout = TensorOf(context.operands[0]);
  launch.dq = TensorOf(context.results[0]);
  launch.dk = TensorOf(context.results[1]);
  launch.dv = TensorOf(context.results[2]);
  launch.deltas = context.workspace.as<float>();
  return cuda::MakeCudaKernel("attention_gradient",
                              [launch](cudaStream_t stream) {
                                return LaunchAttentionGradient(launch, stream);
                              });
}

constexpr KernelDef kKernels[] = {
    {.op = "attention",
     .supports = Supports,
     .workspace = AttentionCudaWorkspace,
     .prepare = Prepare},
    {.op = "attention_gradient",
     .supports = Supports,
     .workspace = AttentionGradientCudaWorkspace,
     .prepare = PrepareGradient},
};

}  // namespace

absl::Span<const KernelDef> AttentionCudaKernels() { return kKernels; }

}  // namespace shardgraph
