#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/norm/norm.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

template <typename T>
absl::StatusOr<Prepared> LayerNorm(const KernelContext& context) {
  const Tensor& x = context.operands[0];
  const bool bias = context.attributes->Int("bias") != 0;
  return MakeKernel([layout = RowLayout(x.type), x = x.as<T>(),
                     weight = context.operands[1].as<T>(),
                     bias = bias ? context.operands[2].as<T>() : nullptr,
                     y = context.results[0].as<T>(),
                     mean = context.results[1].as<float>(),
                     rstd = context.results[2].as<float>(),
                     epsilon = static_cast<float>(
                         context.attributes->Double("epsilon"))](Lane& lane) {
    const int64_t columns = layout.columns();
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + layout.Offset(row);
        T* out = y + row * columns;
        const float scale = columns > 0 ? 1.0f / columns : 0.0f;
        const float m =
            scale * SumOver(columns, [&](int64_t c) { return float(in[c]); });
        const float variance = scale * SumOver(columns, [&](int64_t c) {
                                 const float d = float(in[c]) - m;
                                 return d * d;
                               });
        const float r = 1.0f / std::sqrt(variance + epsilon);
        if (bias != nullptr) {
          for (int64_t c = 0; c < columns; ++c)
            out[c] =
                T((float(in[c]) - m) * r * float(weight[c]) + float(bias[c]));
        } else {
          for (int64_t c = 0; c < columns; ++c)
            out[c] = T((float(in[c]) - m) * r * float(weight[c]));
        }
        mean[row] = m;
        rstd[row] = r;
      }
    };
    lane.pool->ParallelFor(layout.rows(), RowGrain(columns), run);
  });
}

template <typename T>
absl::StatusOr<Prepared> RmsNorm(const KernelContext& context) {
  const Tensor& x = context.operands[0];
  return MakeKernel([layout = RowLayout(x.type), x = x.as<T>(),
                     weight = context.operands[1].as<T>(),
                     y = context.results[0].as<T>(),
                     rstd = context.results[1].as<float>(),
                     epsilon = static_cast<float>(
                         context.attributes->Double("epsilon"))](Lane& lane) {
    const int64_t columns = layout.columns();
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + layout.Offset(row);
        T* out = y + row * columns;
        const float scale = columns > 0 ? 1.0f / columns : 0.0f;
        const float square = SumOver(
            columns, [&](int64_t c) { return float(in[c]) * float(in[c]); });
        const float r = 1.0f / std::sqrt(scale * square + epsilon);
        for (int64_t c = 0; c < columns; ++c) {
          const T h(float(in[c]) * r);
          out[c] = T(float(h) * float(weight[c]));
        }
        rstd[row] = r;
      }
    };
    lane.pool->ParallelFor(layout.rows(), RowGrain(columns), run);
  });
}

// Rows are cut into blocks by their number alone; each block sums its part of
// the weight gradients in the workspace, and the parts are added in order.
constexpr int64_t kMaxBlocks = 32;
constexpr int64_t kMinRowsPerBlock = 16;

int64_t RowsPerBlock(int64_t rows) {
  return std::max(kMinRowsPerBlock, (rows + kMaxBlocks - 1) / kMaxBlocks);
}
int64_t NumBlocks(int64_t rows) {
  return (rows + RowsPerBlock(rows) - 1) / RowsPerBlock(rows);
}

// One float for each block, weight gradient (`sums` of them) and column.
int64_t GradientWorkspace(const TensorType& x, int64_t sums) {
  const RowLayout layout(x);
  return NumBlocks(layout.rows()) * sums * layout.columns() *
         static_cast<int64_t>(sizeof(float));
}
int64_t LayerNormWorkspace(const Attributes& attributes,
                           absl::Span<const TensorType> operands,
                           absl::Span<const TensorType>) {
  return GradientWorkspace(operands[1], attributes.Int("bias") != 0 ? 2 : 1);
}
int64_t RmsNormWorkspace(const Attributes&,
                         absl::Span<const TensorType> operands,
                         absl::Span<const TensorType>) {
  return GradientWorkspace(operands[1], 1);
}

// Result = sum over blocks of partial[block * stride + c], in order of blocks.
void AddBlocks(const float* partial, int64_t blocks, int64_t stride,
               bool accumulate, DType dtype, void* result, int64_t columns,
               ThreadPool& pool) {
  DispatchActivation(dtype, [&]<typename W>(std::type_identity<W>) {
    W* out = static_cast<W*>(result);
    pool.ParallelFor(columns, 256, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += partial[b * stride + c];
        out[c] = W(accumulate ? float(out[c]) + sum : sum);
      }
    });
  });
}

// Both gradients: RMS norm is layer norm with mean 0 and without the term
// sum(g) / C.
template <typename T, bool kLayerNorm>
absl::StatusOr<Prepared> NormGradient(const KernelContext& context) {
  const int64_t accumulate = context.attributes->Int("accumulate");
  const bool has_bias = kLayerNorm && context.attributes->Int("bias") != 0;
  const Tensor& dy = context.operands[0];
  const Tensor& x = context.operands[1];
  return MakeKernel([dy_layout = RowLayout(dy.type),
                     x_layout = RowLayout(x.type), dy = dy.as<T>(),
                     x = x.as<T>(), weight = context.operands[2].as<T>(),
                     mean =
                         kLayerNorm ? context.operands[3].as<float>() : nullptr,
                     rstd = context.operands[kLayerNorm ? 4 : 3].as<float>(),
                     dx = context.results[0].as<T>(), accumulate, has_bias,
                     dweight = context.results[1].data,
                     dbias = has_bias ? context.results[2].data : nullptr,
                     weight_dtype = context.results[1].type.dtype,
                     partial = context.workspace.as<float>()](Lane& lane) {
    const int64_t rows = x_layout.rows(), columns = x_layout.columns();
    const int64_t blocks = NumBlocks(rows), per_block = RowsPerBlock(rows);
    const int64_t stride = (has_bias ? 2 : 1) * columns;
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        float* sum_w = partial + block * stride;
        float* sum_b = sum_w + columns;
        std::fill(sum_w, sum_w + stride, 0.0f);
        const int64_t last = std::min(rows, (block + 1) * per_block);
        for (int64_t row = block * per_block; row < last; ++row) {
          const T* d = dy + dy_layout.Offset(row);
          const T* in = x + x_layout.Offset(row);
          T* out = dx + row * columns;
          const float m = kLayerNorm ? mean[row] : 0.0f;
          const float r = rstd[row];
          const float scale = columns > 0 ? 1.0f / columns : 0.0f;
          const float g_mean =
              kLayerNorm
                  ? scale * SumOver(columns,
                                    [&](int64_t c) {
                                      return float(d[c]) * float(weight[c]);
                                    })
                  : 0.0f;
          const float gh_mean = scale * SumOver(columns, [&](int64_t c) {
                                  return float(d[c]) * float(weight[c]) *
                                         ((float(in[c]) - m) * r);
                                });
          for (int64_t c = 0; c < columns; ++c)
            sum_w[c] += float(d[c]) * ((float(in[c]) - m) * r);
          if (has_bias) {
            for (int64_t c = 0; c < columns; ++c) sum_b[c] += float(d[c]);
          }
          const auto slope = [&](int64_t c) {
            const float h = (float(in[c]) - m) * r;
            return r * (float(d[c]) * float(weight[c]) - g_mean - h * gh_mean);
          };
          if ((accumulate & 1) != 0) {
            for (int64_t c = 0; c < columns; ++c)
              out[c] = T(float(out[c]) + slope(c));
          } else {
            for (int64_t c = 0; c < columns; ++c) out[c] = T(slope(c));
          }
        }
      }
    };
    lane.pool->ParallelFor(blocks, 1, run);
    AddBlocks(partial, blocks, stride, (accumulate >> 1 & 1) != 0, weight_dtype,
              dweight, columns, *lane.pool);
    if (has_bias) {
      AddBlocks(partial + columns, blocks, stride, (accumulate >> 2 & 1) != 0,
                weight_dtype, dbias, columns, *lane.pool);
    }
  });
}

absl::StatusOr<Prepared> PrepareLayerNorm(const KernelContext& context) {
  return DispatchActivation(
      context.operands[0].type.dtype,
      [&]<typename T>(std::type_identity<T>) { return LayerNorm<T>(context); });
}

absl::StatusOr<Prepared> PrepareRmsNorm(const KernelContext& context) {
  return DispatchActivation(
      context.operands[0].type.dtype,
      [&]<typename T>(std::type_identity<T>) { return RmsNorm<T>(context); });
}

template <bool kLayerNorm>
absl::StatusOr<Prepared> PrepareGradient(const KernelContext& context) {
  return DispatchActivation(context.operands[0].type.dtype,
                            [&]<typename T>(std::type_identity<T>) {
                              return NormGradient<T, kLayerNorm>(context);
                            });
}

}  // namespace

absl::Span<const KernelDef> NormCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "layer_norm",
       .supports = SupportsNoF64,
       .prepare = PrepareLayerNorm},
      {.op = "layer_norm_gradient",
       .supports = SupportsNoF64,
       .workspace = LayerNormWorkspace,
       .prepare = PrepareGradient<true>},
      {.op = "rms_norm", .supports = SupportsNoF64, .prepare = PrepareRmsNorm},
      {.op = "rms_norm_gradient",
       .supports = SupportsNoF64,
       .workspace = RmsNormWorkspace,
       .prepare = PrepareGradient<false>},
  };
  return kernels;
}

}  // namespace shardgraph
