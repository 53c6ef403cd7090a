#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/layout/layout.h"
#include "kernels/reference/access.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

// Word is an unsigned integer of the size of an element.
template <typename Word>
Prepared Fill(const Tensor& y, double value) {
  uint64_t bytes = 0;
  StoreElement(y.type.dtype, &bytes, 0, value);
  Word word;
  std::memcpy(&word, &bytes, sizeof(word));
  return MakeKernel([loop = ElementwiseLoop<1>({&y.type}), y = y.as<Word>(),
                     word](Lane& lane) {
    loop.Run(*lane.pool, [&](const auto& offset, int64_t count) {
      std::fill_n(y + offset[0], count, word);
    });
  });
}

absl::StatusOr<Prepared> PrepareFill(const KernelContext& context) {
  const Tensor& y = context.results[0];
  const double value = context.attributes->Double("value");
  switch (SizeOf(y.type.dtype)) {
    case 1:
      return Fill<uint8_t>(y, value);
    case 2:
      return Fill<uint16_t>(y, value);
    case 4:
      return Fill<uint32_t>(y, value);
    default:
      return Fill<uint64_t>(y, value);
  }
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

}  // namespace

absl::Span<const KernelDef> LayoutCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "fill", .prepare = PrepareFill},
      {.op = "kv_write", .prepare = PrepareKvWrite},
  };
  return kernels;
}

}  // namespace shardgraph
