#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/rotary_row.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

absl::StatusOr<Prepared> PrepareEmbedding(const KernelContext& context) {
  const Tensor& weight = context.operands[1];
  return MakeKernel([ids = context.operands[0].as<int32_t>(),
                     count = context.operands[0].type.dim(0),
                     weight = weight.as<char>(), rows = weight.type.dim(0),
                     columns = weight.type.dim(1),
                     size = SizeOf(weight.type.dtype),
                     y = context.results[0].as<char>()](Lane& lane) {
    const int64_t bytes = columns * size;
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (ids[n] >= 0 && ids[n] < rows) {
          std::memcpy(y + n * bytes, weight + ids[n] * bytes, bytes);
        } else {
          std::memset(y + n * bytes, 0, bytes);
        }
      }
    };
    if (bytes > 0) lane.pool->ParallelFor(count, RowGrain(columns), run);
  });
}

// ends[V + 1] and order[N], see below.
int64_t GradientWorkspace(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType>) {
  return (attributes.Int("rows") + 1 + operands[0].dim(0)) *
         static_cast<int64_t>(sizeof(int32_t));
}

// Sorts the positions by id (stable), then sums each row of the table by
// itself: any thread may take any row.
template <typename From, typename To>
Prepared EmbeddingGradient(const KernelContext& context) {
  const Tensor& dy = context.operands[1];
  return MakeKernel([ids = context.operands[0].as<int32_t>(),
                     count = dy.type.dim(0), dy = dy.as<From>(),
                     columns = dy.type.dim(1),
                     rows = context.attributes->Int("rows"),
                     accumulate = context.attributes->Int("accumulate") != 0,
                     dweight = context.results[0].as<To>(),
                     ends = context.workspace.as<int32_t>()](Lane& lane) {
    int32_t* order = ends + rows + 1;
    const auto valid = [&](int64_t n) { return ids[n] >= 0 && ids[n] < rows; };
    // After counting, ends[v] is where row v's positions begin; filling
    // them in moves it to where they end.
    std::fill(ends, ends + rows + 1, 0);
    for (int64_t n = 0; n < count; ++n) {
      if (valid(n)) ++ends[ids[n] + 1];
    }
    for (int64_t v = 0; v < rows; ++v) ends[v + 1] += ends[v];
    for (int64_t n = 0; n < count; ++n) {
      if (valid(n)) order[ends[ids[n]]++] = static_cast<int32_t>(n);
    }
    const auto run = [&](int64_t begin, int64_t end) {
      constexpr int64_t kChunk = 256;
      float sum[kChunk];
      for (int64_t v = begin; v < end; ++v) {
        const int32_t first = v == 0 ? 0 : ends[v - 1];
        To* out = dweight + v * columns;
        if (first == ends[v]) {
          if (!accumulate) std::fill(out, out + columns, To(0.0f));
          continue;
        }
        for (int64_t c = 0; c < columns; c += kChunk) {
          const int64_t width = std::min(kChunk, columns - c);
          for (int64_t i = 0; i < width; ++i)
            sum[i] = accumulate ? float(out[c + i]) : 0.0f;
          for (int32_t k = first; k < ends[v]; ++k) {
            const From* in = dy + order[k] * columns + c;
            for (int64_t i = 0; i < width; ++i) sum[i] += float(in[i]);
          }
          for (int64_t i = 0; i < width; ++i) out[c + i] = To(sum[i]);
        }
      }
    };
    lane.pool->ParallelFor(rows, RowGrain(columns), run);
  });
}

absl::StatusOr<Prepared> PrepareEmbeddingGradient(
    const KernelContext& context) {
  return DispatchActivation(context.operands[1].type.dtype,
                            [&]<typename From>(std::type_identity<From>) {
                              return DispatchActivation(
                                  context.results[0].type.dtype,
                                  [&]<typename To>(std::type_identity<To>) {
                                    return EmbeddingGradient<From, To>(context);
                                  });
                            });
}

absl::StatusOr<Prepared> PreparePositions(const KernelContext& context) {
  return MakeKernel([position = context.operands[0].as<int64_t>(),
                     y = context.results[0].as<int32_t>(),
                     batch = context.attributes->Int("batch"),
                     length = context.attributes->Int("length")](Lane&) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < length; ++t)
        y[b * length + t] = static_cast<int32_t>(*position + t);
    }
  });
}

absl::StatusOr<Prepared> PrepareRotary(const KernelContext& context) {
  const Tensor &x = context.operands[0], &y = context.results[0];
  RotaryRow row;
  row.type = ElementTypeOf(x.type.dtype);
  row.heads = x.type.dim(2);
  row.half = x.type.dim(3) / 2;
  row.x_stride = x.type.strides[2];
  row.y_stride = y.type.strides[2];
  row.sign = context.attributes->Int("inverse") != 0 ? -1.0f : 1.0f;
  return MakeKernel(
      [row, x, y, positions = context.operands[1].as<int32_t>(),
       frequencies = RotaryFrequencies(*context.attributes, x.type.dim(3)),
       rotate = ForTarget(row.type == ElementType::kF16 ? CpuTarget::kBaseline
                                                        : BestCpuTarget(),
                          &baseline::Rotate, &avx2::Rotate,
                          &avx512::Rotate)](Lane& lane) {
        const int64_t length = x.type.dim(1);
        const int64_t size = SizeOfElement(row.type);
        const auto at = [&](const Tensor& tensor, int64_t n) {
          return tensor.as<char>() +
                 size * (n / length * tensor.type.strides[0] +
                         n % length * tensor.type.strides[1]);
        };
        const auto run = [&](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; ++n) {
            RotaryRow part = row;
            part.x = at(x, n);
            part.y = at(y, n);
            part.position = static_cast<float>(positions[n]);
            part.frequencies = frequencies.data();
            rotate(part);
          }
        };
        lane.pool->ParallelFor(x.type.dim(0) * length,
                               RowGrain(row.heads * row.half * 2), run);
      });
}

}  // namespace

absl::Span<const KernelDef> EmbeddingCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "embedding", .prepare = PrepareEmbedding},
      {.op = "embedding_gradient",
       .supports = SupportsNoF64,
       .workspace = GradientWorkspace,
       .prepare = PrepareEmbeddingGradient},
      {.op = "positions", .prepare = PreparePositions},
      {.op = "rotary", .supports = SupportsNoF64, .prepare = PrepareRotary},
  };
  return kernels;
}

}  // namespace shardgraph
