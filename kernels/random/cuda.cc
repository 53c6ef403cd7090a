#include "kernels/random/cuda.h"

#include <memory>

#include "kernels/cuda/prepare.h"
#include "kernels/random/dropout.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareDropout(
    const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const Attributes& attributes = *context.attributes;
  const double rate = attributes.Double("rate");
  cuda::DropoutLaunch launch;
  launch.type = cuda::ElementOf(x.type);
  launch.x = x.data;
  launch.y = context.results[0].data;
  launch.rows = x.type.dim(0);
  launch.columns = x.type.dim(1);
  launch.seed = static_cast<uint64_t>(attributes.Int("seed"));
  launch.name = static_cast<uint64_t>(attributes.Int("key"));
  launch.sequence_ids = context.operands[1].as<int64_t>();
  launch.run_step = context.operands[2].as<int64_t>();
  launch.threshold = DropoutThreshold(rate);
  launch.factor = static_cast<float>(1 / (1 - rate));
  return cuda::MakeCudaKernel("dropout", [launch](cudaStream_t stream) {
    return LaunchDropout(launch, stream);
  });
}

}  // namespace

absl::Span<const KernelDef> RandomCudaKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "dropout",
       .supports = cuda::SupportsF32AndBf16,
       .prepare = PrepareDropout},
  };
  return kernels;
}

}  // namespace shardgraph
