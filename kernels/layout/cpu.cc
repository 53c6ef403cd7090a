#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/layout/layout.h"
#include "kernels/round_to_odd.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

constexpr int64_t kCopyGrain = 65536;  // bytes of a task

template <typename T>
Prepared Fill(const Tensor& y, T value) {
  return MakeKernel(
      [loop = ElementwiseLoop<1>({&y.type}), y = y.as<T>(), value](Lane& lane) {
        loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
          std::fill_n(y + offset[0], count, value);
        });
      });
}

absl::StatusOr<Prepared> PrepareFill(const KernelContext& context) {
  const Tensor& y = context.results[0];
  const double value = context.attributes->Double("value");
  switch (y.type.dtype) {
    case DType::kF32:
      return Fill(y, static_cast<float>(value));
    case DType::kBF16:
      return Fill(y, BFloat16(RoundToOdd(value)));
    case DType::kF16:
      return Fill(y, Float16(RoundToOdd(value)));
    case DType::kF64:
      return Fill(y, value);
    case DType::kI32:
      return Fill(y, static_cast<int32_t>(value));
    case DType::kI64:
      return Fill(y, static_cast<int64_t>(value));
    case DType::kU8:
      return Fill(y, static_cast<uint8_t>(value));
    case DType::kU16:
      return Fill(y, static_cast<uint16_t>(value));
    case DType::kU32:
      return Fill(y, static_cast<uint32_t>(value));
  }
  return absl::InternalError("fill of an unknown dtype");
}

absl::StatusOr<Prepared> PrepareKvWrite(const KernelContext& context) {
  return MakeKernel([cache = context.results[0], rows = context.operands[1],
                     position = context.operands[2].as<int64_t>()](Lane& lane) {
    const int64_t size = SizeOf(cache.type.dtype);
    const int64_t length = rows.type.dim(1), heads = rows.type.dim(2);
    const int64_t bytes = rows.type.dim(3) * size;
    const auto offset = [&](const TensorType& type, int64_t b, int64_t t,
                            int64_t k) {
      return (b * type.strides[0] + t * type.strides[1] + k * type.strides[2]) *
             size;
    };
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t b = row / length, t = row % length;
        const int64_t to = *position + t;
        if (to < 0 || to >= cache.type.dim(1)) continue;
        for (int64_t k = 0; k < heads; ++k) {
          std::memcpy(cache.as<char>() + offset(cache.type, b, to, k),
                      rows.as<char>() + offset(rows.type, b, t, k), bytes);
        }
      }
    };
    if (bytes == 0) return;
    lane.pool->ParallelFor(rows.type.dim(0) * length,
                           RowGrain(heads * rows.type.dim(3)), run);
  });
}

absl::StatusOr<Prepared> PrepareTakeShard(const KernelContext& context) {
  const Tensor& shard = context.results[0];
  const int64_t bytes = shard.type.num_elements() * SizeOf(shard.type.dtype);
  return MakeKernel([to = shard.as<char>(), bytes,
                     from = context.operands[0].as<char>() +
                            context.rank * bytes](Lane& lane) {
    lane.pool->ParallelFor(bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, end - begin);
    });
  });
}

}  // namespace

absl::Span<const KernelDef> LayoutCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "fill", .prepare = PrepareFill},
      {.op = "kv_write", .prepare = PrepareKvWrite},
      {.op = "take_shard", .prepare = PrepareTakeShard},
  };
  return kernels;
}

}  // namespace shardgraph
