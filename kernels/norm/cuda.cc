#include "kernels/norm/cuda.h"

#include <memory>
#include <vector>

#include "kernels/cuda/prepare.h"
#include "kernels/matmul/column_sum_cuda.h"
#include "kernels/norm/norm.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

// Rows of both and whether they start at multiples of 16 bytes.
cuda::Dimensions<2> RowsOfBoth(const Tensor& a, const Tensor& b) {
  return cuda::FoldDimensions<2>({&a.type, &b.type}, a.type.rank() - 1);
}

// Whether rows of `columns` elements that start where these dimensions say, and
// contiguous ones, allow 16-byte accesses.
bool Vector(const cuda::Dimensions<2>& rows, int64_t columns, ElementType type,
            std::initializer_list<const void*> data) {
  const int64_t group = 16 / SizeOfElement(type);
  bool vector = columns % group == 0 && cuda::StepsBy(rows, group);
  for (const void* const pointer : data) vector &= cuda::IsAligned(pointer);
  return vector;
}

template <bool kCentered, bool kOfSum>
absl::StatusOr<Prepared> PrepareNorm(const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const Tensor& b = context.operands[kOfSum ? 1 : 0];
  const Attributes& attributes = *context.attributes;
  const absl::Span<const Tensor> results = context.results.subspan(kOfSum);
  cuda::NormLaunch launch;
  launch.type = cuda::ElementOf(x.type);
  launch.centered = kCentered;
  launch.rows = RowsOfBoth(x, b);
  launch.columns = x.type.dim(-1);
  launch.epsilon = static_cast<float>(attributes.Double("epsilon"));
  launch.x = x.data;
  if (kOfSum) {
    launch.b = b.data;
    launch.sum = context.results[0].data;
  }
  launch.weight = context.operands[1 + kOfSum].data;
  if (kCentered && attributes.Int("bias") != 0)
    launch.bias = context.operands[2 + kOfSum].data;
  launch.y = results[0].data;
  if (kCentered) launch.mean = results[1].as<float>();
  launch.rstd = results[kCentered ? 2 : 1].as<float>();
  launch.vector = Vector(
      launch.rows, launch.columns, launch.type,
      {launch.x, launch.b, launch.weight, launch.bias, launch.sum, launch.y});
  return cuda::MakeCudaKernel(context.op->name, [launch](cudaStream_t stream) {
    return LaunchNorm(launch, stream);
  });
}

// A float for each block of rows, weight gradient that is wanted, and column.
int64_t GradientWorkspace(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType> results) {
  int64_t sums = 0;
  for (int r = 1; r < static_cast<int>(results.size()); ++r)
    sums += !Omits(attributes, r);
  return cuda::NormGradientBlocks(cuda::RowsOf(operands[1]).count) * sums *
         operands[1].dim(-1) * static_cast<int64_t>(sizeof(float));
}

template <bool kCentered>
absl::StatusOr<Prepared> PrepareGradient(const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  const int64_t accumulate = attributes.Int("accumulate");
  const Tensor &dy = context.operands[0], &x = context.operands[1];
  cuda::NormGradientLaunch launch;
  launch.type = cuda::ElementOf(x.type);
  launch.centered = kCentered;
  launch.rows = RowsOfBoth(dy, x);
  launch.columns = x.type.dim(-1);
  launch.dy = dy.data;
  launch.x = x.data;
  launch.weight = context.operands[2].data;
  if (kCentered) launch.mean = context.operands[3].as<float>();
  launch.rstd = context.operands[kCentered ? 4 : 3].as<float>();
  if (!Omits(attributes, 0)) launch.dx = context.results[0].data;
  launch.accumulate = (accumulate & 1) != 0;
  launch.partial = context.workspace.as<float>();
  launch.vector = Vector(launch.rows, launch.columns, launch.type,
                         {launch.dy, launch.x, launch.weight, launch.dx});
  // Sums over blocks of rows, to be added up.
  std::vector<cuda::ColumnSumLaunch> sums;
  for (int r = 1; r < static_cast<int>(context.results.size()); ++r) {
    if (Omits(attributes, r)) continue;
    (r == 1 ? launch.wants_dweight : launch.wants_dbias) = true;
    const Tensor& result = context.results[r];
    cuda::ColumnSumLaunch sum;
    sum.x = launch.partial + sums.size() * launch.columns;
    sum.rows = cuda::NormGradientBlocks(launch.rows.count);
    sum.columns = launch.columns;
    sum.y = result.data;
    sum.y_type = cuda::ElementOf(result.type);
    sum.accumulate = (accumulate >> r & 1) != 0;
    sums.push_back(sum);
  }
  for (cuda::ColumnSumLaunch& sum : sums)
    sum.row_stride = static_cast<int64_t>(sums.size()) * launch.columns;
  return cuda::MakeCudaKernel(
      context.op->name, [launch, sums](cudaStream_t stream) {
        cudaError_t error = LaunchNormGradient(launch, stream);
        for (const cuda::ColumnSumLaunch& sum : sums) {
          if (error == cudaSuccess) error = LaunchColumnSum(sum, stream);
        }
        return error;
      });
}

}  // namespace

absl::Span<const KernelDef> NormCudaKernels() {
  using cuda::SupportsF32AndBf16;
  static constexpr KernelDef kernels[] = {
      {.op = "layer_norm",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareNorm<true, false>},
      {.op = "layer_norm_gradient",
       .supports = SupportsF32AndBf16,
       .workspace = GradientWorkspace,
       .prepare = PrepareGradient<true>},
      {.op = "rms_norm",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareNorm<false, false>},
      {.op = "rms_norm_gradient",
       .supports = SupportsF32AndBf16,
       .workspace = GradientWorkspace,
       .prepare = PrepareGradient<false>},
      {.op = "add_layer_norm",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareNorm<true, true>},
      {.op = "add_rms_norm",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareNorm<false, true>},
  };
  return kernels;
}

}  // namespace shardgraph
