#include "kernels/layout/cuda.h"

#include <cstring>
#include <memory>

#include "kernels/cuda/prepare.h"
#include "kernels/layout/layout.h"
#include "kernels/round_to_odd.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

template <typename T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

// `value` rounded to `dtype`, in the low bytes.
uint64_t BitsIn(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return BitsOf(static_cast<float>(value));
    case DType::kBF16:
      return BitsOf(BFloat16(RoundToOdd(value)));
    case DType::kF16:
      return BitsOf(Float16(RoundToOdd(value)));
    case DType::kF64:
      return BitsOf(value);
    case DType::kU32:
    case DType::kU16:
    case DType::kU8:
      return static_cast<uint64_t>(value);
    default:
      return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
}

absl::StatusOr<Prepared> PrepareFill(const KernelContext& context) {
  const Tensor& y = context.results[0];
  cuda::FillLaunch launch;
  launch.y = y.data;
  launch.shape = cuda::FoldElements<1>({&y.type});
  launch.size = static_cast<int>(SizeOf(y.type.dtype));
  launch.bits = BitsIn(y.type.dtype, context.attributes->Double("value"));
  launch.vector = cuda::IsAligned(launch.y) &&
                  cuda::StepsBy(launch.shape.rows, 16 / launch.size);
  return cuda::MakeCudaKernel("fill", [launch](cudaStream_t stream) {
    return LaunchFill(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareKvWrite(const KernelContext& context) {
  const Tensor &cache = context.results[0], &rows = context.operands[1];
  cuda::KvWriteLaunch launch;
  launch.cache = cache.data;
  launch.rows = rows.data;
  launch.position = context.operands[2].as<int64_t>();
  launch.size = static_cast<int>(SizeOf(cache.type.dtype));
  launch.batch = rows.type.dim(0);
  launch.length = rows.type.dim(1);
  launch.capacity = cache.type.dim(1);
  launch.heads = rows.type.dim(2);
  launch.width = rows.type.dim(3);
  for (int i = 0; i < 3; ++i) {
    launch.cache_strides[i] = cache.type.strides[i];
    launch.rows_strides[i] = rows.type.strides[i];
  }
  return cuda::MakeCudaKernel("kv_write", [launch](cudaStream_t stream) {
    return LaunchKvWrite(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareTakeShard(const KernelContext& context) {
  const Tensor& shard = context.results[0];
  const int64_t bytes = shard.type.num_elements() * SizeOf(shard.type.dtype);
  return cuda::MakeCudaKernel(
      "take_shard", [to = shard.data, bytes,
                     from = context.operands[0].as<char>() +
                            context.rank * bytes](cudaStream_t stream) {
        return bytes == 0 ? cudaSuccess
                          : cudaMemcpyAsync(to, from, bytes,
                                            cudaMemcpyDeviceToDevice, stream);
      });
}

}  // namespace

absl::Span<const KernelDef> LayoutCudaKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "fill", .prepare = PrepareFill},
      {.op = "kv_write", .prepare = PrepareKvWrite},
      {.op = "take_shard", .prepare = PrepareTakeShard},
  };
  return kernels;
}

}  // namespace shardgraph
